//! How names become keys: below the path of the URL, verbatim or escaped.

use crate::error::{Error, Result};
use crate::name::Name;
use crate::url::StoreUrl;

/// The longest mapped name. No name of 512 bytes is longer when it is escaped, so every key can be
/// read back.
pub(crate) const NAME_LIMIT: usize = 3 * Name::LONGEST;

/// The mapping of one URL.
pub(crate) struct Names {
    /// The beginning of every key: empty, or the path with a slash at its end.
    prefix: String,
    exact: bool,
}

impl Names {
    pub(crate) fn read(url: &StoreUrl) -> Result<Names> {
        if url.common().prefix.is_some() {
            return Err(Error::bad_url(
                "bad store URL: on etcd the prefix is the path; write etcd://host/prefix",
            ));
        }
        let path = url.below_hosts().trim_end_matches('/');
        let prefix = if path.is_empty() {
            String::new()
        } else {
            format!("{path}/")
        };
        Ok(Names {
            prefix,
            exact: url.common().exact_names(),
        })
    }

    fn mapped(&self, name: &str) -> String {
        match Name::new(name) {
            Ok(name) if !self.exact => name.mapped(NAME_LIMIT),
            _ => name.to_owned(),
        }
    }

    /// The beginning of the keys of all names that begin with `beginning`.
    pub(crate) fn names_from(&self, beginning: &str) -> String {
        // The mapping of a beginning depends on nothing that follows it.
        format!("{}{}", self.prefix, self.mapped(beginning))
    }

    /// The beginning of all keys of a name.
    pub(crate) fn line(&self, name: &Name) -> String {
        format!("{}{}/", self.prefix, self.mapped(name.as_str()))
    }

    /// The name that a key belongs to; `None` for a foreign key.
    pub(crate) fn name(&self, key: &[u8]) -> Option<Name> {
        let below = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (mapped, _) = below.rsplit_once('/')?;
        if self.exact {
            Name::new(mapped).ok()
        } else {
            Name::unmapped(mapped)
        }
    }
}
