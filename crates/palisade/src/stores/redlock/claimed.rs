//! What this client has sent about each of its claims.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ByClaim, Claim, ClaimId, ClaimRef};

/// One entry for each claim that may be on a server, until it is released. Without its entry, as in
/// another process, a claim is taken to be on every server.
#[derive(Default)]
pub(super) struct ClaimedNodes(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    claims: ByClaim<Sent>,
    /// How many entries there may be before those of claims that have expired are removed.
    sweep_at: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Sent {
    /// One bit for each server that was sent the claim.
    to: u64,
    /// The fence that the servers were sent with it.
    pub(super) first: Fence,
    /// The fence of the grant.
    pub(super) granted: Option<Fence>,
    until: Moment,
}

impl Sent {
    pub(super) fn is_sent_to(&self, place: usize) -> bool {
        self.to & (1 << place) != 0
    }
}

const FEW: usize = 1024;

impl ClaimedNodes {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim is sent to these servers, with this fence.
    pub(super) fn sent(
        &self,
        claim: &Claim,
        first: Fence,
        places: impl IntoIterator<Item = usize>,
    ) {
        let mut entries = self.lock();
        if entries.claims.len() >= entries.sweep_at.max(FEW) {
            let now = BootClock.now();
            entries.claims.retain(|_, sent| sent.until > now);
            entries.sweep_at = 2 * entries.claims.len();
        }
        let mut sent = Sent {
            to: 0,
            first,
            granted: None,
            until: BootClock.now() + claim.lease,
        };
        // An earlier grant of the claim, whose answer was lost, may be on other servers.
        sent.to = entries.claims.get(&claim.id).map_or(0, |before| before.to);
        sent.to |= places
            .into_iter()
            .fold(0, |bits, place| bits | (1 << place));
        entries.claims.insert(claim.id, sent);
    }

    pub(super) fn granted(&self, claim: ClaimId, fence: Fence) {
        if let Some(sent) = self.lock().claims.get_mut(&claim) {
            sent.granted = Some(fence);
        }
    }

    /// The claim was released on all servers that it was sent to; some have not answered yet.
    pub(super) fn undone(&self, claim: ClaimId) {
        if let Some(sent) = self.lock().claims.get_mut(&claim) {
            (sent.to, sent.granted, sent.until) = (0, None, Moment::default());
        }
    }

    pub(super) fn get(&self, claim: ClaimId) -> Option<Sent> {
        self.lock().claims.get(&claim).copied()
    }

    pub(super) fn remove(&self, claim: ClaimId) -> Option<Sent> {
        self.lock().claims.remove(&claim)
    }
}

impl Sent {
    /// The fence that servers may still have which the second round has not reached.
    pub(super) fn first_of(sent: Option<Sent>, claim: &ClaimRef) -> Option<Fence> {
        sent.filter(|sent| sent.granted.is_some() && sent.granted == claim.fence)
            .map(|sent| sent.first)
    }
}
