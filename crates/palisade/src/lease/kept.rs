//! One claim that the keeper keeps alive, from its place in line to its end.
//!
//! Everything a guard says is computed here, from the clock and the latest confirmation. Nothing is revived: what is over once
//! is over for good, whatever answer comes late.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::deadline::{self, Deadline, Drift};
use super::{LossReason, Moment, Status};
use crate::error::Error;
use crate::fence::Fence;
use crate::store::{Claim, ClaimRef, Gone, Grant, Mode, Place, Standing};

/// What the user asked of the keeper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) auto_renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) stop_margin: Duration,
    pub(crate) drift: Drift,
}

pub(crate) struct Kept {
    pub(crate) claim: Arc<Claim>,
    pub(crate) terms: Terms,
    state: Mutex<State>,
    changed: Notify,
    /// Fires with the stop margin; made when somebody asks for it.
    stop: OnceLock<CancellationToken>,
    /// The same for a multi-lock that this belongs to.
    group_stop: OnceLock<CancellationToken>,
    /// Set when a writer has become a reader.
    reader: AtomicBool,
    /// The other members of a multi-lock.
    fellows: OnceLock<Vec<Weak<Kept>>>,
}

struct State {
    stage: Stage,
    deadline: Deadline,
    /// The end of the longest hold.
    held_until: Moment,
    /// Whether `deadline` was confirmed for a holder, and not for the waiter it was before.
    as_holder: bool,
    /// Since when, and why, the store could not be asked.
    trouble: Option<Trouble>,
}

/// Where a claim stands, as far as we know.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// In line, and when it is worth asking again without being woken.
    Waiting { place: Box<Place>, ask_at: Option<Moment> },
    /// It holds.
    Held(Fence),
    /// It was in line, and the store does not have it any more.
    TurnedAway(Gone),
    /// It held, and does not any more.
    Lost { reason: LossReason, fence: Fence },
    /// Its owner gave it back.
    GivenBack,
}

/// The store could not be asked.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) since: Moment,
    pub(crate) error: Error,
}

/// When the first in line asks without being woken. Never at once: a store that is wrong about it must not be flooded.
fn ask_at(place: &Place, now: Moment) -> Option<Moment> {
    place.ask_in.map(|left| now + left.max(Duration::from_millis(1)))
}

impl Kept {
    /// A claim that the store granted at once.
    pub(crate) fn granted(claim: Arc<Claim>, terms: Terms, sent: Moment, grant: Grant, now: Moment) -> Arc<Kept> {
        let deadline = Deadline::of(sent, claim.lease, grant.lease, terms.drift);
        let kept = Kept::new(claim, terms, Stage::Held(grant.fence), deadline);
        let mut state = kept.lock();
        state.held_until = kept.longest_hold(now);
        state.as_holder = true;
        drop(state);
        Arc::new(kept)
    }

    /// A claim that the store put in line.
    pub(crate) fn queued(claim: Arc<Claim>, terms: Terms, sent: Moment, place: Place, now: Moment) -> Arc<Kept> {
        // The length that a session store grants to a waiter may be longer than the wait lease; it is never counted longer
        // than what the claim would have as a holder.
        let deadline = Deadline::of(sent, claim.lease, place.lease, terms.drift);
        let ask_at = ask_at(&place, now);
        Arc::new(Kept::new(claim, terms, Stage::Waiting { place: Box::new(place), ask_at }, deadline))
    }

    fn new(claim: Arc<Claim>, terms: Terms, stage: Stage, deadline: Deadline) -> Kept {
        let state = State { stage, deadline, held_until: Moment::NEVER, as_holder: false, trouble: None };
        Kept {
            claim,
            terms,
            state: Mutex::new(state),
            changed: Notify::new(),
            stop: OnceLock::new(),
            group_stop: OnceLock::new(),
            reader: AtomicBool::new(false),
            fellows: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn longest_hold(&self, now: Moment) -> Moment {
        self.terms.max_hold.map_or(Moment::NEVER, |longest| now + longest)
    }

    /// The claim as the store is to be asked about it now.
    pub(crate) fn to_ref(&self) -> ClaimRef {
        let fence = match self.lock().stage {
            Stage::Held(fence) | Stage::Lost { fence, .. } => Some(fence),
            _ => None,
        };
        self.claim.to_ref(fence)
    }

    pub(crate) fn stage(&self) -> Stage {
        self.lock().stage.clone()
    }

    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.lock().trouble.clone()
    }

    /// Whether there is nothing left to keep.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.lock().stage, Stage::Waiting { .. } | Stage::Held(_))
    }

    /// Whether the clock has ended it, though nobody may have looked yet.
    pub(crate) fn has_run_out(&self, now: Moment) -> bool {
        let state = self.lock();
        matches!(state.stage, Stage::Held(_)) && now >= self.end(&state).lost_at
    }

