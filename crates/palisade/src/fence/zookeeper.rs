//! Writes in ZooKeeper that the lock itself admits.
//!
//! Where lock and data are in the same ZooKeeper, no maximum has to be kept. A `multi` that checks
//! the lock's own node passes only while this very grant holds, checked by the servers in the same
//! step. It is refused from the moment the grant ends, even if there is no later holder.
//!
//! ```
//! use palisade::fence::zookeeper::{Held, Nodes, Write, Written, write};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::zookeeper::ZooKeeper::start();
//! # let url = format!("zk://{}/locks", server.address());
//! let locks = palisade::connect(&url).await?;
//! let guard = locks.mutex("stock").acquire().await?;
//! let (held, nodes) = (Held::by(&guard)?, Nodes::at(&url)?);
//!
//! let made = Write::Create { path: "/bolts", data: b"7" };
//! assert_eq!(write(&nodes, &held, &[made]).await?, Written::Done);
//! guard.release().await?;
//! let late = Write::Set { path: "/bolts", data: b"6", version: None };
//! assert_eq!(write(&nodes, &held, &[late]).await?, Written::NotHeld);
//! # Ok(())
//! # }
//! ```
//!
//! With another client of ZooKeeper, put a check of [`Held::node`] with any version (-1) before
//! your changes.

use super::Fence;
use crate::error::{Error, Result};
use crate::guard::{Exclusive, Guard};
pub use crate::stores::zookeeper::client::user_nodes::Nodes;
use crate::stores::zookeeper::client::user_nodes::{Change, NodeError, Wrote};

/// An exclusive grant of a lock in ZooKeeper, as a `multi` can check it.
///
/// It does not say whether the grant still holds. ZooKeeper checks that with each write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    node: String,
    fence: Fence,
}

impl Held {
    /// The grant of this guard.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when the lock is not in ZooKeeper, or in the format
    /// `plain`, whose node may be another's by now; [`Lost`](crate::ErrorKind::Lost) when the grant
    /// is known to be gone.
    pub fn by(guard: &Guard<Exclusive>) -> Result<Held> {
        let capability = guard.held().core.capability();
        if capability.store != "zookeeper" || !capability.revoke {
            return Err(Error::config(format!(
                "the lock is in {capability}, which cannot check it; write with the fence"
            )));
        }
        let node = guard.held().lock_key();
        let node = node.ok_or_else(|| Error::lost(crate::lease::LossReason::Expired))?;
        Ok(Held {
            node,
            fence: guard.fence(),
        })
    }

    /// The node of the lock that this grant holds by: it exists while the grant holds, and never
    /// again.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The transaction that made the node: the fence.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

/// One change of a write.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Write<'a> {
    /// Makes a node. Its parent must be there.
    Create {
        /// Where.
        path: &'a str,
        /// Its data.
        data: &'a [u8],
    },
    /// Changes the data of a node.
    Set {
        /// Where.
        path: &'a str,
        /// Its new data.
        data: &'a [u8],
        /// The version that it must have; `None` for any.
        version: Option<i32>,
    },
    /// Deletes a node.
    Delete {
        /// Where.
        path: &'a str,
        /// The version that it must have; `None` for any.
        version: Option<i32>,
    },
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write may have been refused"]
pub enum Written {
    /// All changes were made, while the grant held.
    Done,
    /// Nothing was changed: the grant had ended.
    NotHeld,
    /// Nothing was changed, though the grant holds: this change, counted from 0, could not be made.
    Refused(usize),
}

/// Makes these changes, all or none, if the grant holds.
///
/// # Errors
///
/// [`Unavailable`](crate::ErrorKind::Unavailable) when there was no answer: the changes may have
/// been made or not. [`Denied`](crate::ErrorKind::Denied) where the login may not write.
///
/// # Cancel safety
///
/// Dropped half-way, the changes may have been made or not, but all or none.
pub async fn write(nodes: &Nodes, held: &Held, changes: &[Write<'_>]) -> Result<Written> {
    let changes: Vec<Change<'_>> = changes
        .iter()
        .map(|change| match *change {
            Write::Create { path, data } => Change::Create { path, data },
            Write::Set {
                path,
                data,
                version,
            } => Change::Set {
                path,
                data,
                version,
            },
            Write::Delete { path, version } => Change::Delete { path, version },
        })
        .collect();
    match nodes.write(Some(&held.node), &changes).await {
        Ok(Wrote::Done) => Ok(Written::Done),
        Ok(Wrote::NotThere) => Ok(Written::NotHeld),
        Ok(Wrote::Refused(at)) => Ok(Written::Refused(at)),
        Err(NodeError::Unanswered(error) | NodeError::Failed(error)) => Err(error),
    }
}
