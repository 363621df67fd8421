//! Rare abilities, which a store hands out beside the contract.

use std::os::fd::BorrowedFd;

use async_trait::async_trait;

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
}

/// A store that pushes each new leader of an election.
#[async_trait]
pub trait Observe: Send + Sync {
    /// Watches who leads an election. Returns when the store has answered; from then on the observation hears of each change.
    async fn observe(&self, name: &Name) -> Result<Observation>;
}

/// A store that asks whether its clients are alive.
pub trait Liveness: Send + Sync {
    /// A descriptor that a child process may inherit: while it is open anywhere, this client's claims are not taken for dead.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A store with a key for each claim.
pub trait LockKeys: Send + Sync {
    /// What a write in the same system can compare to know that this claim still holds; `None` when it does not hold. For
    /// ZooKeeper: the path of its node; for etcd: what its key ends with.
    fn lock_key(&self, claim: ClaimId) -> Option<String>;
}
