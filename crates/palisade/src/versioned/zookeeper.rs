//! Versioned nodes in a ZooKeeper of yours: `setData` by version.
//!
//! ```
//! use palisade::versioned::Swapped;
//! use palisade::versioned::zookeeper::{Nodes, VersionedNodes};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::zookeeper::ZooKeeper::start();
//! # let url = format!("zk://{}", server.address());
//! let shop = VersionedNodes::new(Nodes::at(&url)?);
//!
//! let Swapped::Done(first) = shop.swap("/bolts", None, "7").await? else { return Err("it was there".into()) };
//!
//! // Two have read 7. One of them is faster.
//! assert!(matches!(shop.swap("/bolts", Some(first), "6").await?, Swapped::Done(_)));
//! let Swapped::Conflict(Some(now)) = shop.swap("/bolts", Some(first), "6").await? else { return Err("lost".into()) };
//! assert_eq!(now.value, b"6"); // look again, decide again
//!
//! // The same as a loop.
//! let one_less = |old: Option<&[u8]>| {
//!     let left: u32 = std::str::from_utf8(old?).ok()?.parse().ok()?;
//!     Some(left.checked_sub(1)?.to_string().into_bytes()) // `None`: sold out, leave it
//! };
//! assert!(shop.update("/bolts", one_less).await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! The value is the node's data, as it is: programs in other languages may read it, and write it
//! with its version.
//!
//! # How far versions never repeat
//!
//! A version is ZooKeeper's own version of the node, plus one. [`remove`](VersionedNodes::remove)
//! leaves the node there, with a mark in it, so that its version goes on. A node that is deleted
//! otherwise, and made again, begins anew: delete nodes by other means only when no earlier swap is
//! still in flight.
//!
//! # Lost answers
//!
//! [`SwapError::Unanswered`] says that the swap may have been done or not. ZooKeeper keeps no token
//! beside a value: read it, and decide by the current value.

use std::fmt;
use std::time::Duration;

use super::{Swapped, Version, Versioned};
use crate::error::Error;
pub use crate::stores::zookeeper::client::user_nodes::Nodes;
use crate::stores::zookeeper::client::user_nodes::{Change, NodeError, Wrote};

/// The data of a node whose value was removed.
const REMOVED: &[u8] = b"palisade:versioned:1:removed";
const TRIES: u32 = 32;

/// Nodes that are changed only by a client that has seen their value. See the [module docs](self).
#[derive(Clone, Debug)]
pub struct VersionedNodes {
    nodes: Nodes,
    tries: u32,
}

/// Why a swap has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum SwapError {
    /// It is unknown whether it was done.
    Unanswered(Error),
    /// It was not done.
    Failed(Error),
    /// Other clients were faster every time.
    TooBusy,
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::Unanswered(error) => {
                write!(f, "the swap may have been done or not: {error}")
            }
            SwapError::Failed(error) => error.fmt(f),
            SwapError::TooBusy => f.write_str("others were faster every time"),
        }
    }
}

impl std::error::Error for SwapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SwapError::Unanswered(error) | SwapError::Failed(error) => Some(error),
            SwapError::TooBusy => None,
        }
    }
}

impl From<NodeError> for SwapError {
    fn from(error: NodeError) -> SwapError {
        match error {
            NodeError::Unanswered(error) => SwapError::Unanswered(error),
            NodeError::Failed(error) => SwapError::Failed(error),
        }
    }
}

/// The state of a node: its version in ZooKeeper's count, and the value unless it was removed.
type Standing = Option<(i32, Option<Vec<u8>>)>;

fn version_of(number: i32) -> Version {
    Version::new(u64::try_from(number).unwrap_or(0) + 1)
}

fn number_of(version: Version) -> Option<i32> {
    i32::try_from(version.get().checked_sub(1)?).ok()
}

impl VersionedNodes {
    /// Nodes of this connection, and updates that try 32 times.
    pub fn new(nodes: Nodes) -> VersionedNodes {
        VersionedNodes {
            nodes,
            tries: TRIES,
        }
    }

