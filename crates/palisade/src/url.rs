//! The URL that names a store, read once for all stores.
//!
//! ```text
//! memory:    memory:NAME    sqlite:/path    sqlite:relative    sqlite:///path
//! redis://user:password@h1:1,h2:2,[::1]:3/0?format=simple    etcd://h1,h2/prefix/deeper
//! ```
//!
//! # For authors of stores
//!
//! [`StoreUrl::parse`] has already read and checked the words that all stores share: they are in
//! [`StoreUrl::common`]. A store takes its own words one by one, and then lets [`StoreUrl::finish`]
//! refuse the rest:
//!
//! ```
//! # fn main() -> palisade::Result<()> {
//! use palisade::url::StoreUrl;
//!
//! let mut url = StoreUrl::parse("redis://:hunter2@h1,h2:7000/0?format=simple&replicas=2")?;
//! let servers = url.endpoints(6379)?;
//! let replicas: u32 = url.take_parsed("replicas", "a number")?.unwrap_or(0);
//! url.finish(&["replicas"])?;
//!
//! assert_eq!((servers.len(), replicas, url.below_hosts()), (2, 2, "0"));
//! assert_eq!(url.to_string(), "redis://***@h1,h2:7000/0?format=simple&replicas=***");
//! # Ok(())
//! # }
//! ```
//!
//! # Secrets
//!
//! Neither an error of this module nor the `Debug` or `Display` of anything in it holds the user,
//! the password, or the value of a word that only a store knows. People forget to escape `/`, `?`,
//! `#` and `@` in passwords, which moves a part of the password into a host, a path or a word. So a
//! bare `@` is accepted only where it cannot follow a misread password, and this is checked first.

mod host;
mod parse;
mod query;
mod secret;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display};
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

pub use self::host::Host;
use self::query::Words;
pub use self::query::{Common, Names};
pub use self::secret::Secret;
use crate::error::{Error, Result};
use crate::stores;

/// A store's URL, read and checked. Its `Debug` and `Display` hide what may be secret. See the
/// [module documentation](self).
#[derive(Clone)]
pub struct StoreUrl {
    scheme: String,
    user: Option<Secret>,
    password: Option<Secret>,
    hosts: Vec<Host>,
    path: String,
    words: Words,
    common: Common,
}

impl StoreUrl {
    /// Reads a URL. Nothing is connected.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config), with a message that says what to change and holds no
    /// secret.
    pub fn parse(text: &str) -> Result<StoreUrl> {
        parse::store_url(text)
    }

    /// The scheme, in lower case: `redis`, `rediss+sentinel`, `memory`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user; `None` when the URL names none.
    pub fn user(&self) -> Option<&Secret> {
        self.user.as_ref()
    }

    /// The password; `None` when none is given, which is not the same as an empty one.
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref()
    }

    /// The hosts as listed; none in `memory:` and `sqlite:/path`.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts, each with a port, at least one.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when there is no host, or when the default port makes
    /// two of them the same: one server would count as two votes of a quorum.
    pub fn endpoints(&self, default_port: u16) -> Result<Vec<Host>> {
        let endpoints: Vec<Host> = self
            .hosts
            .iter()
            .map(|host| host.with_default_port(default_port))
            .collect();
        if endpoints.is_empty() {
            return Err(bad(format!(
                "{0}: needs a host; write {0}://host:port",
                self.scheme
            )));
        }
        host::refuse_duplicates(&endpoints)?;
        Ok(endpoints)
    }

    /// The path, decoded, as it stands: `/0`, `/prefix/deeper`; and `NAME` of `memory:NAME`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path without the slash that separates it from the hosts: a database, a prefix, a
    /// master's name. Empty when there is none.
    pub fn below_hosts(&self) -> &str {
        self.path.strip_prefix('/').unwrap_or(&self.path)
    }

    /// The path of a store that has no hosts.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when there are hosts: `sqlite://file` names a host, and
    /// was meant as `sqlite:file`.
    pub fn local_path(&self) -> Result<&str> {
        match self.hosts.is_empty() {
            true => Ok(&self.path),
            false => Err(bad(format!(
                "{0}: has no hosts, and // begins one; write {0}:NAME or {0}:/PATH",
                self.scheme
            ))),
        }
    }

    /// The words that all stores share.
    pub fn common(&self) -> &Common {
        &self.common
    }

    /// Takes the value of a word of the store's own. Common words are never found here.
    pub fn take(&mut self, word: &str) -> Option<String> {
        self.words.take(word)
    }

    /// Takes the value of a word, read as a `T`. `expected` ends the sentence "write …" of the
    /// error: "a number".
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when it cannot be read. The value is not shown.
    pub fn take_parsed<T: FromStr>(
        &mut self,
        word: &str,
        expected: impl Display,
    ) -> Result<Option<T>> {
        let refused = |_| bad(format!("{word}= is not understood; write {expected}"));
        self.take(word)
            .map(|value| value.parse().map_err(refused))
            .transpose()
    }

    /// Takes the value of a word, read by [`parse_duration`](crate::parse_duration).
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when it is not a duration. The value is not shown.
    pub fn take_duration(&mut self, word: &str) -> Result<Option<std::time::Duration>> {
        self.take(word)
            .map(|value| query::duration(word, &value))
            .transpose()
    }

    /// Refuses the words that the store has not taken. `known` are all words that the store has of
    /// its own, for the message.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config), naming the first such word, the ones that are
    /// accepted, and the one that was perhaps meant.
    pub fn finish(&self, known: &[&str]) -> Result<()> {
        self.words.refuse_rest(&self.scheme, known)
    }
}

