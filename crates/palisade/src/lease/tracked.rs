//! One claim that the keeper renews, from its place in line to its end.
//!
//! Everything a guard says is computed here, from the clock and the latest confirmation. Nothing is
//! revived: a claim that is over stays over, whatever answer comes late.

mod group;
mod loss;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use self::group::Group;
use super::deadline::{self, Deadline, Drift};
use super::{LossReason, Moment, Status};
use crate::error::Error;
use crate::fence::Fence;
use crate::store::{Claim, ClaimRef, Gone, Grant, Lease, Mode, Place, Standing};

/// How many renewals of one claim may be in flight: one that hangs, and one that follows it.
const ATTEMPTS_AT_ONCE: u8 = 2;

/// The user's options that concern the keeper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) auto_renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) stop_margin: Duration,
    pub(crate) drift: Drift,
}

pub(crate) struct TrackedClaim {
    pub(crate) claim: Arc<Claim>,
    pub(crate) terms: Terms,
    state: Mutex<State>,
    changed: Notify,
    /// Fires with the stop margin; made at its first use.
    stop: OnceLock<CancellationToken>,
    /// The multi-lock that it belongs to.
    group: OnceLock<Arc<Group>>,
}

struct State {
    stage: Stage,
    /// The fence of the grant, once there is one; kept after its end.
    fence: Option<Fence>,
    /// Its mode; a downgrade changes it.
    mode: Mode,
    deadline: Deadline,
    /// The length that the store granted to the holder.
    granted: Option<Duration>,
    /// The end of the longest hold.
    held_until: Moment,
    /// Since when, and why, the store could not be asked.
    trouble: Option<Trouble>,
    /// Renewals in flight.
    attempts: u8,
    /// When the first request was sent that the store has not answered.
    unanswered_since: Option<Moment>,
    /// When the last of them should have been answered.
    overdue_at: Moment,
    /// A request for the waiter, beside its heartbeat, is in flight.
    asking: bool,
    /// One more request must follow: the store may have handled that one before the change.
    ask_pending: bool,
    /// Pushes may belong to an earlier attempt with the same claim: the store is asked instead.
    doubts_pushes: bool,
    /// A grant with little time left has been renewed once before it is returned.
    hurried: bool,
    /// Set while the grant is being changed: it cannot be entered then.
    leaving: bool,
}

/// The stage of a claim, as far as we know.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// In line, and when to ask again without a wake-up.
    Waiting {
        place: Box<Place>,
        ask_at: Option<Moment>,
    },
    /// It holds.
    Held,
    /// It was in line, and the store does not have it any more.
    TurnedAway(Gone),
    /// It held, and does not any more.
    Lost(LossReason),
    /// Its owner gave it back.
    GivenBack,
}

/// The store could not be asked.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) since: Moment,
    pub(crate) error: Error,
}

/// When a waiter asks without a wake-up. Never at once: a store that is wrong about it must not be
/// flooded.
fn ask_at(place: &Place, now: Moment) -> Option<Moment> {
    place
        .ask_in
        .map(|left| now + left.max(Duration::from_millis(1)))
}

impl TrackedClaim {
    /// A claim that the store granted at once. If little is left of the lease, because the answer
    /// took long, it stays a waiter that asks at once: its renewal dates the grant anew.
    pub(crate) fn granted(
        claim: Arc<Claim>,
        terms: Terms,
        sent: Moment,
        grant: Grant,
        now: Moment,
    ) -> Arc<TrackedClaim> {
        let deadline = Deadline::of(sent, claim.lease, grant.lease, terms.drift);
        if is_too_short(&claim, &terms, &deadline, now) {
            let place = Place {
                ahead: Some(0),
                ask_in: Some(Duration::ZERO),
                lease: grant.lease,
                holder: None,
            };
            return TrackedClaim::queued(claim, terms, sent, place, now);
        }
        TrackedClaim::held(claim, terms, sent, grant, now)
    }

    /// A claim that holds, however little is left of its lease.
    pub(crate) fn held(
        claim: Arc<Claim>,
        terms: Terms,
        sent: Moment,
        grant: Grant,
        now: Moment,
    ) -> Arc<TrackedClaim> {
        let deadline = Deadline::of(sent, claim.lease, grant.lease, terms.drift);
        let tracked = TrackedClaim::new(claim, terms, Stage::Held, deadline);
        let mut state = tracked.lock();
        state.fence = Some(grant.fence);
        state.granted = Some(deadline.length());
        state.held_until = tracked.longest_hold(now);
        drop(state);
        Arc::new(tracked)
    }

