//! Fences, and the resources that check them.
//!
//! A fence is a number that rises with every grant of a name. A resource that remembers the highest
//! fence it has seen, and refuses a lower one, cannot be damaged by a holder that was paused past
//! its lease: its writes come with an old number.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of a grant: higher for every later grant of the same name, below 2^63, printed as a
/// decimal string.
///
/// An exclusive grant's fence may be checked by a resource. The fence of a reader or of a permit
/// holder may not, because many hold at once and the older one is not stale: their guards answer
/// with a [`SharedFence`], which no resource takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The mark of a grant without a fence (some shared formats have none). Resources refuse it.
    pub const NONE: Fence = Fence(0);
    /// The highest fence there can be.
    pub const MAX: Fence = Fence(i64::MAX as u64);

    /// The fence with this number; `None` past [`Fence::MAX`].
    pub fn new(number: u64) -> Option<Fence> {
        (number <= Self::MAX.0).then_some(Fence(number))
    }

    /// The number, for a column or a header.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Whether the grant came without a fence.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is not a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseFenceError(Option<ParseIntError>);

impl fmt::Display for ParseFenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(cause) => write!(f, "a fence is a decimal number: {cause}"),
            None => write!(f, "a fence is at most {}", Fence::MAX),
        }
    }
}

impl std::error::Error for ParseFenceError {}

impl FromStr for Fence {
    type Err = ParseFenceError;

    fn from_str(text: &str) -> Result<Fence, ParseFenceError> {
        let number = text.parse().map_err(|cause| ParseFenceError(Some(cause)))?;
        Fence::new(number).ok_or(ParseFenceError(None))
    }
}

/// Fences travel as decimal strings: a JavaScript or Lua number loses digits past 2^53.
impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fence, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// The number of a reader's or permit holder's grant: to be shown, never to be checked by a
/// resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedFence(Fence);

impl From<Fence> for SharedFence {
    fn from(fence: Fence) -> SharedFence {
        SharedFence(fence)
    }
}

impl SharedFence {
    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for SharedFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
