//! ZooKeeper: one server, or an ensemble of three.
//!
//! ```no_run
//! use palisade_testkit::zookeeper::{Ensemble, ZooKeeper};
//!
//! let zookeeper = ZooKeeper::start();
//! assert!(zookeeper.ask("srvr").contains("Mode: standalone"));
//!
//! let three = Ensemble::start();
//! let old = three.leader();
//! old.pause(); // sessions run on a clock that cannot be moved: pause either the server or the client
//! println!("{} leads now", three.leader_after(old).address());
//! ```

mod ensemble;
mod hijack;
mod raw;
mod single;

pub use ensemble::Ensemble;
pub use raw::{Make, Raw};
pub use single::{Setup, ZooKeeper};