    /// When the keeper is to renew it next; `None` when there is nothing to renew any more.
    pub(crate) fn renew_at(&self) -> Option<Moment> {
        let state = self.lock();
        match state.stage {
            Stage::Waiting { .. } => Some(state.deadline.renew_at()),
            Stage::Held(_) if self.terms.auto_renew => Some(state.deadline.renew_at()),
            // One renewal is still wanted: it raises a handed-over grant to its full lease.
            Stage::Held(_) if !state.as_holder => Some(state.deadline.renew_at()),
            _ => None,
        }
    }

    /// How long to wait for the answer to a renewal that is sent now.
    pub(crate) fn attempt(&self, now: Moment) -> Duration {
        self.lock().deadline.attempt(now)
    }

    /// How long a renewal may be brought forward to share a request with others.
    pub(crate) fn leeway(&self) -> Duration {
        self.lock().deadline.length() / 10
    }

    /// Takes the answer to a renewal that was sent at `sent`.
    pub(crate) fn confirm(self: &Arc<Self>, sent: Moment, standing: Standing, now: Moment) {
        self.expire(now);
        let mut state = self.lock();
        state.trouble = None;
        match (&state.stage, standing) {
            (Stage::Waiting { .. }, Standing::Waiting(place)) => {
                let confirmed = Deadline::of(sent, self.claim.lease, place.lease, self.terms.drift);
                state.deadline = state.deadline.or_later(confirmed);
                let ask_at = ask_at(&place, now);
                state.stage = Stage::Waiting { place: Box::new(place), ask_at };
            }
            (Stage::Waiting { .. }, Standing::Held(grant)) => {
                let confirmed = Deadline::of(sent, self.claim.lease, grant.lease, self.terms.drift);
                state.deadline = state.deadline.or_later(confirmed);
                state.held_until = self.longest_hold(now);
                state.as_holder = true;
                state.stage = Stage::Held(grant.fence);
            }
            (Stage::Waiting { .. }, Standing::Gone(why)) => state.stage = Stage::TurnedAway(why),
            (Stage::Held(fence), Standing::Held(grant)) if grant.fence == *fence => {
                let confirmed = Deadline::of(sent, self.claim.lease, grant.lease, self.terms.drift);
                state.deadline = state.deadline.or_later(confirmed);
                state.as_holder = true;
            }
            // Another fence under our claim: the store forgot our grant and gave a new one. Ours is gone.
            (Stage::Held(fence), Standing::Held(_)) => {
                state.stage = Stage::Lost { reason: LossReason::Expired, fence: *fence };
            }
            // The answer to a request that the store took before it handed the lock over.
            (Stage::Held(_), Standing::Waiting(_)) => {}
            (Stage::Held(fence), Standing::Gone(why)) => {
                state.stage = Stage::Lost { reason: why.as_loss(), fence: *fence };
            }
            (Stage::TurnedAway(_) | Stage::Lost { .. } | Stage::GivenBack, _) => {}
        }
        self.announce(state);
    }

    /// Takes a grant that the store pushed: it keeps the deadline of the waiter, since it was given while the claim waited.
    pub(crate) fn pushed(self: &Arc<Self>, fence: Fence, now: Moment) {
        let mut state = self.lock();
        if let Stage::Waiting { .. } = state.stage {
            state.held_until = self.longest_hold(now);
            state.stage = Stage::Held(fence);
        }
        self.announce(state);
    }

    /// The store told that it ended this claim.
    pub(crate) fn ended(self: &Arc<Self>, why: Gone) {
        let mut state = self.lock();
        match state.stage {
            Stage::Waiting { .. } => state.stage = Stage::TurnedAway(why),
            Stage::Held(fence) => state.stage = Stage::Lost { reason: why.as_loss(), fence },
            _ => {}
        }
        self.announce(state);
    }

    /// The store could not be asked. Nothing else changes: the lease runs on.
    pub(crate) fn troubled(self: &Arc<Self>, error: &Error, now: Moment) {
        let mut state = self.lock();
        match &mut state.trouble {
            Some(trouble) => trouble.error = error.clone(),
            trouble => *trouble = Some(Trouble { since: now, error: error.clone() }),
        }
        self.announce(state);
    }

    /// Whether so little is left, or so little was granted, that it must be renewed before its holder begins.
    pub(crate) fn must_renew_to_begin(&self, now: Moment) -> bool {
        let state = self.lock();
        let never_raised = !self.terms.auto_renew && !state.as_holder;
        never_raised || state.deadline.is_too_short_to_begin(now, self.terms.stop_margin, self.claim.wait_lease())
    }

    /// Marks it as given back; nothing that comes later counts. The answer is what to release, and why it was lost before, if
    /// it was; `None` when it had been given back already.
    pub(crate) fn give_back(&self, now: Moment) -> Option<(ClaimRef, Option<LossReason>)> {
        self.expire(now);
        let mut state = self.lock();
        let (fence, lost) = match std::mem::replace(&mut state.stage, Stage::GivenBack) {
            Stage::GivenBack => return None,
            Stage::Lost { reason, fence } => (Some(fence), Some(reason)),
            Stage::Held(fence) => (Some(fence), None),
            Stage::Waiting { .. } | Stage::TurnedAway(_) => (None, None),
        };
        self.announce(state);
        Some((self.claim.to_ref(fence), lost))
    }

