//! What the URL says: where the servers are, how to log in, and which format to use.

use std::borrow::Cow;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates};
use tokio_rustls::TlsConnector;

use super::client::address::Address;
use super::client::connect::{self, Login};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::stores::tls::Pems;
use crate::url::{Secret, StoreUrl};

/// How the servers stand together.
#[derive(Debug)]
pub(super) enum Site {
    /// One server.
    Single(Address),
    /// A primary with replicas, under the eyes of sentinels.
    Sentinel { sentinels: Vec<Address>, master: String },
    /// Many primaries, each with a part of the keys.
    Cluster(Vec<Address>),
}

/// How locks are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Palisade,
    Simple,
}

pub(super) struct Settings {
    pub(super) site: Site,
    pub(super) format: Format,
    /// How to log in at the servers that have locks.
    pub(super) login: Login,
    sentinel_user: Option<Secret>,
    sentinel_password: Option<Secret>,
    tls: Option<Tls>,
    /// What stands before every key; with its colon in the format `palisade`.
    prefix: String,
    exact_names: bool,
    /// How many replicas must have a grant; `None`: one, where there are any.
    pub(super) replicas: Option<usize>,
    pub(super) connect_timeout: Duration,
    pub(super) request_timeout: Duration,
}

struct Tls {
    servers: TlsConnector,
    sentinels: TlsCertificates,
}

/// The longest mapped name. No name of 512 bytes is longer when it is escaped, so every key can be read back.
pub(super) const NAME_LIMIT: usize = 3 * Name::LONGEST;

/// What stands before the braces of a line's key.
fn line_prefix(prefix: Option<&str>) -> String {
    format!("{}:{VERSION}", prefix.unwrap_or("palisade"))
}

/// The key of a line in the format `palisade`, for whoever asks the lock itself.
pub(crate) fn line_key(prefix: Option<&str>, name: &Name, exact: bool) -> String {
    let name = if exact { name.as_str().to_owned() } else { name.mapped(NAME_LIMIT) };
    format!("{}{{{name}}}", line_prefix(prefix))
}

/// The version of the format `palisade`.
const VERSION: &str = "1:";

const WORDS: [&str; 3] = ["replicas", "sentinel_user", "sentinel_password"];

impl Settings {
    /// Whether the next in line hears of a release before whoever releases. In a cluster a word that says nothing would go to all
    /// its servers.
    pub(super) fn next_first(&self) -> bool {
        !matches!(self.site, Site::Cluster(_))
    }

    pub(super) fn read(mut url: StoreUrl) -> Result<Settings> {
        let sentinel = url.scheme().ends_with("+sentinel");
        let cluster = url.scheme().ends_with("+cluster");
        let secure = url.scheme().starts_with("rediss");
        let addresses: Vec<Address> = url.endpoints(if sentinel { 26379 } else { 6379 })?.iter().map(Address::of).collect();
        let replicas = url.take_parsed("replicas", "a number of replicas, from 0")?;
        let (sentinel_user, sentinel_password) = match sentinel {
            true => (url.take("sentinel_user").map(Secret::new), url.take("sentinel_password").map(Secret::new)),
            false => (None, None),
        };
        url.finish(&WORDS)?;
        let (site, db) = site(&url, addresses, sentinel, cluster)?;
        let common = url.common();
        let format = match common.format.as_deref() {
            None | Some("palisade") => Format::Palisade,
            Some("simple") => Format::Simple,
            Some(_) => return Err(Error::bad_url("bad store URL: format= of redis: is palisade or simple")),
        };
        let prefix = match (format, common.prefix.as_deref()) {
            (Format::Palisade, prefix) => line_prefix(prefix),
            (Format::Simple, prefix) => prefix.unwrap_or_default().to_owned(),
        };
        if prefix.contains(['{', '}']) {
            return Err(Error::bad_url("bad store URL: prefix= may not have braces: they would put every lock into one slot"));
        }
        Ok(Settings {
            site,
            format,
            login: Login {
                user: url.user().cloned().filter(|user| !user.reveal().is_empty()),
                password: url.password().cloned(),
                db,
            },
            sentinel_user,
            sentinel_password,
            tls: tls(&url, secure)?,
            prefix,
            exact_names: common.exact_names,
            replicas,
            connect_timeout: common.connect_timeout,
            request_timeout: common.request_timeout,
        })
    }

    /// The key of a name.
    pub(super) fn key(&self, name: &Name) -> String {
        let as_it_is = self.exact_names || name.is_plain();
        let mapped = if as_it_is { Cow::Borrowed(name.as_str()) } else { Cow::Owned(name.mapped(NAME_LIMIT)) };
        match self.format {
            // In braces, so that what belongs to a name can be put beside it in a cluster.
            Format::Palisade => [&self.prefix, "{", &mapped, "}"].concat(),
            Format::Simple => [self.prefix.as_str(), &mapped].concat(),
        }
    }

