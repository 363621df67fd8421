//! The store contract: what a store is asked, what it answers, and what it says it can do.
//!
//! This is the implementor's side. Users hold a [`Client`](crate::Client) and its locks.
//!
//! # Contract
//!
//! - [`Store::claim`] is one request, idempotent by [`ClaimId`], and never waits for another holder
//!   (unless [`Capability::claim_blocks`]). Waiting is the core's loop: claim, then wait for a
//!   [push](ClientHandle), then renew or claim again.
//! - The core runs store futures to their end, so every future must end by itself within the
//!   store's request time-out.
//! - Release and renew are conditional on claim *and* fence, never on the name alone.
//! - Expiry is the store's, by the store's clock. Deadlines are the core's, by ours. Neither
//!   compares with the other.
//! - A store value serves one client: pushes go to the [`ClientHandle`] that it was attached to.
//! - A store knows nothing of guards and keepers. Its futures are polled inside the client's own
//!   tokio runtime: by the caller's task, on the caller's thread, or by the client's thread once
//!   the caller has dropped them. A caller may not be polled for a long time: no request may depend
//!   on another request's future being polled. The polls must not block.
//! - A claim that its caller has dropped before it was written is never sent:
//!   [`ClientHandle::wants`] says so.

mod answer;
mod capability;
mod claim;
mod claim_id;
mod client_handle;
mod extensions;
mod observation;
mod view;

use std::sync::Arc;

pub use answer::{
    Answer, Busy, Change, Ending, Gone, Grant, Leader, Place, Released, Revoked, Standing,
};
use async_trait::async_trait;
pub use capability::{Capability, Detach, Durability, FenceSource, LeaseUnit, Order, Wakes};
pub use claim::{Claim, ClaimRef, Kind, Lease, Mode};
pub(crate) use claim_id::ByClaim;
pub use claim_id::ClaimId;
pub use client_handle::{ClientHandle, Listener, Push};
pub use extensions::{
    ClearMarks, Extensions, Latches, Liveness, LockKeys, NameKeys, Observe, Ping, Schema,
    ServerInfo,
};
pub use observation::{Observation, ObservationSender};
pub use view::{Holder, LineView, Marks, Page, Query, Waiter};

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;

/// A system that decides which claim holds a name. See the [module documentation](self) for the
/// contract.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The abilities and promises of this store in this format.
    fn capability(&self) -> &Capability;

    /// The client's own runtime has started: told once, before anything is asked. A store that
    /// pushes nothing ignores it.
    fn attach(&self, client: ClientHandle);

    /// Asks for the name: granted, queued or busy. The same claim again finds its own grant or
    /// place, and counts as a renewal.
    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer>;

    /// Extends the leases of all these claims, waiting and holding, and says where each stands, in
    /// the same order.
    ///
    /// Each has its own answer: a server that hangs must not hold up the answers of another for
    /// longer than a sixth of the shortest lease among them.
    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>>;

    /// Ends a claim in whatever state it is: release, cancel, time-out and drop are this one verb.
    /// A seal that is sent again by the claim that set it is done, not lost.
    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released>;

    /// Lists lines by prefix, shows one, or names its holders.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// Ends the grant that has this fence ([`Fence::NONE`] for a peer's grant without one),
    /// whichever client holds it.
    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let _ = (name, fence);
        Err(Error::unsupported(format!(
            "{} cannot end a grant of another client",
            self.capability()
        )))
    }

    /// Turns a holder's claim into something else, and says where it stands. Renews it. Idempotent.
    ///
    /// Where each claim has a lease of its own, a detached one needs nothing but its renewal.
    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        match to {
            Change::Detach => {
                let mut answers = self.renew(std::slice::from_ref(claim)).await;
                answers.pop().unwrap_or_else(|| Err(no_standing()))
            }
            other => Err(other.refused_by(self.capability())),
        }
    }

    /// The abilities of this store beside the contract.
    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// A store that answers fewer claims than it was asked for.
pub(crate) fn no_standing() -> Error {
    Error::protocol("the store does not say where the grant stands")
}
