//! Servers that take seconds to start, once per test binary.
//!
//! All tests of the binary use them at the same time, so each uses names of its own ([`name`]), and
//! none pauses or kills them: a test that does starts its own. Statics are never dropped; the
//! kernel kills these servers when the process ends.
//!
//! ```no_run
//! use palisade_testkit::shared;
//!
//! let postgres = shared::postgres();
//! let lock = shared::name("orders"); // no other test has this one
//! postgres.sql(&format!("create table \"{lock}\" (n int)"));
//! ```

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{etcd, mariadb, postgres, redis, zookeeper};

/// A name that is unique on this machine and in this test binary. It consists of letters, digits
/// and `-`.
#[must_use]
pub fn name(about: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!(
        "{about}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

macro_rules! shared {
    ($($(#[$doc:meta])* $name:ident: $server:ty;)+) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        ///
        /// When it does not start, and in every later call.
        #[must_use]
        pub fn $name() -> &'static $server {
            static SERVER: LazyLock<$server> = LazyLock::new(<$server>::start);
            &SERVER
        }
    )+};
}

shared! {
    /// One Redis.
    redis: redis::Redis;
    /// Five Redis for Redlock.
    redis_five: redis::Five;
    /// Redis with sentinels.
    redis_sentinel: redis::Sentinel;
    /// A Redis cluster.
    redis_cluster: redis::Cluster;
    /// One etcd.
    etcd: etcd::Etcd;
    /// Three etcd.
    etcd_cluster: etcd::Cluster;
    /// One ZooKeeper.
    zookeeper: zookeeper::ZooKeeper;
    /// Three ZooKeeper.
    zookeeper_ensemble: zookeeper::Ensemble;
    /// One PostgreSQL.
    postgres: postgres::Postgres;
    /// One MariaDB.
    mariadb: mariadb::MariaDb;
}
