//! The words after `?`: those that every store takes, and how a store reads its own.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::bad;
use super::parse::decoded;
use crate::duration_text::{FORMS, parse_duration};
use crate::error::{Error, Result};

/// The words that every store understands, read and checked.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Common {
    /// `format=`: which of the store's layouts to use; `None` for its default.
    pub format: Option<String>,
    /// `prefix=`: the text before every name. On etcd and ZooKeeper the path has this role.
    pub prefix: Option<String>,
    /// `names=`: whether names are written as they are; `None` for the format's default.
    pub names: Option<Names>,
    /// `drift=`: by how much our clock and the store's may differ in speed, as a part of one.
    /// Default 0.01.
    pub drift: f64,
    /// `connect_timeout=`: how long one attempt to connect may take. Default 2 s.
    pub connect_timeout: Duration,
    /// `request_timeout=`: how long one request may take. Default 5 s.
    pub request_timeout: Duration,
    /// `ca=`: the file with the certificates to trust, instead of the system's.
    pub ca: Option<PathBuf>,
    /// `cert=`: the file with our own certificate.
    pub cert: Option<PathBuf>,
    /// `key=`: the file with the key of our own certificate.
    pub key: Option<PathBuf>,
}

/// How names become keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As they are, for programs that share a lock by its key.
    Exact,
    /// [Mapped](crate::Name::mapped) to letters that every system takes.
    Escaped,
}

impl Default for Common {
    fn default() -> Common {
        Common {
            format: None,
            prefix: None,
            names: None,
            drift: 0.01,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            ca: None,
            cert: None,
            key: None,
        }
    }
}

/// `key` is hidden: it should be a file, but the word invites people to write the key itself.
impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common")
            .field("format", &self.format)
            .field("prefix", &self.prefix)
            .field("names", &self.names)
            .field("drift", &self.drift)
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("ca", &self.ca)
            .field("cert", &self.cert)
            .field("key", &self.key.as_ref().map(|_| "***"))
            .finish()
    }
}

/// The common words, in the order of the documentation.
const COMMON: [&str; 9] = [
    "format",
    "prefix",
    "names",
    "drift",
    "connect_timeout",
    "request_timeout",
    "ca",
    "cert",
    "key",
];

impl Common {
    /// Whether names are written as they are, in a format that does otherwise by default.
    pub fn exact_names(&self) -> bool {
        self.names == Some(Names::Exact)
    }

    pub(super) fn take_from(words: &mut Words) -> Result<Common> {
        let default = Common::default();
        Ok(Common {
            format: words.take("format"),
            prefix: words.take("prefix"),
            names: words.take("names").map(|value| names(&value)).transpose()?,
            drift: words
                .take("drift")
                .map(|value| drift(&value))
                .transpose()?
                .unwrap_or(default.drift),
            connect_timeout: time_limit(words, "connect_timeout")?
                .unwrap_or(default.connect_timeout),
            request_timeout: time_limit(words, "request_timeout")?
                .unwrap_or(default.request_timeout),
            ca: words.take("ca").map(PathBuf::from),
            cert: words.take("cert").map(PathBuf::from),
            key: words.take("key").map(PathBuf::from),
        })
    }
}

fn names(value: &str) -> Result<Names> {
    match value {
        "exact" => Ok(Names::Exact),
        "escaped" => Ok(Names::Escaped),
        _ => Err(bad("names= is exact or escaped")),
    }
}

fn drift(value: &str) -> Result<f64> {
    let (number, scale) = value
        .strip_suffix('%')
        .map_or((value, 1.0), |percent| (percent, 100.0));
    // `parse` alone would take signs, exponents, infinities and "nan".
    let decimal = number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let drift = decimal
        .then(|| number.parse::<f64>().ok())
        .flatten()
        .map(|number| number / scale);
    drift
        .filter(|drift| (0.0..0.5).contains(drift))
        .ok_or_else(|| bad("drift= is from 0 to below 0.5; write 0.01 or 1%"))
}

fn time_limit(words: &mut Words, word: &str) -> Result<Option<Duration>> {
    match words
        .take(word)
        .map(|value| duration(word, &value))
        .transpose()?
    {
        Some(Duration::ZERO) => Err(bad(format!("{word}= must be longer than zero"))),
        limit => Ok(limit),
    }
}

