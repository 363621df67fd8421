//! What the URL says: where the servers are, how to log in, which format to use, and where the nodes are.

use std::time::Duration;

use super::proto::Acl;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::url::{Host, Secret, StoreUrl};

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

/// Who we are to the servers, and how they are told.
pub(super) struct Login {
    pub(super) scheme: Scheme,
    pub(super) user: Secret,
    pub(super) password: Secret,
}

/// Their names for a way to log in, as they stand before the colon of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// The password itself is sent. A server takes every one of them: what another has made is out of reach by a wrong one.
    Digest,
    /// SASL with DIGEST-MD5: a proof of the password is sent, and the server knows its users.
    Sasl,
}

pub(super) struct Settings {
    pub(super) hosts: Vec<Host>,
    pub(super) format: Format,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<super::tls::Tls>,
    /// What stands before every name: empty, or the path without a slash at its end.
    pub(super) chroot: String,
    exact_names: bool,
    /// By how much our clock and the servers' may differ in speed.
    pub(super) drift: f64,
    pub(super) connect_timeout: Duration,
    pub(super) request_timeout: Duration,
}

/// The longest mapped name. No name of 512 bytes is longer when it is escaped, so every node can be read back.
pub(super) const NAME_LIMIT: usize = 3 * Name::LONGEST;

impl Settings {
    pub(super) fn read(mut url: StoreUrl) -> Result<Settings> {
        let tls = super::tls::Tls::of(&url)?;
        let hosts = url.endpoints(if tls.is_some() { 2281 } else { 2181 })?;
        let scheme = scheme(url.take("auth").as_deref())?;
        url.finish(&["auth"])?;
        let common = url.common();
        if common.prefix.is_some() {
            return Err(Error::bad_url("bad store URL: on ZooKeeper the prefix is the path; write zk://host/prefix"));
        }
        let format = match common.format.as_deref() {
            None | Some("curator") => Format::Curator,
            Some("kazoo") => Format::Kazoo,
            Some("plain") => Format::Plain,
            Some(_) => return Err(Error::bad_url("bad store URL: format= of zk: is curator, kazoo or plain")),
        };
        let login = match (url.user(), url.password()) {
            (Some(user), Some(password)) if !user.reveal().is_empty() => {
                Some(Login { scheme: scheme.unwrap_or(Scheme::Digest), user: user.clone(), password: password.clone() })
            }
            (None, None) if scheme.is_none() => None,
            _ => {
                return Err(Error::bad_url(
                    "bad store URL: ZooKeeper wants a user and a password; write zk://user:password@host",
                ));
            }
        };
        Ok(Settings {
            hosts,
            format,
            login,
            tls,
            chroot: chroot(url.below_hosts())?,
            exact_names: common.exact_names,
            drift: common.drift,
            connect_timeout: common.connect_timeout,
            request_timeout: common.request_timeout,
        })
    }

    /// Who may do what with our nodes: with a login, only that login.
    pub(super) fn acl(&self) -> Acl {
        if self.login.is_some() { Acl::Creator } else { Acl::Open }
    }

    /// A name as it stands in a path.
    pub(super) fn mapped(&self, name: &Name) -> String {
        if self.exact_names { name.as_str().to_owned() } else { name.mapped(NAME_LIMIT) }
    }

    /// The node of a name.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for an exact name that is no path.
    pub(super) fn dir(&self, name: &Name) -> Result<String> {
        if self.exact_names {
            check_path(name.as_str().trim_start_matches('/')).map_err(|what| {
                Error::config(format!("{name:?} cannot be a node of ZooKeeper: {what}; leave out names=exact"))
            })?;
            return Ok(format!("{}/{}", self.chroot, name.as_str().trim_start_matches('/')));
        }
        Ok(format!("{}/{}", self.chroot, self.mapped(name)))
    }

    /// The name of a node below the chroot; `None` for one that is nobody's.
    pub(super) fn name(&self, node: &str) -> Option<Name> {
        if self.exact_names { Name::new(node).ok() } else { Name::unmapped(node) }
    }

    /// The node whose children are the names.
    pub(super) fn root(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }
}

fn scheme(word: Option<&str>) -> Result<Option<Scheme>> {
    match word {
        None => Ok(None),
        Some("digest") => Ok(Some(Scheme::Digest)),
        Some("sasl") if cfg!(feature = "zookeeper-sasl") => Ok(Some(Scheme::Sasl)),
        Some("sasl") => Err(Error::bad_url("auth=sasl is not compiled in; build with the feature zookeeper-sasl")),
        Some(_) => Err(Error::bad_url("bad store URL: auth= of zk: is digest or sasl")),
    }
}

fn chroot(path: &str) -> Result<String> {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    check_path(path).map_err(|what| Error::bad_url(format!("bad store URL: its path cannot be a node: {what}")))?;
    Ok(format!("/{path}"))
}

/// What ZooKeeper refuses in a path, before it does.
fn check_path(path: &str) -> Result<(), &'static str> {
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("a part of it is empty or of dots");
    }
    if path.chars().any(|letter| letter.is_control() || matches!(letter, '\u{f000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')) {
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
        assert_eq!(dir("zk://h/a/b/", "x/y").ok().as_deref(), Some("/a/b/x%2fy"));
        assert_eq!(dir("zk://h/a?names=exact", "x/y").ok().as_deref(), Some("/a/x/y"));
        assert!(dir("zk://h?names=exact", "x//y").is_err());
        assert!(dir("zk://h?names=exact", "x\ny").is_err());
        assert!(read("zk://h/a//b").is_err() && read("zk://h/a/../b").is_err());
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for url in ["zk://h?prefix=a", "zk://h?format=palisade", "zk://user@h", "zk://h?ca=/x", "zk:", "zk://h?tick=1"] {
            assert!(read(url).is_err(), "{url}");
        }
        for url in ["zk://h?auth=digest", "zk://me:pw@h?auth=x509", "zk://me@h?auth=digest"] {
            assert!(read(url).is_err(), "{url}");
        }
        assert_eq!(read("zk://h?format=kazoo").map(|settings| settings.format).ok(), Some(Format::Kazoo));
        assert_eq!(read("zk://me:pw@h").map(|settings| settings.acl()).ok(), Some(Acl::Creator));
        let scheme = |url| read(url).ok().and_then(|settings| settings.login).map(|login| login.scheme);
        assert_eq!(scheme("zk://me:pw@h"), Some(Scheme::Digest));
        assert_eq!(scheme("zk://me:pw@h?auth=digest"), Some(Scheme::Digest));
        assert_eq!(scheme("zk://me:pw@h?auth=sasl"), cfg!(feature = "zookeeper-sasl").then_some(Scheme::Sasl));
    }
}