    /// The store has made a reader of the writer.
    pub(crate) fn downgraded(&self) {
        self.reader.store(true, Ordering::Relaxed);
    }

    /// How it holds, or wants to.
    pub(crate) fn mode(&self) -> Mode {
        if self.reader.load(Ordering::Relaxed) { Mode::Shared } else { self.claim.mode }
    }

    /// What a guard says.
    pub(crate) fn status(&self, now: Moment) -> Status {
        self.expire(now);
        let state = self.lock();
        match state.stage {
            Stage::Held(_) if state.trouble.is_some() || state.deadline.is_at_risk(now) => Status::AtRisk,
            Stage::Held(_) => Status::Held,
            Stage::Lost { reason, .. } => {
                drop(state);
                self.tell_of_loss();
                Status::Lost(reason)
            }
            // A guard outlives its own release only inside `run`; it holds nothing then.
            Stage::Waiting { .. } | Stage::TurnedAway(_) | Stage::GivenBack => Status::Lost(LossReason::Expired),
        }
    }

    /// How long it holds without another renewal.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        let state = self.lock();
        match state.stage {
            Stage::Held(_) => self.end(&state).lost_at.since(now),
            _ => Duration::ZERO,
        }
    }

    /// The length of the latest confirmation.
    pub(crate) fn lease(&self) -> Duration {
        self.lock().deadline.length()
    }

    /// Until when the latest confirmation is good.
    pub(crate) fn valid_until(&self) -> Moment {
        self.lock().deadline.valid_until()
    }

    fn end(&self, state: &State) -> deadline::End {
        deadline::end(state.deadline.valid_until(), state.held_until, self.terms.stop_margin)
    }

    /// Fires what is due, and says when to look again; `None` when there is nothing to watch any more.
    pub(crate) fn watch(&self, now: Moment) -> Option<Moment> {
        self.expire(now);
        let state = self.lock();
        let held = match state.stage {
            Stage::Held(_) => Some(self.end(&state)),
            Stage::Lost { .. } => None,
            _ => return None,
        };
        drop(state);
        let Some(end) = held else {
            // Once more: a waker that panicked may have cut the telling short.
            self.tell_of_loss();
            return None;
        };
        if now < end.stop_at {
            return Some(end.stop_at);
        }
        self.stop();
        Some(end.lost_at)
    }

    /// Lets the clock end it.
    fn expire(&self, now: Moment) {
        let mut state = self.lock();
        let Stage::Held(fence) = state.stage else { return };
        let end = self.end(&state);
        if now < end.lost_at {
            return;
        }
        state.stage = Stage::Lost { reason: end.reason, fence };
        self.announce(state);
    }

    /// Tells everyone who waits for a change. Called with the state that was changed, and gives its lock back first: a waker
    /// or a callback may look at this claim.
    fn announce(&self, state: MutexGuard<'_, State>) {
        let lost = matches!(state.stage, Stage::Lost { .. });
        drop(state);
        self.changed.notify_waiters();
        if lost {
            self.tell_of_loss();
        }
    }

    /// Fires the tokens, and tells the fellows. Whoever sees the loss does this first: nobody knows of it before they do.
    fn tell_of_loss(&self) {
        self.stop();
        for fellow in self.fellows.get().into_iter().flatten().filter_map(Weak::upgrade) {
            fellow.member_lost();
        }
    }

    /// Another member of the same multi-lock was lost.
    fn member_lost(&self) {
        let mut state = self.lock();
        // A member that is over already has told the others itself: this is where the telling ends.
        let Stage::Held(fence) = state.stage else { return };
        state.stage = Stage::Lost { reason: LossReason::MemberLost, fence };
        self.announce(state);
    }

    /// Binds the members of a multi-lock: one lost, all lost.
    pub(crate) fn bind(members: &[&Arc<Kept>], now: Moment) {
        for member in members {
            let fellows = members.iter().filter(|other| !Arc::ptr_eq(other, member)).map(|other| Arc::downgrade(other)).collect();
            // Set once: a claim belongs to one group.
            let _ = member.fellows.set(fellows);
        }
        // One may have been lost before it was bound: whoever sees that tells the others.
        for member in members {
            member.status(now);
        }
    }

    /// Completes at the next change after the call; check the stage after calling and before awaiting.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// The token that fires with the stop margin, or at once if that has passed.
    pub(crate) fn stop_token(&self, now: Moment) -> CancellationToken {
        let token = self.stop.get_or_init(CancellationToken::new).clone();
        self.stop_if_due(now);
        token
    }

    /// Fires the token of a multi-lock too.
    pub(crate) fn stop_group(&self, token: &CancellationToken, now: Moment) {
        // Set once: a claim belongs to one group, and a group has one token.
        let _ = self.group_stop.set(token.clone());
        self.stop_if_due(now);
    }

    fn stop_if_due(&self, now: Moment) {
        // `watch` fires the tokens itself while there is something to watch.
        if self.watch(now).is_none() {
            self.stop();
        }
    }

    fn stop(&self) {
        for token in [&self.stop, &self.group_stop].into_iter().filter_map(OnceLock::get) {
            token.cancel();
        }
    }
}