impl StoreUrl {
    /// Two URLs with the same identity lead to the same locks. The reverse is not certain: a server
    /// has many names. `None` for a store that no other client can reach.
    pub(crate) fn identity(&self) -> Option<String> {
        let Common {
            format,
            prefix,
            names,
            ..
        } = &self.common;
        let scheme = match self.scheme.as_str() {
            "postgresql" => "postgres",
            "mariadb" => "mysql",
            other => other,
        };
        let port = match scheme {
            "postgres" => 5432,
            "mysql" => 3306,
            "redis+sentinel" | "rediss+sentinel" => 26379,
            "etcd" | "etcds" => 2379,
            "zk" => 2181,
            "zks" => 2281,
            _ => 6379,
        };
        let hosts = self.hosts.iter().map(|host| host.with_default_port(port));
        let mut hosts: Vec<String> = hosts.map(|host| host.to_string()).collect();
        hosts.sort_unstable();
        // The defaults, so that a URL which spells them out is the same.
        let format = format
            .as_deref()
            .or_else(|| stores::default_format(&self.scheme));
        let (default_prefix, default_names) = match format {
            Some("palisade") => ("palisade", Names::Escaped),
            Some("simple") => ("", Names::Exact),
            _ => ("", Names::Escaped),
        };
        let prefix = prefix.as_deref().unwrap_or(default_prefix);
        let names = names.unwrap_or(default_names);
        let path = match self.scheme.as_str() {
            "memory" if self.path.is_empty() => return None,
            // The number of the database.
            "redis+sentinel" | "rediss+sentinel" if self.path.matches('/').count() < 2 => {
                format!("{}/0", self.path)
            }
            scheme if scheme.starts_with("redis") && self.path.len() < 2 => "/0".to_owned(),
            // A file has many names, too.
            "sqlite" => format!(
                "{:?}",
                std::fs::canonicalize(&self.path)
                    .or_else(|_| std::path::absolute(&self.path))
                    .ok()?
            ),
            _ => self.path.clone(),
        };
        // Other tables are other locks.
        let tables = ["schema", "table"].map(|word| self.words.look_up(word));
        Some(format!(
            "{scheme}:{hosts:?} {path} {format:?} {prefix:?} {names:?} {tables:?}"
        ))
    }
}

fn bad(what: impl Display) -> Error {
    Error::bad_url(format!("bad store URL: {what}"))
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<StoreUrl> {
        StoreUrl::parse(text)
    }
}

/// The characters to escape so that the path reads back as the same path.
const PATH: &AsciiSet = &CONTROLS
    .add(b'%')
    .add(b'?')
    .add(b'#')
    .add(b'@')
    .add(b' ')
    .add(b'"')
    .add(b'\'');

impl Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        // Without the empty authority, the path of `sqlite:////path` would read back as a host.
        if !self.hosts.is_empty() || self.path.starts_with("//") {
            f.write_str("//")?;
        }
        if self.user.is_some() || self.password.is_some() {
            f.write_str("***@")?;
        }
        host::write_list(&self.hosts, f)?;
        match self.path.rsplit_once('@') {
            // Perhaps `redis:/user:password@host`, with a slash forgotten.
            Some((_, after)) if self.hosts.is_empty() => {
                write!(f, "***@{}", utf8_percent_encode(after, PATH))?
            }
            _ => utf8_percent_encode(&self.path, PATH).fmt(f)?,
        }
        self.words.fmt(f)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}