    /// The name of a key; `None` for a key that is not ours.
    pub(super) fn name(&self, key: &str) -> Option<Name> {
        let mapped = key.strip_prefix(&self.prefix)?;
        let mapped = match self.format {
            Format::Palisade => mapped.strip_prefix('{')?.strip_suffix('}')?,
            Format::Simple => mapped,
        };
        if self.exact_names { Name::new(mapped).ok() } else { Name::unmapped(mapped) }
    }

    /// A pattern for the keys of all names that begin so.
    pub(super) fn pattern(&self, prefix: &str) -> String {
        let glob = |text: &str| {
            text.chars().fold(String::new(), |mut glob, letter| {
                if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                    glob.push('\\');
                }
                glob.push(letter);
                glob
            })
        };
        // What the prefix is mapped to depends on nothing that follows it.
        let mapped = match Name::new(prefix) {
            Ok(prefix) if !self.exact_names => prefix.mapped(NAME_LIMIT),
            _ => prefix.to_owned(),
        };
        let brace = if self.format == Format::Palisade { "{" } else { "" };
        format!("{}{brace}{}*", glob(&self.prefix), glob(&mapped))
    }

    /// The channel of an inbox.
    pub(super) fn channel(&self, id: &str) -> String {
        match self.format {
            Format::Palisade => format!("{}inbox:{id}", self.prefix),
            Format::Simple => format!("palisade:{VERSION}inbox:{id}"),
        }
    }

    /// The channel that tells what happens to a key.
    pub(super) fn keyspace(&self, key: &str) -> String {
        format!("__keyspace@{}__:{key}", self.login.db)
    }

    /// What to speak to the servers with, if not in the clear.
    pub(super) fn tls(&self) -> Option<&TlsConnector> {
        self.tls.as_ref().map(|tls| &tls.servers)
    }

    /// How to connect to a sentinel: it has a login of its own, and no databases.
    pub(super) fn sentinel_connection(&self, address: &Address) -> Result<redis::Client> {
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        let login = match &self.sentinel_user {
            Some(user) if !user.reveal().is_empty() => login.set_username(user.reveal()),
            _ => login,
        };
        let login = match &self.sentinel_password {
            Some(password) => login.set_password(password.reveal()),
            None => login,
        };
        let (host, port) = (address.host.to_string(), address.port);
        let refused = |cause| {
            Error::bad_url(format!("{address}: the connection cannot be set up; check ca=, cert= and key=")).with_source(cause)
        };
        let info = |place: ConnectionAddr| -> Result<ConnectionInfo> {
            let info = place.into_connection_info().map_err(refused)?;
            let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(connect::keepalive());
            Ok(info.set_tcp_settings(tcp).set_redis_settings(login.clone()))
        };
        match &self.tls {
            None => redis::Client::open(info(ConnectionAddr::Tcp(host, port))?).map_err(refused),
            Some(tls) => {
                let place = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
                redis::Client::build_with_tls(info(place)?, tls.sentinels.clone()).map_err(refused)
            }
        }
    }
}

fn site(url: &StoreUrl, addresses: Vec<Address>, sentinel: bool, cluster: bool) -> Result<(Site, i64)> {
    let path = url.below_hosts();
    let database = |text: &str| match text {
        "" => Ok(0),
        number => number.parse().ok().filter(|number| *number >= 0).ok_or_else(|| {
            Error::bad_url("bad store URL: after the hosts stands the number of a database, as in redis://host/0")
        }),
    };
    if sentinel {
        let (master, db) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(Error::bad_url(
                "bad store URL: the sentinels' name of the primary is missing; write redis+sentinel://h1,h2,h3/master",
            ));
        }
        return Ok((Site::Sentinel { sentinels: addresses, master: master.to_owned() }, database(db)?));
    }
    if cluster {
        return match database(path)? {
            0 => Ok((Site::Cluster(addresses), 0)),
            _ => Err(Error::bad_url("bad store URL: a cluster has only the database 0")),
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

fn tls(url: &StoreUrl, secure: bool) -> Result<Option<Tls>> {
    let common = url.common();
    if !secure {
        return match (&common.ca, &common.cert, &common.key) {
            (None, None, None) => Ok(None),
            _ => Err(Error::bad_url("bad store URL: ca=, cert= and key= are for TLS; write rediss: instead of redis:")),
        };
    }
    // Two providers in one program would leave none chosen: ours is, unless the program chose one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let pems = Pems::read(common)?;
    let servers = pems.connector()?;
    let client_tls = pems.own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok(Some(Tls { servers, sentinels: TlsCertificates { client_tls, root_cert: pems.ca } }))
}
