//! Rare abilities, which a store hands out beside the contract.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{ClaimId, Observation};
use crate::error::Result;
use crate::name::Name;

/// The rare abilities of a store. Empty by default.
#[derive(Clone, Copy, Default)]
pub struct Extensions<'a> {
    /// Pushes each new leader of an election.
    pub observe: Option<&'a dyn Observe>,
    /// Asks whether its clients are alive.
    pub liveness: Option<&'a dyn Liveness>,
    /// Has a key for each claim that a write in the same system can compare.
    pub lock_keys: Option<&'a dyn LockKeys>,
    /// Has a key or path for each name, which other programs can look at.
    pub name_keys: Option<&'a dyn NameKeys>,
    /// Says which server answers.
    pub ping: Option<&'a dyn Ping>,
    /// Clears what `min_hold`, `once_per` and `once` have left.
    pub clear_marks: Option<&'a dyn ClearMarks>,
    /// Has latches.
    pub latches: Option<&'a dyn Latches>,
    /// Keeps its locks in tables that must be created.
    pub schema: Option<&'a dyn Schema>,
}

/// A store that pushes each new leader of an election.
#[async_trait]
pub trait Observe: Send + Sync {
    /// Observes the leader of an election. Returns when the store has answered; from then on the
    /// observation receives each change.
    async fn observe(&self, name: &Name) -> Result<Observation>;
}

/// A store that asks whether its clients are alive.
pub trait Liveness: Send + Sync {
    /// A descriptor that a child process may inherit: while it is open anywhere, this client's
    /// claims are not taken for dead.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A store with a key for each claim.
pub trait LockKeys: Send + Sync {
    /// The key that a write in the same system can compare to check that this claim still holds;
    /// `None` when it does not hold. For ZooKeeper the path of its node, for etcd the end of its
    /// key.
    fn lock_key(&self, claim: ClaimId) -> Option<String>;
}

/// A store with a key or path for each name.
pub trait NameKeys: Send + Sync {
    /// The very key or path that the name maps to. Where a line has several keys, what they begin
    /// with.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that the store cannot take.
    fn key(&self, name: &Name) -> Result<String>;
}

/// A store that says which server answers.
#[async_trait]
pub trait Ping: Send + Sync {
    /// Connects if need be, logs in, and looks at a lock by the same way as `show`: a wrong
    /// password, a wrong URL and missing rights to read are errors.
    async fn ping(&self) -> Result<ServerInfo>;
}

/// The server that answered a ping.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// The product: `redis`, `valkey`, `etcd`, `zookeeper`, `sqlite`, `memory`.
    pub product: String,
    /// Its version, where it says so.
    pub version: Option<String>,
    /// Its role among the servers, in its own words: `master`, `leader`, `follower`, `standalone`,
    /// and whether a pooler or a proxy is between. `None` where it does not say.
    pub role: Option<String>,
    /// Its address, or the path of the file; `None` without one.
    pub address: Option<String>,
}

/// A store that can clear what `min_hold`, `once_per` and `once` have left.
#[async_trait]
pub trait ClearMarks: Send + Sync {
    /// Forgets the last `once_per` grant, the seal of a `once`, and the rest of each `min_hold` of
    /// this name, and says whether there was any of them. A claim that holds goes on holding.
    async fn clear_marks(&self, name: &Name) -> Result<bool>;
}

/// A store with latches: counters that many wait for.
#[async_trait]
pub trait Latches: Send + Sync {
    /// Sets a latch that is open, and says whether it was.
    async fn set_latch(&self, name: &Name, count: u32) -> Result<bool>;

    /// Counts down by one, and says how many are left. An open latch stays open.
    async fn count_down(&self, name: &Name) -> Result<u32>;

    /// How often the latch must still be counted down: zero when it is open.
    async fn latch_count(&self, name: &Name) -> Result<u32>;

    /// The count as soon as it has changed, or after so long at the latest; at once where the latch
    /// is open.
    async fn latch_after_change(&self, name: &Name, longest: Duration) -> Result<u32>;
}

/// A store that keeps its locks in tables of its own, and creates them on first use if it may.
#[async_trait]
pub trait Schema: Send + Sync {
    /// The statements that create the tables and routines, for an administrator to run. They do not
    /// change what is already there.
    fn statements(&self) -> String;

    /// Creates what is missing, and says whether anything was. Many clients may do so at once.
    async fn create(&self) -> Result<bool>;
}