    /// How often [`update`](VersionedNodes::update) tries; at least once.
    #[must_use]
    pub fn tries(self, tries: u32) -> VersionedNodes {
        VersionedNodes {
            tries: tries.max(1),
            ..self
        }
    }

    async fn standing(&self, path: &str) -> Result<Standing, SwapError> {
        Ok(self
            .nodes
            .get(path)
            .await?
            .map(|(data, number)| (number, (data != REMOVED).then_some(data))))
    }

    /// The value and its version; `None` when there is none.
    ///
    /// # Errors
    ///
    /// [`SwapError::Failed`] when the node cannot be read.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn get(&self, path: &str) -> Result<Option<Versioned>, SwapError> {
        Ok(self.standing(path).await?.and_then(seen))
    }

    /// Writes a value, if the version is the expected one, or if there is none and none is
    /// expected. The parent must be there.
    ///
    /// # Errors
    ///
    /// [`SwapError::Unanswered`] when it is unknown whether it was done.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may have been done or not.
    pub async fn swap(
        &self,
        path: &str,
        expected: Option<Version>,
        value: impl AsRef<[u8]>,
    ) -> Result<Swapped, SwapError> {
        self.replace(path, expected, value.as_ref()).await
    }

    /// Removes a value, if the version is the expected one.
    ///
    /// # Errors
    ///
    /// As [`swap`](VersionedNodes::swap).
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may have been done or not.
    pub async fn remove(&self, path: &str, expected: Version) -> Result<Swapped, SwapError> {
        self.replace(path, Some(expected), REMOVED).await
    }

    async fn replace(
        &self,
        path: &str,
        expected: Option<Version>,
        data: &[u8],
    ) -> Result<Swapped, SwapError> {
        let number = match expected {
            // A version outside of ZooKeeper's count matches no node.
            Some(version) => match number_of(version) {
                Some(number) => Some(number),
                None => return Ok(Swapped::Conflict(self.get(path).await?)),
            },
            None => match self.standing(path).await? {
                None => None,
                Some((number, None)) => Some(number),
                Some(there) => return Ok(Swapped::Conflict(seen(there))),
            },
        };
        let change = match number {
            Some(number) => Change::Set {
                path,
                data,
                version: Some(number),
            },
            None => Change::Create { path, data },
        };
        match self.nodes.write(None, &[change]).await? {
            Wrote::Done => Ok(Swapped::Done(version_of(
                number.map_or(0, |number| number.wrapping_add(1)),
            ))),
            Wrote::NotThere | Wrote::Refused(_) => match self.standing(path).await? {
                // Neither there nor to be made: its parent is missing.
                None if number.is_none() => Err(SwapError::Failed(Error::config(format!(
                    "the node {path} cannot be made: its parent is not there"
                )))),
                there => Ok(Swapped::Conflict(there.and_then(seen))),
            },
        }
    }

    /// Reads, lets `change` decide, and swaps, until it is done or `change` returns `None`.
    ///
    /// # Errors
    ///
    /// [`SwapError::TooBusy`] when other clients were faster every time.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may have been done or not.
    pub async fn update(
        &self,
        path: &str,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Version>, SwapError> {
        let mut there = self.get(path).await?;
        for attempt in 0..self.tries {
            let Some(value) = change(there.as_ref().map(|there| there.value.as_slice())) else {
                return Ok(None);
            };
            match self
                .swap(path, there.as_ref().map(|there| there.version), &value)
                .await?
            {
                Swapped::Done(version) => return Ok(Some(version)),
                Swapped::Conflict(now) => there = now,
            }
            // Not in step with the others.
            tokio::time::sleep(
                Duration::from_millis(u64::from(attempt.min(20))).mul_f64(fastrand::f64()),
            )
            .await;
        }
        Err(SwapError::TooBusy)
    }
}

fn seen((number, value): (i32, Option<Vec<u8>>)) -> Option<Versioned> {
    value.map(|value| Versioned {
        value,
        version: version_of(number),
    })
}