    /// A claim that the store put in line.
    pub(crate) fn queued(
        claim: Arc<Claim>,
        terms: Terms,
        sent: Moment,
        place: Place,
        now: Moment,
    ) -> Arc<TrackedClaim> {
        let deadline = Deadline::of(sent, claim.lease, place.lease, terms.drift);
        let ask_at = ask_at(&place, now);
        Arc::new(TrackedClaim::new(
            claim,
            terms,
            Stage::Waiting {
                place: Box::new(place),
                ask_at,
            },
            deadline,
        ))
    }

    fn new(claim: Arc<Claim>, terms: Terms, stage: Stage, deadline: Deadline) -> TrackedClaim {
        let mode = claim.mode;
        let state = State {
            stage,
            fence: None,
            mode,
            deadline,
            granted: None,
            held_until: Moment::NEVER,
            trouble: None,
            unanswered_since: None,
            attempts: 0,
            overdue_at: Moment::NEVER,
            asking: false,
            ask_pending: false,
            doubts_pushes: false,
            hurried: false,
            leaving: false,
        };
        TrackedClaim {
            claim,
            terms,
            state: Mutex::new(state),
            changed: Notify::new(),
            stop: OnceLock::new(),
            group: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn longest_hold(&self, now: Moment) -> Moment {
        self.terms
            .max_hold
            .map_or(Moment::NEVER, |longest| now + longest)
    }

    fn confirmation(&self, sent: Moment, lease: Lease) -> Deadline {
        Deadline::of(sent, self.claim.lease, lease, self.terms.drift)
    }

    /// The claim as the store is asked about it now.
    pub(crate) fn to_ref(&self) -> ClaimRef {
        self.claim.to_ref(self.lock().fence)
    }

    /// The fence of its grant; none while it waits.
    pub(crate) fn fence(&self) -> Fence {
        self.lock().fence.unwrap_or(Fence::NONE)
    }

    /// How it holds, or wants to.
    pub(crate) fn mode(&self) -> Mode {
        self.lock().mode
    }

    pub(crate) fn stage(&self) -> Stage {
        self.lock().stage.clone()
    }

    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.lock().trouble.clone()
    }

    /// When the first request was sent that the store has not answered; `None` when it owes none.
    pub(crate) fn unanswered_since(&self) -> Option<Moment> {
        self.lock().unanswered_since
    }

    /// Whether the claim is over, by the clock too. Tells the holder first: this runs wakers.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.expire(now);
        !matches!(self.lock().stage, Stage::Waiting { .. } | Stage::Held)
    }

    /// When the keeper renews it next; `None` when it is over.
    pub(crate) fn renew_at(&self) -> Option<Moment> {
        let state = self.lock();
        match state.stage {
            // Time alone wakes no waiter: it asks when time may have admitted it.
            Stage::Waiting { ask_at, .. } => Some(ask_at.map_or(state.deadline.renew_at(), |at| {
                at.min(state.deadline.renew_at())
            })),
            Stage::Held if self.terms.auto_renew => Some(state.deadline.renew_at()),
            _ => None,
        }
    }

    /// How long to wait for the answer to a renewal before the next is sent.
    pub(crate) fn attempt(&self, now: Moment) -> Duration {
        self.lock().deadline.attempt(now)
    }

    /// When the latest confirmed request was sent.
    pub(crate) fn confirmed_at(&self) -> Moment {
        self.lock().deadline.sent()
    }

    /// How long a renewal may be brought forward to share a request with others.
    pub(crate) fn leeway(&self) -> Duration {
        self.lock().deadline.length() / 10
    }

