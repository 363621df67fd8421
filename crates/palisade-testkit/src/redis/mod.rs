//! Redis: one server, five for Redlock, with Sentinel, as a cluster; with TLS and users.
//!
//! ```no_run
//! use palisade_testkit::redis::{Cluster, Five, Redis, Sentinel};
//!
//! let redis = Redis::start();
//! assert_eq!(redis.call(&["SET", "name", "value"]).text(), "OK");
//! redis.pause(); //   nothing answers, and
//! redis.resume(); //  goes on
//! redis.restart(); // empty: this one keeps nothing on disk
//!
//! let guarded = Redis::with().tls().acl(palisade_testkit::redis::LOCKER).clock().start();
//! guarded.clock().set_ahead(std::time::Duration::from_secs(120));
//! println!("{} with the authority {}", guarded.url(), palisade_testkit::certs().ca.display());
//!
//! let five = Five::start();
//! five.nodes()[2].kill();
//!
//! let pair = Sentinel::start();
//! pair.strand_replica(); // what is written from now on
//! pair.primary().kill(); // is lost, once Sentinel has named another
//!
//! let cluster = Cluster::start();
//! cluster.primary_of("name").kill();
//! ```

mod cluster;
mod five;
mod rights;
mod sentinel;
mod single;

pub use cluster::Cluster;
pub use five::Five;
pub use rights::documented_rights;
pub use sentinel::Sentinel;
pub use single::{LOCKER, Redis, Setup};
