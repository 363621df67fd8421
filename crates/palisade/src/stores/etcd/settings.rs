//! What the URL says: where the members are, how to log in, which format to use, and where the keys are.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, Result};
use crate::name::Name;
use crate::stores::tls::Pems;
use crate::url::{Host, Secret, StoreUrl};

/// How locks are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// As `concurrency.Mutex` of etcd's own Go client, and so `etcdctl lock`.
    Mutex,
    /// The same keys, made only while the name is free: nobody stands in line.
    Plain,
}

pub(super) struct Settings {
    pub(super) hosts: Vec<Host>,
    pub(super) format: Format,
    pub(super) login: Option<(Secret, Secret)>,
    tls: Option<ClientTlsConfig>,
    /// What stands before every name: empty, or the path with a slash at its end.
    prefix: String,
    exact_names: bool,
    connect_timeout: Duration,
    pub(super) request_timeout: Duration,
}

/// The longest mapped name. No name of 512 bytes is longer when it is escaped, so every key can be read back.
pub(super) const NAME_LIMIT: usize = 3 * Name::LONGEST;

/// After how long without a word the system asks whether a connection is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Between two pings of a connection. A server refuses a client that pings it more often than every five seconds.
const PING: Duration = Duration::from_secs(6);
/// How long a ping may stay unanswered.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

impl Settings {
    pub(super) fn read(url: &StoreUrl) -> Result<Settings> {
        let hosts = url.endpoints(2379)?;
        url.finish(&[])?;
        let common = url.common();
        if common.prefix.is_some() {
            return Err(Error::bad_url("bad store URL: on etcd the prefix is the path; write etcd://host/prefix"));
        }
        let format = match common.format.as_deref() {
            None | Some("mutex") => Format::Mutex,
            Some("plain") => Format::Plain,
            Some(_) => return Err(Error::bad_url("bad store URL: format= of etcd: is mutex or plain")),
        };
        let login = match (url.user(), url.password()) {
            (Some(user), Some(password)) if !user.reveal().is_empty() => Some((user.clone(), password.clone())),
            (None, None) => None,
            _ => return Err(Error::bad_url("bad store URL: etcd wants a user and a password; write etcd://user:password@host")),
        };
        let path = url.below_hosts().trim_end_matches('/');
        Ok(Settings {
            hosts,
            format,
            login,
            tls: tls(url)?,
            prefix: if path.is_empty() { String::new() } else { format!("{path}/") },
            exact_names: common.exact_names,
            connect_timeout: common.connect_timeout,
            request_timeout: common.request_timeout,
        })
    }

    fn mapped(&self, name: &str) -> String {
        match Name::new(name) {
            Ok(name) if !self.exact_names => name.mapped(NAME_LIMIT),
            _ => name.to_owned(),
        }
    }

    /// What the keys of all names begin with that begin so.
    pub(super) fn names_from(&self, beginning: &str) -> String {
        // What a beginning is mapped to depends on nothing that follows it.
        format!("{}{}", self.prefix, self.mapped(beginning))
    }

    /// What the keys of a line begin with.
    pub(super) fn line(&self, name: &Name) -> String {
        format!("{}{}/", self.prefix, self.mapped(name.as_str()))
    }

    /// The name of the line that a key stands in; `None` for a key that is nobody's.
    pub(super) fn name(&self, key: &[u8]) -> Option<Name> {
        let below = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (mapped, _) = below.rsplit_once('/')?;
        if self.exact_names { Name::new(mapped).ok() } else { Name::unmapped(mapped) }
    }

    /// How to connect to a member.
    pub(super) fn endpoint(&self, host: &Host) -> Result<Endpoint> {
        let refused = |cause: tonic::transport::Error| {
            Error::bad_url(format!("{host}: the connection cannot be set up; check ca=, cert= and key=")).with_source(cause)
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
            .map_err(refused)?
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING_TIMEOUT)
            .tcp_keepalive(Some(KEEP_ALIVE))
            .connect_timeout(self.connect_timeout)
            // A server refuses pings on a connection without streams; ours has one whenever something waits or is held.
            .keep_alive_while_idle(false);
        match &self.tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(refused),
            None => Ok(endpoint),
        }
    }
}

fn tls(url: &StoreUrl) -> Result<Option<ClientTlsConfig>> {
    let common = url.common();
    if url.scheme() != "etcds" {
        return match (&common.ca, &common.cert, &common.key) {
            (None, None, None) => Ok(None),
            _ => Err(Error::bad_url("bad store URL: ca=, cert= and key= are for TLS; write etcds: instead of etcd:")),
        };
    }
    let pems = Pems::read(common)?;
    let tls = match pems.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(Some(match pems.own {
        Some((cert, key)) => tls.identity(Identity::from_pem(cert, key)),
        None => tls,
    }))
}
