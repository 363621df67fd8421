//! When each claim of a client is due: to be renewed, and to be checked for its end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::pending::Pending;
use super::{Moment, TICK, TrackedClaim};
use crate::store::{ByClaim, ClaimId, ClaimRef};

/// How long sleepers go on ticking after the last claim has gone. A program that acquires and
/// releases one lock in a loop would otherwise wake them every time.
const LINGER: Duration = Duration::from_secs(2);

/// The claims of a client, ordered by what is due next.
#[derive(Default)]
pub(super) struct Schedule {
    /// Claims in flight, from before they are sent until they are tracked.
    pub(super) pending: ByClaim<Arc<Pending>>,
    pub(super) claims: ByClaim<Row>,
    pub(super) renewals: BTreeSet<(Moment, ClaimId)>,
    pub(super) looks: BTreeSet<(Moment, ClaimId)>,
    /// Grants that the clock has ended and that are not renewed any more: the keeper releases them.
    pub(super) ended: Vec<ClaimRef>,
    /// Since when the store cannot be reached.
    pub(super) cut_off: Option<Moment>,
    /// When the keeper wakes by itself.
    pub(super) keeper_wakes: Option<Moment>,
    /// When the warden wakes by itself.
    pub(super) warden_wakes: Option<Moment>,
    /// When the registry last had a claim.
    pub(super) last_busy: Moment,
    pub(super) closed: bool,
}

/// A tracked claim, and when it is due.
pub(super) struct Row {
    pub(super) tracked: Arc<TrackedClaim>,
    pub(super) renew_at: Option<Moment>,
    pub(super) look_at: Option<Moment>,
}

impl Schedule {
    pub(super) fn set(
        &mut self,
        tracked: &Arc<TrackedClaim>,
        renew_at: Option<Moment>,
        look_at: Option<Moment>,
    ) {
        let id = tracked.claim.id;
        // A renewal that was asked for, and not taken up yet, stays due.
        let due = self.claims.get(&id).and_then(|row| row.renew_at);
        let renew_at = renew_at.map(|at| due.map_or(at, |due| due.min(at)));
        self.remove(id);
        self.renewals.extend(renew_at.map(|at| (at, id)));
        self.looks.extend(look_at.map(|at| (at, id)));
        self.claims.insert(
            id,
            Row {
                tracked: Arc::clone(tracked),
                renew_at,
                look_at,
            },
        );
    }

    pub(super) fn remove(&mut self, id: ClaimId) {
        let Some(row) = self.claims.remove(&id) else {
            return;
        };
        if let Some(at) = row.renew_at {
            self.renewals.remove(&(at, id));
        }
        if let Some(at) = row.look_at {
            self.looks.remove(&(at, id));
        }
    }

    /// Moves a claim's renewal; `false` when it is not tracked any more.
    pub(super) fn reschedule(&mut self, id: ClaimId, at: Option<Moment>) -> bool {
        let Some(row) = self.claims.get_mut(&id) else {
            return false;
        };
        if let Some(old) = std::mem::replace(&mut row.renew_at, at) {
            self.renewals.remove(&(old, id));
        }
        self.renewals.extend(at.map(|at| (at, id)));
        true
    }

    /// Whether a renewal was requested that the keeper has not begun yet: beginning it moves it
    /// ahead.
    pub(super) fn is_due(&self, id: ClaimId, now: Moment) -> bool {
        self.claims
            .get(&id)
            .and_then(|row| row.renew_at)
            .is_some_and(|at| at <= now)
    }

    /// Removes the row of this very claim, and not that of another one with the same id.
    pub(super) fn remove_this(&mut self, tracked: &TrackedClaim) {
        let id = tracked.claim.id;
        if self
            .claims
            .get(&id)
            .is_some_and(|row| std::ptr::eq(Arc::as_ptr(&row.tracked), tracked))
        {
            self.remove(id);
            self.ended.extend(tracked.ended_by_clock());
        }
    }

    /// Updates when the warden checks this claim next, and removes a claim that is over.
    pub(super) fn look_again(&mut self, tracked: &Arc<TrackedClaim>, at: Option<Moment>) {
        let id = tracked.claim.id;
        let Some(at) = at else {
            return self.remove_this(tracked);
        };
        if let Some(row) = self.claims.get_mut(&id)
            && Arc::ptr_eq(&row.tracked, tracked)
            && row.look_at.is_none()
        {
            row.look_at = Some(at);
            self.looks.insert((at, id));
        }
    }

    /// Up to when renewals are brought forward: none unless one is due now.
    pub(super) fn window(&self, now: Moment) -> Option<Moment> {
        let (at, claim) = self.renewals.first()?;
        (*at <= now).then(|| {
            self.claims
                .get(claim)
                .map_or(now, |row| now + row.tracked.leeway())
        })
    }

    /// When a sleeper wakes by itself; `None` when nothing has been tracked for a while.
    pub(super) fn wake_time(&self, next: Option<Moment>, now: Moment) -> Option<Moment> {
        let tick = now + TICK;
        match next {
            Some(at) => Some(at.min(tick)),
            None if !self.claims.is_empty() || now.since(self.last_busy) < LINGER => Some(tick),
            None => None,
        }
    }
}
