//! etcd: one server or three, with TLS, client certificates and users.
//!
//! ```no_run
//! use palisade_testkit::etcd::{Cluster, Etcd};
//!
//! let etcd = Etcd::start();
//! etcd.etcdctl(&["put", "name", "value"]);
//!
//! let guarded = Etcd::with().tls().auth().start(); // root:rootpw, and locker:lockpw on keys below lock/
//! println!("{} with the authority {}", guarded.url(), palisade_testkit::certs().ca.display());
//!
//! let three = Cluster::start();
//! three.leader().pause(); // etcd reads no clock that could be moved: a pause is how its leases run out unseen
//! ```
//!
//! The server is the system's, unless `PALISADE_ETCD` names a folder with `etcd`, `etcdctl` and
//! `etcdutl` of another version.

mod cluster;
mod rights;
mod single;

pub use cluster::Cluster;
pub use rights::documented_rights;
pub use single::{Etcd, Setup};
