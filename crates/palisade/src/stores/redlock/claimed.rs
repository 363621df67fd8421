//! What this client has sent about each of its claims.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Servers;
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

#[derive(Clone, Default)]
pub(super) struct Sent {
    /// One bit for each server that was sent the claim.
    to: u64,
    /// The fence of its first round: a server that no later round has reached has this one.
    first: Option<Fence>,
    /// The fence of the grant.
    granted: Option<Fence>,
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
    pub(super) fn sent(&self, claim: &Claim, fence: Fence, servers: &Servers) {
        let mut entries = self.lock();
        let now = BootClock.now();
        if entries.claims.len() >= entries.sweep_at.max(FEW) {
            entries.claims.retain(|_, sent| sent.until > now);
            entries.sweep_at = 2 * entries.claims.len();
        }
        // An earlier grant of the claim, whose answer was lost, may be on other servers.
        let sent = entries.claims.entry(claim.id).or_default();
        for (place, _) in servers.iter().enumerate().filter(|(_, one)| one.is_some()) {
            sent.to |= 1 << place;
        }
        sent.first.get_or_insert(fence);
        sent.until = now + claim.lease;
    }

    pub(super) fn granted(&self, claim: ClaimId, fence: Fence) {
        if let Some(sent) = self.lock().claims.get_mut(&claim) {
            sent.granted = Some(fence);
        }
    }

    pub(super) fn granted_to(&self, claim: ClaimId) -> Option<Fence> {
        self.lock().claims.get(&claim)?.granted
    }

    /// The claim was released on all servers that it was sent to; some have not answered yet.
    pub(super) fn undone(&self, claim: ClaimId) {
        if let Some(sent) = self.lock().claims.get_mut(&claim) {
            *sent = Sent::default();
        }
    }

    pub(super) fn get(&self, claim: ClaimId) -> Option<Sent> {
        self.lock().claims.get(&claim).cloned()
    }

    /// The lowest fence that a server may have with this grant: that of the first round, where the
    /// grant is this client's.
    pub(super) fn lowest(&self, claim: &ClaimRef) -> Option<Fence> {
        let entries = self.lock();
        let sent = entries.claims.get(&claim.claim.id);
        let mine = sent.filter(|sent| sent.granted.is_some() && sent.granted == claim.fence);
        mine.and_then(|sent| sent.first).or(claim.fence)
    }

    pub(super) fn remove(&self, claim: ClaimId) {
        self.lock().claims.remove(&claim);
    }
}