    /// Begins a renewal, unless the claim is over or enough are in flight. An attempt that should
    /// have been answered by now is trouble.
    pub(crate) fn begin_attempt(&self, now: Moment) -> bool {
        self.expire(now);
        let mut state = self.lock();
        if !matches!(state.stage, Stage::Waiting { .. } | Stage::Held) {
            return false;
        }
        let begun = state.attempts < ATTEMPTS_AT_ONCE;
        // The next may come early: to share a request, or because it was asked for.
        let is_overdue = now + state.deadline.length() / 10 >= state.overdue_at;
        let unanswered = state.attempts > 0 && is_overdue && state.trouble.is_none();
        state.attempts += u8::from(begun);
        if begun {
            state.overdue_at = now + state.deadline.attempt(now);
            state.unanswered_since.get_or_insert(now);
        }
        if unanswered {
            let error = Error::unavailable("the store has not answered a renewal in time");
            let since = state.unanswered_since.unwrap_or(now);
            state.trouble = Some(Trouble { since, error });
            self.announce(state);
        }
        begun
    }

    /// Whether to ask for the waiter now. While a request is in flight, one more follows it. While
    /// the store is unreachable, the keeper asks at its own pace.
    pub(crate) fn asks_now(&self) -> bool {
        let mut state = self.lock();
        if !matches!(state.stage, Stage::Waiting { .. }) {
            return false;
        }
        // In trouble too: an answer that is on its way may be older than what is to be asked about.
        let is_later = state.trouble.is_some() || std::mem::replace(&mut state.asking, true);
        state.ask_pending |= is_later;
        !is_later
    }

    /// The claim was sent more than once: a push may belong to an earlier attempt.
    #[must_use]
    pub(crate) fn sent_again(self: Arc<Self>) -> Arc<Self> {
        self.lock().doubts_pushes = true;
        self
    }

    /// A renewal was answered, or failed.
    pub(crate) fn end_attempt(&self) {
        let mut state = self.lock();
        state.attempts = state.attempts.saturating_sub(1);
    }

    /// Applies the answer to a renewal that was sent at `sent`.
    pub(crate) fn confirm(&self, sent: Moment, standing: Standing, now: Moment) {
        self.expire(now);
        let mut state = self.lock();
        state.trouble = None;
        // It answers: one that is still in flight is late from now on at the earliest.
        state.unanswered_since = (state.attempts > 0).then_some(now);
        state.asking = false;
        match (&state.stage, standing) {
            (Stage::Waiting { .. }, Standing::Waiting(place)) => {
                state.deadline = state
                    .deadline
                    .or_later(self.confirmation(sent, place.lease));
                let ask_at = if std::mem::take(&mut state.ask_pending) {
                    Some(now)
                } else {
                    ask_at(&place, now)
                };
                state.stage = Stage::Waiting {
                    place: Box::new(place),
                    ask_at,
                };
            }
            (Stage::Waiting { .. }, Standing::Held(grant)) => {
                let confirmed = self.confirmation(sent, grant.lease);
                state.deadline = state.deadline.or_later(confirmed);
                // The answer took long: one renewal more, as for a grant that comes at once.
                if !state.hurried && is_too_short(&self.claim, &self.terms, &state.deadline, now) {
                    state.hurried = true;
                    let place = Place {
                        ahead: Some(0),
                        ask_in: None,
                        lease: grant.lease,
                        holder: None,
                    };
                    state.stage = Stage::Waiting {
                        place: Box::new(place),
                        ask_at: Some(now),
                    };
                    return self.announce(state);
                }
                state.granted = Some(confirmed.length());
                state.held_until = self.longest_hold(now);
                state.fence = Some(grant.fence);
                state.stage = Stage::Held;
            }
            (Stage::Waiting { .. }, Standing::Gone(why)) => state.stage = Stage::TurnedAway(why),
            (Stage::Held, Standing::Held(grant)) if state.fence == Some(grant.fence) => {
                let confirmed = self.confirmation(sent, grant.lease);
                state.deadline = state.deadline.or_later(confirmed);
                state.granted = Some(confirmed.length());
            }
            // Another fence under our claim: the store lost our grant and made a new one. Ours is
            // gone.
            (Stage::Held, Standing::Held(_)) => state.stage = Stage::Lost(LossReason::Forgotten),
            // The store handled this request before it handed the lock over.
            (Stage::Held, Standing::Waiting(_)) => {}
            (Stage::Held, Standing::Gone(why)) => {
                state.stage = Stage::Lost(why.as_loss(state.mode));
            }
            (Stage::TurnedAway(_) | Stage::Lost(_) | Stage::GivenBack, _) => {}
        }
        self.announce(state);
    }

