//! The part of the URL that is for the client: where the servers are, and how to log in.

use std::time::Duration;

use tokio_rustls::TlsConnector;

use super::address::Address;
use crate::error::{Error, Result};
use crate::stores::tls::Pems;
use crate::url::{Host, Secret, StoreUrl};

/// The deployment.
#[derive(Clone, Debug)]
pub(super) enum Site {
    /// One server.
    Single(Address),
    /// A primary with replicas, watched by sentinels.
    Sentinel {
        sentinels: Vec<Address>,
        master: String,
    },
    /// Many primaries, each with a part of the keys.
    Cluster(Vec<Address>),
}

/// A user, and the database to use.
#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) user: Option<Secret>,
    pub(super) password: Option<Secret>,
    pub(super) db: i64,
}

#[derive(Clone)]
pub(crate) struct ClientSettings {
    pub(super) site: Site,
    /// Whether a replica is no server for this client, now or later: it is one of several servers
    /// that must not depend on each other.
    pub(super) independent: bool,
    /// How many replicas must have a write before it counts; `None`: one, where there are any.
    pub(super) replicas: Option<usize>,
    /// At the servers that have the keys.
    pub(super) login: Login,
    /// At the sentinels, which have users of their own and no databases.
    pub(super) sentinel_login: Login,
    /// `None`: in the clear.
    pub(super) tls: Option<TlsConnector>,
    pub(super) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
}

impl Login {
    fn at_servers(url: &StoreUrl, db: i64) -> Login {
        Login {
            user: url.user().cloned().filter(|user| !user.reveal().is_empty()),
            password: url.password().cloned(),
            db,
        }
    }
}

/// The words of the URL that are for the client.
const WORDS: [&str; 5] = [
    "replicas",
    "sentinel_user",
    "sentinel_password",
    "fair",
    "fenced",
];

impl ClientSettings {
    /// Takes its words from the URL, and checks that there are no others.
    pub(crate) fn read(url: &mut StoreUrl) -> Result<ClientSettings> {
        let sentinel = url.scheme().ends_with("+sentinel");
        let addresses: Vec<Address> = url
            .endpoints(if sentinel { 26379 } else { 6379 })?
            .iter()
            .map(Address::of)
            .collect();
        let replicas = url.take_parsed("replicas", "a number of replicas, from 0")?;
        let mut sentinel_login = Login::default();
        if sentinel {
            sentinel_login.user = url
                .take("sentinel_user")
                .map(Secret::new)
                .filter(|user| !user.reveal().is_empty());
            sentinel_login.password = url.take("sentinel_password").map(Secret::new);
        }
        url.finish(&WORDS)?;
        let (site, db) = site(url, addresses)?;
        Ok(ClientSettings {
            site,
            independent: false,
            replicas,
            login: Login::at_servers(url, db),
            sentinel_login,
            tls: tls(url)?,
            connect_timeout: url.common().connect_timeout,
            request_timeout: url.common().request_timeout,
        })
    }

    /// The settings for each of several independent servers. The words of the URL were taken.
    pub(crate) fn of_each(url: &StoreUrl) -> Result<Vec<(Address, ClientSettings)>> {
        let (db, tls) = (database(url.below_hosts())?, tls(url)?);
        let each = |host: &Host| {
            let address = Address::of(host);
            let settings = ClientSettings {
                site: Site::Single(address.clone()),
                independent: true,
                replicas: Some(0),
                login: Login::at_servers(url, db),
                sentinel_login: Login::default(),
                tls: tls.clone(),
                connect_timeout: url.common().connect_timeout,
                request_timeout: url.common().request_timeout,
            };
            (address, settings)
        };
        Ok(url.endpoints(6379)?.iter().map(each).collect())
    }

    /// The number of the database.
    pub(crate) fn db(&self) -> i64 {
        self.login.db
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.site, Site::Cluster(_))
    }
}

fn site(url: &StoreUrl, addresses: Vec<Address>) -> Result<(Site, i64)> {
    let path = url.below_hosts();
    if url.scheme().ends_with("+sentinel") {
        let (master, db) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(Error::bad_url(
                "bad store URL: the sentinels' name of the primary is missing; write redis+sentinel://h1,h2,h3/master",
            ));
        }
        return Ok((
            Site::Sentinel {
                sentinels: addresses,
                master: master.to_owned(),
            },
            database(db)?,
        ));
    }
    if url.scheme().ends_with("+cluster") {
        return match database(path)? {
            0 => Ok((Site::Cluster(addresses), 0)),
            _ => Err(Error::bad_url(
                "bad store URL: a cluster has only the database 0",
            )),
        };
    }
    let db = database(path)?;
    match <[Address; 1]>::try_from(addresses) {
        Ok([address]) => Ok((Site::Single(address), db)),
        Err(_) => Err(Error::bad_url(
            "bad store URL: redis: is one server; write redis+sentinel://h1,h2/master or redis+cluster://h1,h2 for several",
        )),
    }
}

fn database(text: &str) -> Result<i64> {
    match text {
        "" => Ok(0),
        number => number.parse().ok().filter(|number| *number >= 0).ok_or_else(|| {
            Error::bad_url("bad store URL: after the hosts stands the number of a database, as in redis://host/0")
        }),
    }
}

fn tls(url: &StoreUrl) -> Result<Option<TlsConnector>> {
    let common = url.common();
    if matches!(
        url.scheme(),
        "rediss" | "rediss+sentinel" | "rediss+cluster" | "redlocks"
    ) {
        return Pems::read(common)?.connector().map(Some);
    }
    match (&common.ca, &common.cert, &common.key) {
        (None, None, None) => Ok(None),
        _ => Err(Error::bad_url(format!(
            "bad store URL: ca=, cert= and key= are for TLS; write {}: instead of {}:",
            if url.scheme() == "redlock" {
                "redlocks"
            } else {
                "rediss"
            },
            url.scheme()
        ))),
    }
}
