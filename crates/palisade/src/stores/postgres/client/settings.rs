//! The part of the URL that is about connections.

use std::time::Duration;

use tokio_rustls::TlsConnector;

use crate::error::{Error, Result};
use crate::stores::tls::Pems;
use crate::url::{Host, Secret, StoreUrl};

/// PostgreSQL's own port.
const PORT: u16 = 5432;

pub(crate) struct ClientSettings {
    pub(super) hosts: Vec<Host>,
    pub(super) user: Secret,
    pub(super) password: Option<Secret>,
    pub(super) database: String,
    /// `None` without TLS.
    pub(super) tls: Option<TlsConnector>,
    /// Whether a connection must be a session of the server that no other client has.
    pub(super) own_sessions: bool,
    pub(super) connect_timeout: Duration,
    /// How long one request may take.
    pub(crate) request_timeout: Duration,
}

impl ClientSettings {
    pub(crate) fn read(url: &mut StoreUrl) -> Result<ClientSettings> {
        let hosts = url.endpoints(PORT)?;
        let user = url.user().cloned().ok_or_else(|| {
            Error::bad_url(
                "bad store URL: postgres: needs a user; write postgres://USER:PASSWORD@HOST/DATABASE",
            )
        })?;
        let database = match url.below_hosts() {
            "" => user.reveal().to_owned(),
            name if name.contains('/') => {
                return Err(Error::bad_url(
                    "bad store URL: the path of postgres: is the name of one database",
                ));
            }
            name => name.to_owned(),
        };
        let word = url.take("sslmode");
        let common = url.common();
        let named = common.ca.is_some() || common.cert.is_some();
        let encrypted = match word.as_deref() {
            None => named,
            Some("disable") if !named => false,
            Some("verify-full") => true,
            Some(_) => {
                return Err(Error::bad_url(
                    "bad store URL: sslmode= is disable or verify-full; the others do not check \
                     which server answers. ca= alone is verify-full, too",
                ));
            }
        };
        let tls = encrypted
            .then(|| Pems::read(common)?.connector())
            .transpose()?;
        Ok(ClientSettings {
            hosts,
            user,
            password: url.password().cloned(),
            database,
            tls,
            own_sessions: false,
            connect_timeout: common.connect_timeout,
            request_timeout: common.request_timeout,
        })
    }

    /// The same, where state of a session matters: a pooler is refused.
    pub(crate) fn with_own_sessions(self) -> ClientSettings {
        ClientSettings {
            own_sessions: true,
            ..self
        }
    }
}
