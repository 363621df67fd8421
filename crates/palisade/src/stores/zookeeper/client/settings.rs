//! What the URL says about the servers: where they are, how to log in, and how long to wait for
//! them.

use std::time::Duration;

use super::proto::Acl;
use super::tls::Tls;
use crate::error::{Error, Result};
use crate::url::{Host, Secret, StoreUrl};

/// The user of a login, and how the servers are told.
pub(super) struct Login {
    pub(super) scheme: Scheme,
    pub(super) user: Secret,
    pub(super) password: Secret,
}

/// ZooKeeper's names for a way to log in, as they stand before the colon of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// The password itself is sent. A server takes every password: a wrong one cannot reach the
    /// nodes made with another.
    Digest,
    /// SASL with DIGEST-MD5: a proof of the password is sent, and the server knows its users.
    Sasl,
}

pub(crate) struct Settings {
    pub(super) hosts: Vec<Host>,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Tls>,
    /// By how much our clock and the servers' may differ in speed.
    pub(crate) drift: f64,
    pub(super) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
}

impl Settings {
    pub(crate) fn read(url: &mut StoreUrl) -> Result<Settings> {
        let tls = Tls::of(url)?;
        let hosts = url.endpoints(if tls.is_some() { 2281 } else { 2181 })?;
        let scheme = scheme(url.take("auth").as_deref())?;
        url.finish(&["auth"])?;
        let common = url.common();
        if common.prefix.is_some() {
            return Err(Error::bad_url(
                "bad store URL: on ZooKeeper the prefix is the path; write zk://host/prefix",
            ));
        }
        let login = match (url.user(), url.password()) {
            (Some(user), Some(password)) if !user.reveal().is_empty() => Some(Login {
                scheme: scheme.unwrap_or(Scheme::Digest),
                user: user.clone(),
                password: password.clone(),
            }),
            (None, None) if scheme.is_none() => None,
            _ => {
                return Err(Error::bad_url(
                    "bad store URL: ZooKeeper wants a user and a password; write zk://user:password@host",
                ));
            }
        };
        let (drift, connect_timeout, request_timeout) =
            (common.drift, common.connect_timeout, common.request_timeout);
        Ok(Settings {
            hosts,
            login,
            tls,
            drift,
            connect_timeout,
            request_timeout,
        })
    }

    /// The rights on nodes that we make: with a login, all rights for that login only.
    pub(crate) fn acl(&self) -> Acl {
        if self.login.is_some() {
            Acl::Creator
        } else {
            Acl::Open
        }
    }
}

fn scheme(word: Option<&str>) -> Result<Option<Scheme>> {
    match word {
        None => Ok(None),
        Some("digest") => Ok(Some(Scheme::Digest)),
        Some("sasl") if cfg!(feature = "zookeeper-sasl") => Ok(Some(Scheme::Sasl)),
        Some("sasl") => Err(Error::bad_url(
            "auth=sasl is not compiled in; build with the feature zookeeper-sasl",
        )),
        Some(_) => Err(Error::bad_url(
            "bad store URL: auth= of zk: is digest or sasl",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Settings> {
        Settings::read(&mut url.parse().expect("a URL"))
    }

    #[test]
    fn a_url_that_cannot_work_is_refused() {
        for url in [
            "zk://h?prefix=a",
            "zk://user@h",
            "zk://h?ca=/x",
            "zk:",
            "zk://h?tick=1",
        ] {
            assert!(read(url).is_err(), "{url}");
        }
        for url in [
            "zk://h?auth=digest",
            "zk://me:pw@h?auth=x509",
            "zk://me@h?auth=digest",
        ] {
            assert!(read(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_login_has_a_scheme() {
        assert_eq!(
            read("zk://me:pw@h").map(|settings| settings.acl()).ok(),
            Some(Acl::Creator)
        );
        let scheme = |url| {
            read(url)
                .ok()
                .and_then(|settings| settings.login)
                .map(|login| login.scheme)
        };
        assert_eq!(scheme("zk://me:pw@h"), Some(Scheme::Digest));
        assert_eq!(scheme("zk://me:pw@h?auth=digest"), Some(Scheme::Digest));
        assert_eq!(
            scheme("zk://me:pw@h?auth=sasl"),
            cfg!(feature = "zookeeper-sasl").then_some(Scheme::Sasl)
        );
    }
}
