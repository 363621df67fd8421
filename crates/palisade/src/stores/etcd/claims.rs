//! This client's own claims: the slot, the mode and the watches of each.

use std::sync::Arc;

use super::client::proto::Compare;
use super::client::txn;
use super::entry::fence_of;
use super::key_pool::LockKey;
use super::queue_rules::Blocker;
use super::sessions::Session;
use crate::fence::Fence;
use crate::lease::Moment;
use crate::store::{Claim, ClaimId, Grant, Kind, Lease, Mode};
use crate::stores::kit::session::claims::{self as kit, Stage};

/// Where a claim stands in the store: its key, the revision that created it, and the session that
/// it is attached to.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) key: Arc<LockKey>,
    pub(super) revision: i64,
    pub(super) session: Arc<Session>,
}

impl Slot {
    pub(super) fn new(key: Arc<LockKey>, revision: i64, session: Arc<Session>) -> Slot {
        session.attach(&key);
        Slot {
            key,
            revision,
            session,
        }
    }

    pub(super) fn fence(&self) -> Fence {
        fence_of(self.revision)
    }

    pub(super) fn grant(&self) -> Grant {
        Grant {
            fence: self.fence(),
            lease: self.session.lease(),
        }
    }

    /// The condition that the key is still this claim's.
    pub(super) fn is_there(&self) -> Compare {
        txn::created_at(&self.key.bytes, self.revision)
    }
}

/// A claim of ours that is in the store, as far as we know.
pub(super) struct OwnClaim {
    pub(super) claim: Arc<Claim>,
    pub(super) slot: Slot,
    /// As they are now: a downgrade changes them.
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    /// The end of its minimum hold.
    pub(super) closed_until: Option<Moment>,
    /// Whether its session is as long as the minimum hold. Such a session is never renewed: it must
    /// end in time if we are gone.
    pub(super) is_span: bool,
    /// Set while it waits.
    pub(super) waiting: Option<Waiting>,
    /// Whether it holds with the short session of a waiter still: its next renewal moves it to the
    /// full one.
    pub(super) is_short: bool,
    pub(super) watch: OwnWatch,
}

/// The watch of a claim's own key.
#[derive(Clone, Copy, Default)]
pub(super) struct OwnWatch {
    pub(super) id: Option<i64>,
    pub(super) is_open: bool,
    /// Whether the key was seen after the watch was opened: then the watch reports its end.
    pub(super) is_verified: bool,
}

/// What a waiter waits for.
pub(super) struct Waiting {
    pub(super) blocker: Blocker,
    pub(super) watch: Option<i64>,
    /// The store's revision when the line was last read.
    pub(super) seen: i64,
    /// Whether it waits for a holder, and not only for another waiter.
    pub(super) is_near: bool,
    /// Whether the watch has reported since that it is worth looking.
    pub(super) is_woken: bool,
    /// The revision of the last event of its watch.
    pub(super) last_event: i64,
}

impl OwnClaim {
    pub(super) fn new(claim: &Arc<Claim>, slot: Slot) -> OwnClaim {
        OwnClaim {
            claim: Arc::clone(claim),
            slot,
            kind: claim.kind,
            mode: claim.mode,
            closed_until: None,
            is_span: false,
            waiting: None,
            is_short: false,
            watch: OwnWatch::default(),
        }
    }

    /// Whether its next renewal must move it to another session: it has a waiter's still, a claim
    /// may yet arrive that names its session, or its minimum hold is nearly over.
    fn must_move(&self, now: Moment) -> bool {
        self.is_short
            || self.slot.session.is_doubtful()
            || self.is_span && self.slot.session.end_of().since(now) < self.claim.lease * 2
    }

    pub(super) fn watches(&self) -> impl Iterator<Item = i64> {
        self.watch
            .id
            .into_iter()
            .chain(self.waiting.as_ref().and_then(|waiting| waiting.watch))
    }
}

impl kit::OwnClaim for OwnClaim {
    type Session = Arc<Session>;

    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    fn session(&self) -> &Arc<Session> {
        &self.slot.session
    }

    fn session_id(&self) -> i64 {
        self.slot.session.id
    }

    fn renews_session(&self) -> bool {
        !self.is_span
    }

    fn fence(&self) -> Fence {
        self.slot.fence()
    }

    fn stage(&self, now: Moment) -> Stage {
        if self.waiting.is_some() {
            Stage::Waiting
        } else if self.must_move(now) {
            Stage::Outdated
        } else if self.watch.is_verified && !self.is_span {
            Stage::Held
        } else {
            Stage::Unverified
        }
    }

    /// For as long as its session lasts, or as much as its minimum hold has left.
    fn grant(&self, asked: Moment) -> Grant {
        let mut grant = self.slot.grant();
        if self.is_span {
            let left = self.slot.session.end_of().since(asked);
            grant.lease = Lease::of(self.claim.lease.min(left));
        }
        grant
    }
}

/// All claims of a client.
pub(super) type ClaimTable = kit::ClaimTable<OwnClaim>;

impl ClaimTable {
    pub(super) fn slot(&self, claim: ClaimId) -> Option<Slot> {
        self.lock().own.get(&claim).map(|own| own.slot.clone())
    }

    /// Whether this claim is one of ours, with a key of this revision.
    pub(super) fn knows(&self, claim: ClaimId, revision: i64) -> bool {
        self.lock()
            .own
            .get(&claim)
            .is_some_and(|own| own.slot.revision == revision)
    }

    /// Notes that the key of a claim was attached to another session.
    pub(super) fn moved(&self, claim: ClaimId, revision: i64, to: Arc<Session>) {
        if let Some(own) = self
            .lock()
            .own
            .get_mut(&claim)
            .filter(|own| own.slot.revision == revision)
        {
            own.slot.session = to;
        }
    }

    /// Whether the same still waits.
    pub(super) fn still_waits(&self, claim: ClaimId, revision: i64) -> bool {
        self.lock()
            .own
            .get(&claim)
            .is_some_and(|own| own.slot.revision == revision && own.waiting.is_some())
    }
}
