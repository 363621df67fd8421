//! The part of the URL that is for the client: where the servers are, and how to log in.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mysql_async::{ClientIdentity, SslOpts};

use crate::error::{Error, Result};
use crate::stores::tls::Pems;
use crate::url::{Host, Secret, StoreUrl};

pub(crate) struct ClientSettings {
    pub(super) hosts: Vec<Host>,
    pub(super) user: Secret,
    pub(super) password: Option<Secret>,
    pub(super) database: Option<String>,
    /// `None`: in the clear.
    pub(super) tls: Option<SslOpts>,
    /// Whether sessions stay in the time zone of the server, instead of UTC.
    pub(crate) keeps_zone: bool,
    pub(super) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    /// The server that took a connection last.
    pub(super) last_host: AtomicUsize,
    /// Whether a login has shown a proxy between.
    pub(super) proxied: AtomicBool,
}

impl ClientSettings {
    /// Takes its words from the URL: `tls=`.
    pub(crate) fn read(url: &mut StoreUrl) -> Result<ClientSettings> {
        let hosts = url.endpoints(3306)?;
        let user = url.user().cloned().filter(|user| !user.reveal().is_empty());
        let user = user.ok_or_else(|| {
            Error::bad_url(format!(
                "bad store URL: a user is missing; write {}://user:password@host/database",
                url.scheme()
            ))
        })?;
        let database = Some(url.below_hosts()).filter(|path| !path.is_empty());
        let database = database.map(str::to_owned);
        let tls = tls(url)?;
        Ok(ClientSettings {
            hosts,
            user,
            password: url.password().cloned(),
            database,
            tls,
            keeps_zone: false,
            connect_timeout: url.common().connect_timeout,
            request_timeout: url.common().request_timeout,
            last_host: AtomicUsize::new(0),
            proxied: AtomicBool::new(false),
        })
    }

    /// Whether there is a proxy between, which may lend a session for each statement.
    pub(crate) fn is_proxied(&self) -> bool {
        self.proxied.load(Ordering::Relaxed)
    }

    /// The servers, for messages.
    pub(super) fn servers(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        hosts.join(",")
    }
}

fn tls(url: &mut StoreUrl) -> Result<Option<SslOpts>> {
    let word = url.take("tls");
    let common = url.common();
    let files = common.ca.is_some() || common.cert.is_some() || common.key.is_some();
    match word.as_deref() {
        None if !files => return Ok(None),
        Some("off") if !files => return Ok(None),
        Some("off") => {
            return Err(Error::bad_url(
                "bad store URL: ca=, cert= and key= are for TLS; leave tls=off out",
            ));
        }
        None | Some("on") => {}
        Some(_) => return Err(Error::bad_url("bad store URL: tls= is on or off")),
    }
    // The driver takes the process's provider. A program may have two in it, and then none is the
    // default.
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // Another one is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    let pems = Pems::read(common)?;
    let roots = match pems.ca {
        Some(ca) => vec![ca],
        None => {
            // The driver refuses them all if it cannot read one.
            let mut store = rustls::RootCertStore::empty();
            let found = rustls_native_certs::load_native_certs().certs;
            let usable = found
                .into_iter()
                .filter(|found| store.add(found.clone()).is_ok());
            usable.map(|found| found.to_vec()).collect()
        }
    };
    let identity = pems
        .own
        .map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
    Ok(Some(
        SslOpts::default()
            .with_disable_built_in_roots(true)
            .with_root_certs(roots.into_iter().map(Into::into).collect())
            .with_client_identity(identity),
    ))
}
