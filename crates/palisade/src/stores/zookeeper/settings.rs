//! What the URL says about the locks: which format to use, and where the nodes are.

use std::sync::Arc;

use super::client;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::url::StoreUrl;

/// How locks are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// As the recipes of Apache Curator.
    Curator,
    /// As the recipes of kazoo.
    Kazoo,
    /// One ephemeral node, and no line.
    Plain,
}

pub(super) struct Settings {
    pub(super) client: Arc<client::Settings>,
    pub(super) format: Format,
    /// Stands before every name: empty, or a path without a slash at its end.
    pub(super) chroot: String,
    exact_names: bool,
}

/// The longest mapped name. No name of 512 bytes is longer when it is escaped, so every node can be
/// read back.
const NAME_LIMIT: usize = 3 * Name::LONGEST;

impl Settings {
    pub(super) fn read(mut url: StoreUrl) -> Result<Settings> {
        let client = Arc::new(client::Settings::read(&mut url)?);
        let common = url.common();
        let format = match common.format.as_deref() {
            None | Some("curator") => Format::Curator,
            Some("kazoo") => Format::Kazoo,
            Some("plain") => Format::Plain,
            Some(_) => {
                return Err(Error::bad_url(
                    "bad store URL: format= of zk: is curator, kazoo or plain",
                ));
            }
        };
        Ok(Settings {
            client,
            format,
            chroot: chroot(url.below_hosts())?,
            exact_names: common.exact_names(),
        })
    }

    /// A name as it stands in a path.
    fn mapped(&self, name: &Name) -> String {
        if self.exact_names {
            name.as_str().to_owned()
        } else {
            name.mapped(NAME_LIMIT)
        }
    }

    /// The node of a name.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for an exact name that is no path.
    pub(super) fn dir(&self, name: &Name) -> Result<String> {
        if self.exact_names {
            check_path(name.as_str().trim_start_matches('/')).map_err(|what| {
                Error::config(format!(
                    "{name} cannot be a node of ZooKeeper: {what}; leave out names=exact"
                ))
            })?;
            return Ok(format!(
                "{}/{}",
                self.chroot,
                name.as_str().trim_start_matches('/')
            ));
        }
        Ok(format!("{}/{}", self.chroot, self.mapped(name)))
    }

    /// The name of a node below the chroot; `None` for one that no name maps to.
    pub(super) fn name(&self, node: &str) -> Option<Name> {
        if self.exact_names {
            Name::new(node).ok()
        } else {
            Name::unmapped(node)
        }
    }

    /// The node whose children are the names.
    pub(super) fn root(&self) -> &str {
        if self.chroot.is_empty() {
            "/"
        } else {
            &self.chroot
        }
    }
}

fn chroot(path: &str) -> Result<String> {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    check_path(path).map_err(|what| {
        Error::bad_url(format!("bad store URL: its path cannot be a node: {what}"))
    })?;
    Ok(format!("/{path}"))
}

/// Refuses what ZooKeeper would refuse in a path.
fn check_path(path: &str) -> Result<(), &'static str> {
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("a part of it is empty or of dots");
    }
    if path.chars().any(|letter| {
        letter.is_control() || matches!(letter, '\u{f000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
    }) {
        return Err("it has a character that ZooKeeper does not take");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Settings> {
        Settings::read(url.parse().expect("a URL"))
    }

    fn dir(url: &str, name: &str) -> Result<String> {
        read(url)?.dir(&Name::new(name)?)
    }

    #[test]
    fn names_are_nodes_below_the_path() {
        assert_eq!(dir("zk://h1,h2:7", "mixed").ok().as_deref(), Some("/mixed"));
        assert_eq!(
            dir("zk://h/a/b/", "x/y").ok().as_deref(),
            Some("/a/b/x%2fy")
        );
        assert_eq!(
            dir("zk://h/a?names=exact", "x/y").ok().as_deref(),
            Some("/a/x/y")
        );
        assert!(dir("zk://h?names=exact", "x//y").is_err());
        assert!(dir("zk://h?names=exact", "x\ny").is_err());
        assert!(read("zk://h/a//b").is_err() && read("zk://h/a/../b").is_err());
    }

    #[test]
    fn a_format_has_a_name() {
        assert!(read("zk://h?format=palisade").is_err());
        assert_eq!(
            read("zk://h?format=kazoo")
                .map(|settings| settings.format)
                .ok(),
            Some(Format::Kazoo)
        );
    }
}
