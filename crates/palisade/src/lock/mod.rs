//! What users ask for: a mutex, a rwlock, a semaphore, several at once, a leader, once per period, or once and
//! for all.
//!
//! A lock here is a description: making one asks nobody, and it can be cloned, kept and used again. Holding is the
//! [`Guard`](crate::Guard)'s business.

mod election;
mod multi;
mod mutex;
mod once;
mod options;
mod owner;
mod rwlock;
mod semaphore;

pub use election::{Election, Leadership, Observer};
pub use multi::{Member, Multi, MultiGuard, MultiReleased};
pub use mutex::Mutex;
pub use once::{Once, OnceGuard, OncePer};
pub(crate) use options::Options;
pub use owner::Owner;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
