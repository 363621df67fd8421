//! What the URL says of the connection: the members, the login, TLS and time-outs.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, Result};
use crate::stores::tls::Pems;
use crate::url::{Host, Secret, StoreUrl};

/// Where the members are, and how to connect to them.
pub(crate) struct Endpoints {
    pub(crate) hosts: Vec<Host>,
    pub(crate) login: Option<(Secret, Secret)>,
    tls: Option<ClientTlsConfig>,
    connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
}

/// After how long without traffic the kernel probes a connection.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Between two HTTP/2 pings. A server closes the connection of a client that pings more often than
/// every five seconds.
const PING: Duration = Duration::from_secs(6);
/// How long a ping may stay unanswered.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

impl Endpoints {
    pub(crate) fn read(url: &StoreUrl) -> Result<Endpoints> {
        let hosts = url.endpoints(2379)?;
        url.finish(&[])?;
        let login = match (url.user(), url.password()) {
            (Some(user), Some(password)) if !user.reveal().is_empty() => {
                Some((user.clone(), password.clone()))
            }
            (None, None) => None,
            _ => {
                return Err(Error::bad_url(
                    "bad store URL: etcd wants a user and a password; write etcd://user:password@host",
                ));
            }
        };
        let common = url.common();
        let (connect_timeout, request_timeout) = (common.connect_timeout, common.request_timeout);
        Ok(Endpoints {
            hosts,
            login,
            tls: tls(url)?,
            connect_timeout,
            request_timeout,
        })
    }

    /// How to connect to a member.
    pub(crate) fn endpoint(&self, host: &Host) -> Result<Endpoint> {
        let refused = |cause: tonic::transport::Error| {
            Error::bad_url(format!(
                "{host}: the connection cannot be set up; check ca=, cert= and key="
            ))
            .with_source(cause)
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
            .map_err(refused)?
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING_TIMEOUT)
            .tcp_keepalive(Some(TCP_KEEP_ALIVE))
            .connect_timeout(self.connect_timeout)
            // A server refuses pings on a connection without streams; ours has one whenever
            // something waits or is held.
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
            _ => Err(Error::bad_url(
                "bad store URL: ca=, cert= and key= are for TLS; write etcds: instead of etcd:",
            )),
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
