//! A claim: one request for a name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ClaimId;
use crate::fence::Fence;
use crate::lease::Moment;
use crate::name::Name;

/// Which object of the store a claim is for. One name serves one kind at a time, except that the
/// mutex is the write side of the rwlock where
/// [`Capability::mutex_is_write_side`](super::Capability::mutex_is_write_side).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One holder.
    Mutex,
    /// Many readers or one writer.
    RwLock,
    /// At most `limit` permits held at once.
    Semaphore {
        /// How many permits there are.
        limit: u32,
    },
}

impl Kind {
    /// Whether claims of both kinds can stand in one line.
    pub fn shares_line_with(self, other: Kind) -> bool {
        match (self, other) {
            (Kind::Semaphore { limit: mine }, Kind::Semaphore { limit: theirs }) => mine == theirs,
            (Kind::Semaphore { .. }, _) | (_, Kind::Semaphore { .. }) => false,
            _ => true,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Mutex => f.write_str("mutex"),
            Kind::RwLock => f.write_str("rwlock"),
            Kind::Semaphore { limit } => write!(f, "semaphore of {limit}"),
        }
    }
}

/// How a claim holds: alone, with other readers, or as a part of the permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With other readers.
    Shared,
    /// So many of a semaphore's permits.
    Permits(u32),
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permits(1) => f.write_str("1 permit"),
            Mode::Permits(count) => write!(f, "{count} permits"),
        }
    }
}

/// A request for a name. A claim that the store has forgotten is made again with a new id.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Identifies this claim, in the store and on the wire.
    pub id: ClaimId,
    /// The name.
    pub name: Name,
    /// Which object of the store.
    pub kind: Kind,
    /// The mode.
    pub mode: Mode,
    /// The owner, for people to read.
    pub owner: Arc<str>,
    /// The reason, for people to read.
    pub reason: Option<Arc<str>>,
    /// The value of a candidate in an election. The owner is the same text, for stores that know
    /// nothing of elections; a store that shares elections with peers writes this value as they do.
    pub value: Option<Arc<str>>,
    /// How long the claim lives without renewal once it holds.
    pub lease: Duration,
    /// Whether the user set this length. If so, it is refused outside of the server's limits;
    /// otherwise the claim takes what the server grants. For ZooKeeper, whose sessions are bounded.
    pub exact_lease: bool,
    /// Whether to queue when the name is taken. Otherwise the answer is busy, and nothing is left
    /// in the store.
    pub queue: bool,
    /// The name stays closed to others at least until grant + this, through release and crash.
    pub min_hold: Option<Duration>,
    /// Refused as busy while less than this has passed since the last grant of such a claim.
    pub once_per: Option<Duration>,
    /// Whether the grant must be able to outlive this client: it needs a session of its own.
    pub detachable: bool,
}

impl Claim {
    /// The longest time that a dead waiter can stay in line.
    pub const LONGEST_WAIT_LEASE: Duration = Duration::from_secs(5);

    /// How long the claim lives without renewal while it waits: short, so that dead waiters cost
    /// little.
    pub fn wait_lease(&self) -> Duration {
        self.lease.min(Self::LONGEST_WAIT_LEASE)
    }

    /// The short form that renew and release take.
    pub fn to_ref(self: &Arc<Self>, fence: Option<Fence>) -> ClaimRef {
        ClaimRef {
            claim: Arc::clone(self),
            fence,
        }
    }
}

/// A claim that the store may already know, with the fence it holds by, when it is known to hold.
#[derive(Clone, Debug)]
pub struct ClaimRef {
    /// The claim as it was made.
    pub claim: Arc<Claim>,
    /// The fence of its grant; `None` while it is not known to hold.
    pub fence: Option<Fence>,
}

/// How long the store has promised to keep a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The granted length. The core counts with the shorter of this and the asked one.
    pub length: Duration,
    /// When the length began on [`BootClock`](crate::lease::BootClock), if that was before this
    /// request was sent: a session that was renewed earlier.
    pub counted_from: Option<Moment>,
}

impl Lease {
    /// A lease that begins with the request that asked for it.
    pub fn of(length: Duration) -> Lease {
        Lease {
            length,
            counted_from: None,
        }
    }
}

#[cfg(test)]
impl Claim {
    /// A plain claim for a mutex, for tests.
    pub(crate) fn of_mutex(id: ClaimId, name: &str, lease: Duration) -> Claim {
        Claim {
            id,
            name: Name::new(name).expect("a good name"),
            kind: Kind::Mutex,
            mode: Mode::Exclusive,
            owner: "test".into(),
            reason: None,
            value: None,
            lease,
            exact_lease: false,
            queue: true,
            min_hold: None,
            once_per: None,
            detachable: false,
        }
    }
}
