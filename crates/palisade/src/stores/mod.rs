//! The stores: one folder each, and the table of their URLs.

#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]
mod backoff;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres"
))]
mod batch;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]
mod in_task;
pub(crate) mod kit;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper-tls",
    feature = "postgres",
    feature = "mysql"
))]
mod tls;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::store::{Capability, Store};
use crate::url::StoreUrl;

/// How a store is opened from its URL.
type Open = fn(StoreUrl) -> Result<Arc<dyn Store>>;

/// A store as the table knows it.
struct Entry {
    /// Its URL schemes.
    schemes: &'static [&'static str],
    /// The cargo feature that it is behind.
    feature: &'static str,
    /// `None` when it is not compiled in.
    open: Option<Open>,
    /// Its capability, by format.
    capabilities: &'static [Capability],
}

/// Adding a store is one entry here, one folder, and one line in the conformance matrix.
const STORES: &[Entry] = &[
    Entry {
        schemes: &["memory"],
        feature: "",
        open: Some(memory::open),
        capabilities: &[memory::CAPABILITY],
    },
    Entry {
        schemes: &[
            "redis",
            "rediss",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
        ],
        feature: "redis",
        #[cfg(feature = "redis")]
        open: Some(redis::open),
        #[cfg(not(feature = "redis"))]
        open: None,
        #[cfg(feature = "redis")]
        capabilities: &[
            redis::CAPABILITY,
            redis::SIMPLE,
            redis::REDISSON,
            redis::REDISSON_FAIR,
        ],
        #[cfg(not(feature = "redis"))]
        capabilities: &[],
    },
    Entry {
        schemes: &["redlock", "redlocks"],
        feature: "redis",
        #[cfg(feature = "redis")]
        open: Some(redlock::open),
        #[cfg(not(feature = "redis"))]
        open: None,
        #[cfg(feature = "redis")]
        capabilities: &[redlock::CAPABILITY],
        #[cfg(not(feature = "redis"))]
        capabilities: &[],
    },
    Entry {
        schemes: &["etcd", "etcds"],
        feature: "etcd",
        #[cfg(feature = "etcd")]
        open: Some(etcd::open),
        #[cfg(not(feature = "etcd"))]
        open: None,
        #[cfg(feature = "etcd")]
        capabilities: &[etcd::CAPABILITY, etcd::PLAIN],
        #[cfg(not(feature = "etcd"))]
        capabilities: &[],
    },
    Entry {
        schemes: &["zk", "zks"],
        feature: "zookeeper",
        #[cfg(feature = "zookeeper")]
        open: Some(zookeeper::open),
        #[cfg(not(feature = "zookeeper"))]
        open: None,
        #[cfg(feature = "zookeeper")]
        capabilities: &[zookeeper::CURATOR, zookeeper::KAZOO, zookeeper::PLAIN],
        #[cfg(not(feature = "zookeeper"))]
        capabilities: &[],
    },
    Entry {
        schemes: &["mysql", "mariadb"],
        feature: "mysql",
        #[cfg(feature = "mysql")]
        open: Some(mysql::open),
        #[cfg(not(feature = "mysql"))]
        open: None,
        #[cfg(feature = "mysql")]
        capabilities: &[
            mysql::CAPABILITY,
            mysql::SESSION,
            mysql::SIMPLE,
            mysql::SHEDLOCK,
        ],
        #[cfg(not(feature = "mysql"))]
        capabilities: &[],
    },
    Entry {
        schemes: &["postgres", "postgresql"],
        feature: "postgres",
        #[cfg(feature = "postgres")]
        open: Some(postgres::open),
        #[cfg(not(feature = "postgres"))]
        open: None,
        #[cfg(feature = "postgres")]
        capabilities: &[
            postgres::CAPABILITY,
            postgres::SESSION,
            postgres::SIMPLE,
            postgres::SHEDLOCK,
        ],
        #[cfg(not(feature = "postgres"))]
        capabilities: &[],
    },
    Entry {
        schemes: &["sqlite"],
        feature: "sqlite",
        #[cfg(feature = "sqlite")]
        open: Some(sqlite::open),
        #[cfg(not(feature = "sqlite"))]
        open: None,
        #[cfg(feature = "sqlite")]
        capabilities: &[sqlite::CAPABILITY],
        #[cfg(not(feature = "sqlite"))]
        capabilities: &[],
    },
];

/// The capability of every store that is compiled in, in every format.
pub fn capabilities() -> impl Iterator<Item = &'static Capability> {
    STORES.iter().flat_map(|entry| entry.capabilities)
}

/// The format of a URL that names none.
pub(crate) fn default_format(scheme: &str) -> Option<&'static str> {
    let entry = STORES
        .iter()
        .find(|entry| entry.schemes.contains(&scheme))?;
    Some(entry.capabilities.first()?.format)
}

/// Opens the store of a URL, for those who talk to it without a client. Parses and returns: the
/// first use connects.
///
/// # Errors
///
/// [`Config`](crate::ErrorKind::Config) for a URL that cannot be used, with what to do about it.
pub fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let Some(entry) = STORES
        .iter()
        .find(|entry| entry.schemes.contains(&url.scheme()))
    else {
        let known: Vec<&str> = STORES
            .iter()
            .flat_map(|entry| entry.schemes)
            .copied()
            .collect();
        return Err(Error::bad_url(format!(
            "no store has the scheme {}:; known: {}",
            url.scheme(),
            known.join(", ")
        )));
    };
    match entry.open {
        Some(open) => open(url),
        None => Err(Error::bad_url(format!(
            "{0}: is not compiled in; build with the feature {1}",
            url.scheme(),
            entry.feature
        ))),
    }
}
