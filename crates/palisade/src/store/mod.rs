//! The store contract: what a store is asked, what it answers, and what it says it can do.
//!
//! This is the implementor's side. Users hold a [`Client`](crate::Client) and its locks.
//!
//! # Contract
//!
//! - [`Store::claim`] is one request, idempotent by [`ClaimId`], and never waits for another holder (unless
//!   [`Capability::claim_blocks`]). Waiting is the core's loop: claim, then wake, then renew or claim again.
//! - The core runs store futures to their end; [`Store::wake`], [`Store::event`] and [`Store::holder`] alone may be dropped
//!   half-way. So every other future must end by itself within the store's request time-out.
//! - Release and renew are conditional on claim *and* fence, never on the name alone.
//! - Expiry is the store's, by the store's clock. Deadlines are the core's, by ours. Neither compares with the other. Where the core says
//!   until when it is [sure](ClaimRef::sure_until) to hold, a release that finds the very grant need not look whether it has expired.
//! - A store value serves one client: pushes and events go to whoever opened it.
//! - A store knows nothing of guards and keepers. Its futures are polled inside the client's own tokio runtime: by the caller's task,
//!   on the caller's thread, or by the client's thread once the caller has dropped them. A caller may not be polled for a long time:
//!   no request may depend on another request's future being polled. The polls must not block.

mod answer;
mod capability;
mod claim;
mod id;
mod observation;
mod view;

use std::time::Duration;

pub use answer::{Answer, Busy, Ending, Event, Gone, Grant, Leader, Place, Released, Revoked, Standing, Woken};
use async_trait::async_trait;
pub use capability::{Capability, Detach, Durability, FenceSource, LeaseUnit, Order, Wakes};
pub use claim::{Claim, ClaimRef, Fresh, Kind, Lease, Mode};
pub(crate) use id::ByClaim;
pub use id::ClaimId;
pub use observation::{Observation, Teller};
pub use view::{Holder, LineView, Page, Query, Waiter};

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;

/// A system that decides who holds what. See the [module documentation](self) for the contract.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What this store, in this format, can do and promises.
    fn capability(&self) -> &Capability;

    /// The client's own runtime has started: told once, before anything is asked.
    fn attach(&self, runtime: &tokio::runtime::Handle) {
        let _ = runtime;
    }

    /// Asks for the name: granted, queued or busy. The same claim again finds its own grant or place, and counts as a renewal.
    async fn claim(&self, claim: &Claim) -> Result<Answer>;

    /// Returns when it is worth asking again, or with the grant itself when the store pushed it.
    ///
    /// The core keeps its own timers (time left, heartbeat, backoff): a store that cannot push waits here for ever. A claim
    /// that is sent again begins a new life: a push to the one before is not for it. The core confirms such a push by a renewal.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time. For a claim that stands in line, a push that came since it was sent must not be lost: the
    /// next call returns at once. What is kept for a busy claim lives in this future only: it is not released.
    async fn wake(&self, claim: &Claim) -> Woken;

    /// Who holds the name that a claim waits for; nobody where that is not known, and where every [`Place`] says it already.
    ///
    /// Asked once, when the wait of a claim in line is over: nobody else needs to know it, and on most stores it costs something to say.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    async fn holder(&self, claim: &Claim) -> Result<Option<Holder>> {
        let _ = claim;
        Ok(None)
    }

    /// Which part of the store has a name: claims of different parts are renewed in requests of their own, so that a server
    /// which hangs does not hold up the others. The same number for all where there is only one.
    fn part(&self, name: &Name) -> u64 {
        let _ = name;
        0
    }

    /// Extends the leases of all these claims, waiting and holding, and says where each stands, in the same order.
    ///
    /// Each has its own answer: what could not be asked about one server's claims changes nothing for another's.
    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>>;

    /// Ends a claim in whatever state it is: release, cancel, time-out and drop are this one verb. A seal that is sent again
    /// by the claim that set it is done, not lost.
    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released>;

    /// Turns a writer into a reader in one step, keeping its fence; readers next in line come in with it. Idempotent.
    ///
    /// The claim still says exclusive: a store goes by what it has on record.
    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        let _ = claim;
        Err(Error::unsupported(format!("the store {} cannot turn a write lock into a read lock", self.capability().store)))
    }

    /// Makes a grant outlive this client: from now on nothing but its lease ends it. Renews it. Idempotent.
    ///
    /// Called for claims that were made [detachable](Claim::detachable), and for all where each claim has a lease of its own.
    async fn detach(&self, claim: &ClaimRef) -> Result<Standing> {
        let mut answers = self.renew(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| Err(Error::protocol("the store does not say where the grant stands")))
    }

    /// Who leads an election: whoever is first in line.
    async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        let page = self.inspect(&Query::Show(name.clone())).await?;
        let holders = page.lines.into_iter().flat_map(|line| line.holders);
        // One that only keeps the name closed leads no more.
        let holder = holders.into_iter().find(|holder| holder.lease_left != Some(Duration::ZERO));
        Ok(holder.map(|holder| Leader { value: holder.owner, fence: holder.fence }))
    }

    /// Changes the value of a claim that leads, and says where it stands. Idempotent.
    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        let _ = (claim, value);
        let capability = self.capability();
        Err(Error::unsupported(format!("{capability} cannot change a leader's value; resign, and campaign with the other")))
    }

    /// Watches who leads an election. Returns when the store has answered; from then on the observation hears of each change.
    async fn observe(&self, name: &Name) -> Result<Observation> {
        let _ = name;
        let capability = self.capability();
        Err(Error::unsupported(format!("{capability} cannot push who leads; ask for the leader when you need it")))
    }

    /// Ends somebody else's grant, named by its fence ([`Fence::NONE`] for a peer's grant without one).
    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked>;

    /// Lists lines by prefix, or shows one.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// A descriptor that a child process may inherit: while it is open anywhere, this client's claims are not taken for dead.
    ///
    /// Only a store that asks whether its clients are alive has one.
    fn liveness(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// What a write in the same system can compare to know that this claim still holds; `None` where there is no such thing, or
    /// the claim does not hold. Where it follows from the claim alone it need not be asked here. For ZooKeeper: the path of its node;
    /// for etcd: what its key ends with.
    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        let _ = claim;
        None
    }

    /// Returns the next thing that the core must hear of: contact lost or regained, a grant that ended early.
    ///
    /// The core always waits here while it uses the store: a store may take its pushes to waiters from here, too.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; no event may be lost by it.
    async fn event(&self) -> Event {
        std::future::pending().await
    }
}
