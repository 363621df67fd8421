//! How the end of a claim is found by the clock, and told.

use std::sync::MutexGuard;

use tokio_util::sync::CancellationToken;

use super::{Stage, State, TrackedClaim};
use crate::lease::{LossReason, Moment, wake};
use crate::store::ClaimRef;

impl TrackedClaim {
    /// Fires what is due, and returns when to check again; `None` when there is nothing to watch.
    pub(crate) fn watch(&self, now: Moment) -> Option<Moment> {
        self.expire(now);
        let state = self.lock();
        let end = match state.stage {
            Stage::Held => self.end(&state),
            Stage::Lost(_) => {
                drop(state);
                self.tell_of_loss();
                return None;
            }
            Stage::Waiting { .. } | Stage::TurnedAway(_) | Stage::GivenBack => return None,
        };
        drop(state);
        if now < end.stop_at {
            return Some(end.stop_at);
        }
        self.stop();
        Some(end.lost_at)
    }

    /// The grant that the clock has ended and the store may still have. It is not renewed any more,
    /// and would live as long as its session.
    pub(crate) fn ended_by_clock(&self) -> Option<ClaimRef> {
        let state = self.lock();
        let ended = matches!(
            state.stage,
            Stage::Lost(LossReason::Expired | LossReason::MaxHold | LossReason::MemberLost)
        );
        ended.then(|| self.claim.to_ref(state.fence))
    }

    /// Lets the clock end it.
    pub(super) fn expire(&self, now: Moment) {
        let mut state = self.lock();
        let Stage::Held = state.stage else { return };
        let end = self.end(&state);
        if now >= end.lost_at {
            state.stage = Stage::Lost(end.reason);
            self.announce(state);
        }
    }

    /// Wakes all waiters for a change. Takes the guard of the changed state, and drops it first: a
    /// waker may read this claim.
    pub(super) fn announce(&self, state: MutexGuard<'_, State>) {
        let lost = matches!(state.stage, Stage::Lost(_));
        drop(state);
        wake(|| self.changed.notify_waiters());
        if lost {
            self.tell_of_loss();
        }
    }

    /// Fires the stop tokens, and tells the group. Every call that sees a loss runs this first, so
    /// that no caller learns of the loss before the tokens fire. Runs wakers: never with a mutex
    /// held.
    pub(super) fn tell_of_loss(&self) {
        self.stop();
        if let Some(group) = self.group.get() {
            group.lost();
        }
    }

    /// Another member of the same multi-lock was lost.
    pub(super) fn member_lost(&self) {
        let mut state = self.lock();
        match state.stage {
            Stage::Held => {
                state.stage = Stage::Lost(LossReason::MemberLost);
                drop(state);
                wake(|| self.changed.notify_waiters());
            }
            // The call that ended it may not have told the group yet.
            Stage::Lost(_) => drop(state),
            Stage::Waiting { .. } | Stage::TurnedAway(_) | Stage::GivenBack => return,
        }
        self.stop();
    }

    /// Completes at the next change after the call; check the stage after calling and before
    /// awaiting.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// The token that fires with the stop margin. Call [`watch`](TrackedClaim::watch) after this:
    /// it may be due.
    pub(crate) fn stop_token(&self) -> CancellationToken {
        self.stop.get_or_init(CancellationToken::new).clone()
    }

    /// Fires the stop tokens.
    pub(crate) fn stop(&self) {
        if let Some(stop) = self.stop.get() {
            wake(|| stop.cancel());
        }
        if let Some(group) = self.group.get() {
            wake(|| group.stop.cancel());
        }
    }
}