    /// Applies a pushed grant. It keeps the deadline of the waiter, since it was granted while the
    /// claim waited. `false` when too little is left of that, or no renewal would follow: then a
    /// renewal must date it anew.
    pub(crate) fn pushed(&self, fence: Fence, now: Moment) -> bool {
        let mut state = self.lock();
        let Stage::Waiting { .. } = state.stage else {
            return true;
        };
        if state.doubts_pushes
            || !self.terms.auto_renew
            || is_too_short(&self.claim, &self.terms, &state.deadline, now)
        {
            return false;
        }
        state.held_until = self.longest_hold(now);
        state.fence = Some(fence);
        state.stage = Stage::Held;
        self.announce(state);
        true
    }

    /// The store ended this claim.
    pub(crate) fn ended(&self, why: Gone) {
        let mut state = self.lock();
        match state.stage {
            Stage::Waiting { .. } => state.stage = Stage::TurnedAway(why),
            Stage::Held => state.stage = Stage::Lost(why.as_loss(state.mode)),
            _ => {}
        }
        self.announce(state);
    }

    /// The store could not be asked. Nothing else changes: the lease runs on.
    pub(crate) fn troubled(&self, error: &Error, now: Moment) {
        let mut state = self.lock();
        state.asking = false;
        // The store was silent from the request on, not from the failure on.
        let since = *state.unanswered_since.get_or_insert(now);
        match &mut state.trouble {
            Some(trouble) => trouble.error = error.clone(),
            trouble => {
                *trouble = Some(Trouble {
                    since,
                    error: error.clone(),
                })
            }
        }
        self.announce(state);
    }

    /// Closes the grant to re-entry while it is being changed.
    pub(crate) fn leave(&self, leaving: bool) {
        self.lock().leaving = leaving;
    }

    /// Whether the grant is being changed.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// The store has made a reader of the writer.
    pub(crate) fn downgraded(&self) {
        let mut state = self.lock();
        state.mode = Mode::Shared;
        state.leaving = false;
    }

    /// Marks it as released; later answers and pushes do not count. Returns the claim to release,
    /// and the earlier loss if there was one; `None` when it was released already.
    pub(crate) fn give_back(&self, now: Moment) -> Option<(ClaimRef, Option<LossReason>)> {
        self.expire(now);
        let mut state = self.lock();
        let claim = self.claim.to_ref(state.fence);
        let lost = match std::mem::replace(&mut state.stage, Stage::GivenBack) {
            Stage::GivenBack => return None,
            Stage::Lost(reason) => Some(reason),
            Stage::Held | Stage::Waiting { .. } | Stage::TurnedAway(_) => None,
        };
        self.announce(state);
        if lost.is_some() {
            self.tell_of_loss();
        }
        Some((claim, lost))
    }

    /// The state that a guard reports.
    pub(crate) fn status(&self, now: Moment) -> Status {
        self.expire(now);
        let state = self.lock();
        match state.stage {
            Stage::Held if state.trouble.is_some() || state.deadline.is_at_risk(now) => {
                Status::AtRisk
            }
            Stage::Held => Status::Held,
            Stage::Lost(reason) => {
                drop(state);
                self.tell_of_loss();
                Status::Lost(reason)
            }
            // A guard outlives its own release only inside `run`; it holds nothing then.
            Stage::Waiting { .. } | Stage::TurnedAway(_) | Stage::GivenBack => {
                Status::Lost(LossReason::Expired)
            }
        }
    }

    /// How long it holds without another renewal.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        let state = self.lock();
        match state.stage {
            Stage::Held => self.end(&state).lost_at.since(now),
            _ => Duration::ZERO,
        }
    }

    /// The length of its lease as a holder: as granted, or as asked while only the waiter's is
    /// confirmed.
    pub(crate) fn lease(&self) -> Duration {
        self.lock().granted.unwrap_or(self.claim.lease)
    }

    fn end(&self, state: &State) -> deadline::End {
        deadline::end(
            state.deadline.valid_until(),
            state.held_until,
            state.deadline.margin(self.terms.stop_margin),
        )
    }
}

fn is_too_short(claim: &Claim, terms: &Terms, deadline: &Deadline, now: Moment) -> bool {
    deadline.is_too_short_to_begin(now, terms.stop_margin, claim.wait_lease())
}
