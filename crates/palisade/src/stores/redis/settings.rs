//! The part of the URL that is about locks: the format, and how names become keys.

use std::borrow::Cow;

use super::client::ClientSettings;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::url::{Common, Names, StoreUrl};

/// How locks are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Palisade,
    Simple,
    Redisson,
}

pub(in crate::stores) struct Settings {
    pub(super) format: Format,
    /// The beginning of every key; in the format `palisade` it ends with a colon.
    prefix: String,
    exact_names: bool,
    db: i64,
    /// Of the format `redisson`: mutexes are fair locks.
    pub(super) fair: bool,
    /// Of the format `redisson`: the counter of fences has no end, as that of a fenced lock.
    pub(super) fenced: bool,
    /// Of the format `redisson`: each permit of a semaphore has a lease that peers see.
    pub(super) expirable: bool,
}

/// The longest mapped name. No name of 512 bytes is longer when it is escaped, so every key can be
/// read back.
const NAME_LIMIT: usize = 3 * Name::LONGEST;

/// The version of the format `palisade`.
const VERSION: &str = "1:";

/// The part of a line's key before its braces.
fn line_prefix(prefix: Option<&str>) -> String {
    format!("{}:{VERSION}", prefix.unwrap_or("palisade"))
}

/// The key of a line in the format `palisade`, for writes that check the lock itself.
pub(crate) fn line_key(prefix: Option<&str>, name: &Name, exact: bool) -> String {
    let name = if exact {
        name.as_str().to_owned()
    } else {
        name.mapped(NAME_LIMIT)
    };
    format!("{}{{{name}}}", line_prefix(prefix))
}

/// A word that is either left out or `yes`.
fn is_yes(url: &mut StoreUrl, word: &str) -> Result<bool> {
    match url.take(word).as_deref() {
        None => Ok(false),
        Some("yes") => Ok(true),
        Some(_) => Err(Error::bad_url(format!(
            "bad store URL: {word}= is yes, or is left out"
        ))),
    }
}

impl Settings {
    pub(super) fn read(mut url: StoreUrl) -> Result<(Settings, ClientSettings)> {
        let format = match url.common().format.as_deref() {
            None | Some("palisade") => Format::Palisade,
            Some("simple") => Format::Simple,
            Some("redisson") => Format::Redisson,
            Some(_) => {
                return Err(Error::bad_url(
                    "bad store URL: format= of redis: is palisade, simple or redisson",
                ));
            }
        };
        let is_redisson = format == Format::Redisson;
        let fair = is_redisson && is_yes(&mut url, "fair")?;
        let fenced = is_redisson && is_yes(&mut url, "fenced")?;
        let expirable = is_redisson && is_yes(&mut url, "expirable")?;
        let client = ClientSettings::read(&mut url)?;
        let settings = Settings {
            fair,
            fenced,
            expirable,
            ..Settings::of(format, url.common(), client.db())?
        };
        Ok((settings, client))
    }

    /// The keys of the format `simple`.
    pub(in crate::stores) fn of_simple(common: &Common) -> Result<Settings> {
        Settings::of(Format::Simple, common, 0)
    }

    fn of(format: Format, common: &Common, db: i64) -> Result<Settings> {
        let prefix = match (format, common.prefix.as_deref()) {
            (Format::Palisade, prefix) => line_prefix(prefix),
            (Format::Simple | Format::Redisson, prefix) => prefix.unwrap_or_default().to_owned(),
        };
        if prefix.contains(['{', '}']) {
            return Err(Error::bad_url(
                "bad store URL: prefix= may not have braces: they would put every lock into one slot",
            ));
        }
        let exact_names = match format {
            Format::Palisade => common.exact_names(),
            // It exists only to share locks with peers: the name is their key.
            Format::Simple | Format::Redisson => common.names != Some(Names::Escaped),
        };
        Ok(Settings {
            format,
            prefix,
            exact_names,
            db,
            fair: false,
            fenced: false,
            expirable: false,
        })
    }

    /// The key of a name.
    pub(in crate::stores) fn key(&self, name: &Name) -> String {
        let as_it_is = self.exact_names || name.is_plain();
        let mapped = if as_it_is {
            Cow::Borrowed(name.as_str())
        } else {
            Cow::Owned(name.mapped(NAME_LIMIT))
        };
        match self.format {
            // In braces, so that other keys can be put into the slot of the name in a cluster.
            Format::Palisade => [&self.prefix, "{", &mapped, "}"].concat(),
            Format::Simple | Format::Redisson => [self.prefix.as_str(), &mapped].concat(),
        }
    }

    /// The name of a key; `None` for a key that is not ours.
    pub(super) fn name(&self, key: &str) -> Option<Name> {
        let mapped = key.strip_prefix(&self.prefix)?;
        let mapped = match self.format {
            Format::Palisade => mapped.strip_prefix('{')?.strip_suffix('}')?,
            Format::Simple | Format::Redisson => mapped,
        };
        if self.exact_names {
            Name::new(mapped).ok()
        } else {
            Name::unmapped(mapped)
        }
    }

    /// A pattern for the keys of all names that begin so.
    pub(super) fn pattern(&self, prefix: &str) -> String {
        let glob = |text: &str| {
            text.chars().fold(String::new(), |mut glob, letter| {
                if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                    glob.push('\\');
                }
                glob.push(letter);
                glob
            })
        };
        // The mapping of a prefix does not depend on the rest of the name.
        let mapped = match Name::new(prefix) {
            Ok(prefix) if !self.exact_names => prefix.mapped(NAME_LIMIT),
            _ => prefix.to_owned(),
        };
        let brace = if self.format == Format::Palisade {
            "{"
        } else {
            ""
        };
        format!("{}{brace}{}*", glob(&self.prefix), glob(&mapped))
    }

    /// The channel of an inbox.
    pub(super) fn inbox(&self, id: &str) -> String {
        match self.format {
            Format::Palisade => format!("{}inbox:{id}", self.prefix),
            Format::Simple | Format::Redisson => format!("palisade:{VERSION}inbox:{id}"),
        }
    }

    /// The channel on which the server announces changes of a key.
    pub(super) fn keyspace_channel(&self, key: &str) -> String {
        format!("__keyspace@{}__:{key}", self.db)
    }
}
