//! Values that are changed only by a client that has seen them: compare-and-swap by version.
//!
//! Often the better half of a lock. There is no waiting, no holding and nothing to release: a
//! client that was too late is told ([`Swapped::Conflict`]), reads again, and decides again. Use it
//! where the work between reading and writing is short and has no effect of its own. Use a lock,
//! with a [fence](crate::fence), where it is long or must not be done twice.
//!
//! The shape is the same for Redis, etcd and ZooKeeper, and for rows of your own tables in PostgreSQL
//! and MySQL, where a value is the columns that you name:
//!
//! | verb | answer |
//! |---|---|
//! | `get(key)` | the value and its [`Version`], or nothing |
//! | `swap(key, expected, value)` | [`Swapped::Done`] with the new version, or [`Swapped::Conflict`] with what is there |
//! | `remove(key, expected)` | the same; not in tables, where a deleted row forgets its version |
//! | `settle(swap)` | what became of a swap whose answer was lost: [`Settled`]; not in ZooKeeper and in tables, which keep no token beside a value |
//! | `update(key, \|old\| new)` | `get` and `swap` until it is done, with a bound |
//!
//! # Versions never repeat
//!
//! A version is higher than all earlier ones of the same key, also after the value was removed and
//! made again. So a swap that expects a version can only pass while that very value is there: there
//! is no ABA. How far that goes is documented with each system.

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "postgres",
    feature = "mysql"
))]
mod pause;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod sql;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::fmt;

/// The version of a key's value: higher for every later one. It says nothing else, and versions of
/// different keys cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version with this number, as it was once given by [`get`](Version::get).
    pub const fn new(number: u64) -> Version {
        Version(number)
    }

    /// The number: for an `ETag`, or to be stored.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versioned {
    /// The value.
    pub value: Vec<u8>,
    /// Its version, which a swap that replaces it expects.
    pub version: Version,
}

/// The answer to a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a swap may not have been done"]
pub enum Swapped {
    /// Done. This is the version now.
    Done(Version),
    /// Not done: the key held another value than expected, namely this, or none.
    Conflict(Option<Versioned>),
}

/// The result of a swap whose answer was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a swap may not have been done"]
pub enum Settled {
    /// It was done, once, and its value is current, with this version.
    Done(Version),
    /// It was not done, and never will be: another client replaced the value that it expected. This
    /// is the value now, or none.
    Conflict(Option<Versioned>),
    /// Cannot be known: the current value is not ours, and more than one change has been made
    /// since. Ours may have been among them.
    Unknown(Option<Versioned>),
}

/// A swap whose answer was lost, with all that is needed to find out its result, or to do it after
/// all.
///
/// It carries the value; and in Redis a random token, which is kept beside the value.
#[derive(Clone, PartialEq, Eq)]
pub struct PendingSwap {
    key: Vec<u8>,
    expected: Option<Version>,
    /// `None` removes.
    value: Option<Vec<u8>>,
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "etcd has no place for it")
    )]
    token: String,
}

impl PendingSwap {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// What it expected: a version, or nothing there.
    pub fn expected(&self) -> Option<Version> {
        self.expected
    }
}

/// Neither the value nor the token is shown.
impl fmt::Debug for PendingSwap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSwap")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}
