//! The locks: a mutex, a rwlock, a semaphore, several at once, a leader, once per period, or once
//! and for all; and a latch, which is none.
//!
//! A lock here is a description: making one sends nothing, and it can be cloned, kept and used
//! again. The [`Guard`](crate::Guard) is what holds.

mod attempt;
mod election;
mod latch;
mod multi;
mod mutex;
mod once;
mod options;
mod reentrancy;
mod rwlock;
mod semaphore;
mod striped;

pub use attempt::{Attempt, Cause, Obstacle};
pub use election::{Election, Leadership, Observer};
pub use latch::Latch;
pub use multi::{Member, Multi, MultiGuard, MultiReleased};
pub use mutex::Mutex;
pub use once::{Once, OnceGuard, OncePer};
pub(crate) use options::Options;
pub use reentrancy::Identity;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use striped::Striped;