/// The value is not shown, in contrast to [`parse_duration`]'s own error.
pub(super) fn duration(word: &str, value: &str) -> Result<Duration> {
    parse_duration(value).map_err(|_| bad(format!("{word}= is not a duration: {FORMS}")))
}

/// The words of a query, and which of them have been taken.
#[derive(Clone)]
pub(super) struct Words(Vec<Word>);

#[derive(Clone)]
struct Word {
    name: String,
    value: String,
    taken: bool,
}

impl Words {
    pub(super) fn parse(query: &str) -> Result<Words> {
        let mut words: Vec<Word> = Vec::new();
        for text in query.split('&').filter(|_| !query.is_empty()) {
            let word = Word::parse(text)?;
            if words.iter().any(|earlier| earlier.name == word.name) {
                return Err(bad(format!("the query word {} is given twice", word.name)));
            }
            words.push(word);
        }
        Ok(Words(words))
    }

    /// A word that is left for the store.
    pub(super) fn look_up(&self, name: &str) -> Option<&str> {
        let word = self.0.iter().find(|word| word.name == name)?;
        Some(&word.value)
    }

    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let word = self
            .0
            .iter_mut()
            .find(|word| word.name == name && !word.taken)?;
        word.taken = true;
        Some(word.value.clone())
    }

    pub(super) fn refuse_rest(&self, scheme: &str, known: &[&str]) -> Result<()> {
        match self.0.iter().find(|word| !word.taken) {
            Some(word) if known.contains(&word.name.as_str()) => Err(bad(format!(
                "{}= has no meaning with the other words of this URL",
                word.name
            ))),
            Some(word) => Err(unknown(&word.name, scheme, known)),
            None => Ok(()),
        }
    }
}

fn unknown(name: &str, scheme: &str, known: &[&str]) -> Error {
    let accepted: Vec<&str> = known.iter().copied().chain(COMMON).collect();
    let hint = nearest(name, &accepted)
        .map(|near| format!("; did you mean {near}?"))
        .unwrap_or_default();
    bad(format!(
        "unknown query word {name}{hint} ({scheme}: takes {})",
        accepted.join(", ")
    ))
}

impl Word {
    fn parse(text: &str) -> Result<Word> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        // A name of this shape can be shown; anything else may be a piece of something else.
        if !(1..=40).contains(&name.len())
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        {
            return Err(bad(
                "after the '?' stand words with values, word=value&word=value, of letters, digits and '_'",
            ));
        }
        if value.is_empty() {
            return Err(bad(format!(
                "the query word {name} has no value; write {name}=value or leave it out"
            )));
        }
        // `drift=1%` is what people write, and a '%' at the very end can mean nothing else.
        let (escaped, percent) = value
            .strip_suffix('%')
            .map_or((value, ""), |value| (value, "%"));
        let value = decoded(escaped, &format!("value of {name}="))? + percent;
        Ok(Word {
            name: name.to_owned(),
            value,
            taken: false,
        })
    }

    fn is_harmless(&self) -> bool {
        self.name != "key" && COMMON.contains(&self.name.as_str())
    }
}

/// The characters to escape so that a value reads back as the same value.
const VALUE: &AsciiSet = &CONTROLS
    .add(b'%')
    .add(b'&')
    .add(b'#')
    .add(b'@')
    .add(b' ')
    .add(b'"')
    .add(b'\'');

/// The query of a URL as people may see it, with its `?`.
impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, word) in self.0.iter().enumerate() {
            write!(f, "{}{}=", if place == 0 { '?' } else { '&' }, word.name)?;
            match word.is_harmless() {
                true => utf8_percent_encode(&word.value, VALUE).fmt(f)?,
                false => f.write_str("***")?,
            }
        }
        Ok(())
    }
}

/// The candidate that the word was perhaps meant to be: at most two letters away, and less than
/// half of it.
fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    let (away, near) = candidates
        .iter()
        .map(|candidate| (distance(&word, candidate), *candidate))
        .min()?;
    (away <= 2 && 2 * away < near.len()).then_some(near)
}

/// How many letters must be put in, left out or changed.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, mine) in one.bytes().enumerate() {
        let mut before = above + 1;
        let mut next = vec![before];
        for (pair, theirs) in row.windows(2).zip(other.bytes()) {
            let [diagonal, up] = pair else { continue };
            before = (diagonal + usize::from(mine != theirs))
                .min(up + 1)
                .min(before + 1);
            next.push(before);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}
