//! The peers' own libraries and ours, at one lock.
//!
//! Every [`Participant`] is a process of its own that can be killed: a [`Peer`] drives it over
//! stdin and stdout, in the words of [`protocol`], whatever language it is written in. Ours is one
//! of them, and reaches Palisade through its public API only.
//!
//! - [`Contest`]: participants enter and leave, and a [`Witness`] writes down what happened
//! - [`check`]: judges what the witness saw
//! - [`sabotage`]: participants with the usual mistakes, to show that the judge sees them
//! - [`redis`]: the libraries that share a lock with `format=simple`
//! - [`redisson`]: the locks of Redisson, whose keys are ours with `format=redisson`
//! - [`etcd`]: the programs that stand in one line with ours in etcd
//! - [`zookeeper`]: the recipes of Apache Curator and of kazoo, whose nodes stand in one line with
//!   ours
//! - [`sql`]: the programs that share a table of PostgreSQL or MariaDB with ours
//!
//! Everything but these five knows nothing of the store of the locks.

mod candidate;
pub mod check;
mod contest;
pub mod etcd;
mod host;
mod ours;
mod participant;
mod peer;
pub mod protocol;
pub mod redis;
pub mod redisson;
pub mod sabotage;
mod serve;
pub mod sql;
mod witness;
pub mod zookeeper;

pub use candidate::Candidate;
pub use contest::{Contest, Contestant, Outcome};
pub use host::Host;
pub use ours::{Kind, Ours};
pub use participant::{Acquired, Extended, Fault, Fenced, Led, Participant, Proclaimed, Released};
pub use peer::{Peer, installed};
pub use serve::serve;
pub use witness::{Visit, Visitor, Witness};
