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
use super::{LossReason, Moment, Status, wake};
use crate::error::Error;
use crate::fence::Fence;
use crate::store::{Claim, ClaimRef, Gone, Grant, Lease, Mode, Place, Standing};

/// How many renewals of one claim may be on their way: one that hangs, and one that follows it.
const ATTEMPTS_AT_ONCE: u8 = 2;

/// What the user asked of the keeper.
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
    /// Fires with the stop margin; made when somebody asks for it.
    stop: OnceLock<CancellationToken>,
    /// The multi-lock that it belongs to.
    group: OnceLock<Arc<Group>>,
}

struct State {
    stage: Stage,
    /// The grant's, once there is one; it outlives the grant.
    fence: Option<Fence>,
    /// How it holds; a downgrade changes it.
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
    /// The waiter was asked for, beside its heartbeat, and the answer has not come.
    asking: bool,
    /// It is to be asked for again after that: the store may have read that request before the change.
    ask_pending: bool,
    /// Pushes may be meant for an earlier attempt with the same claim: the store is asked instead.
    doubts_pushes: bool,
    /// A grant with little left has been renewed once before it is handed out.
    hurried: bool,
    /// Set while the grant is turned into something else: nobody may enter it then.
    leaving: bool,
}

/// Where a claim stands, as far as we know.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// In line, and when it is worth asking again without being woken.
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

/// Several claims that are lost together.
pub(crate) struct Group {
    members: Vec<Weak<TrackedClaim>>,
    /// Set when every member has been told of the loss of one.
    told: AtomicBool,
    /// Fires with the stop margin of the first member to end.
    pub(crate) stop: CancellationToken,
}

/// When a waiter asks without being woken. Never at once: a store that is wrong about it must not be flooded.
fn ask_at(place: &Place, now: Moment) -> Option<Moment> {
    place
        .ask_in
        .map(|left| now + left.max(Duration::from_millis(1)))
}

impl TrackedClaim {
    /// A claim that the store granted at once. If little is left of the lease, because the answer took long, it stays a waiter
    /// that asks at once: its renewal dates the grant anew.
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
            attempts: 0,
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

    /// The claim as the store is to be asked about it now.
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

    /// Whether there is nothing left to keep, by the clock too. Whoever forgets it then has told of it: this runs wakers.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.expire(now);
        !matches!(self.lock().stage, Stage::Waiting { .. } | Stage::Held)
    }

    /// When the keeper is to renew it next; `None` when there is nothing to renew any more.
    pub(crate) fn renew_at(&self) -> Option<Moment> {
        let state = self.lock();
        match state.stage {
            // Time alone wakes no waiter: it asks when the passing of time may have admitted it.
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

    /// When what is known was asked for.
    pub(crate) fn confirmed_at(&self) -> Moment {
        self.lock().deadline.sent()
    }

    /// How long a renewal may be brought forward to share a request with others.
    pub(crate) fn leeway(&self) -> Duration {
        self.lock().deadline.length() / 10
    }

    /// Begins a renewal, unless it is over or enough are on their way. One that should have been answered by now is trouble.
    pub(crate) fn begin_attempt(&self, now: Moment) -> bool {
        self.expire(now);
        let mut state = self.lock();
        if !matches!(state.stage, Stage::Waiting { .. } | Stage::Held) {
            return false;
        }
        let begun = state.attempts < ATTEMPTS_AT_ONCE;
        let unanswered = state.attempts > 0 && state.trouble.is_none();
        state.attempts += u8::from(begun);
        if unanswered {
            let error = Error::unavailable("the store has not answered a renewal in time");
            state.trouble = Some(Trouble { since: now, error });
            self.announce(state);
        }
        begun
    }

    /// Whether the waiter is to be asked for now. While it is being asked for, it is asked for once more after that; while the store
    /// cannot be reached the keeper asks by itself, at its own pace.
    pub(crate) fn asks_now(&self) -> bool {
        let mut state = self.lock();
        let waits = matches!(state.stage, Stage::Waiting { .. }) && state.trouble.is_none();
        let asking = waits && std::mem::replace(&mut state.asking, waits);
        state.ask_pending |= asking;
        waits && !asking
    }

    /// The claim was sent more than once: a push may be meant for an earlier attempt.
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

    /// Takes the answer to a renewal that was sent at `sent`.
    pub(crate) fn confirm(&self, sent: Moment, standing: Standing, now: Moment) {
        self.expire(now);
        let mut state = self.lock();
        state.trouble = None;
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
            // Another fence under our claim: the store forgot our grant and gave a new one. Ours is gone.
            (Stage::Held, Standing::Held(_)) => state.stage = Stage::Lost(LossReason::Expired),
            // The answer to a request that the store took before it handed the lock over.
            (Stage::Held, Standing::Waiting(_)) => {}
            (Stage::Held, Standing::Gone(why)) => state.stage = Stage::Lost(why.as_loss()),
            (Stage::TurnedAway(_) | Stage::Lost(_) | Stage::GivenBack, _) => {}
        }
        self.announce(state);
    }

    /// Takes a grant that the store pushed: it keeps the deadline of the waiter, since it was given while the claim waited.
    /// `false` when too little is left of that, or nothing would raise it: then a renewal must date it anew.
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

    /// The store told that it ended this claim.
    pub(crate) fn ended(&self, why: Gone) {
        let mut state = self.lock();
        match state.stage {
            Stage::Waiting { .. } => state.stage = Stage::TurnedAway(why),
            Stage::Held => state.stage = Stage::Lost(why.as_loss()),
            _ => {}
        }
        self.announce(state);
    }

    /// The store could not be asked. Nothing else changes: the lease runs on.
    pub(crate) fn troubled(&self, error: &Error, now: Moment) {
        let mut state = self.lock();
        state.asking = false;
        match &mut state.trouble {
            Some(trouble) => trouble.error = error.clone(),
            trouble => {
                *trouble = Some(Trouble {
                    since: now,
                    error: error.clone(),
                })
            }
        }
        self.announce(state);
    }

    /// Closes the grant to whoever would enter it, while it is turned into something else.
    pub(crate) fn leave(&self, leaving: bool) {
        self.lock().leaving = leaving;
    }

    /// Whether the grant is just being turned into something else.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// The store has made a reader of the writer.
    pub(crate) fn downgraded(&self) {
        let mut state = self.lock();
        state.mode = Mode::Shared;
        state.leaving = false;
    }

    /// Marks it as given back; nothing that comes later counts. The answer is what to release, and why it was lost before, if
    /// it was; `None` when it had been given back already.
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

    /// What a guard says.
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

    /// The length of its lease as a holder: as the store granted it, or as asked while only the waiter's is confirmed.
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

    /// Fires what is due, and says when to look again; `None` when there is nothing to watch.
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

    /// The grant that the clock has ended, and the store may still have: it is not renewed any more, and nothing in the store ends
    /// it before its session.
    pub(crate) fn ended_by_clock(&self) -> Option<ClaimRef> {
        let state = self.lock();
        let ended = matches!(
            state.stage,
            Stage::Lost(LossReason::Expired | LossReason::MaxHold | LossReason::MemberLost)
        );
        ended.then(|| self.claim.to_ref(state.fence))
    }

    /// Lets the clock end it.
    fn expire(&self, now: Moment) {
        let mut state = self.lock();
        let Stage::Held = state.stage else { return };
        let end = self.end(&state);
        if now >= end.lost_at {
            state.stage = Stage::Lost(end.reason);
            self.announce(state);
        }
    }

    /// Tells everyone who waits for a change. Called with the state that was changed, and gives its lock back first: a waker
    /// may look at this claim.
    fn announce(&self, state: MutexGuard<'_, State>) {
        let lost = matches!(state.stage, Stage::Lost(_));
        drop(state);
        wake(|| self.changed.notify_waiters());
        if lost {
            self.tell_of_loss();
        }
    }

    /// Fires the stop tokens, and tells the group. Whoever sees the loss does this first, so that nobody knows of it before
    /// they do. Runs wakers: never with a lock.
    fn tell_of_loss(&self) {
        self.stop();
        if let Some(group) = self.group.get() {
            group.lost();
        }
    }

    /// Another member of the same multi-lock was lost.
    fn member_lost(&self) {
        let mut state = self.lock();
        match state.stage {
            Stage::Held => {
                state.stage = Stage::Lost(LossReason::MemberLost);
                drop(state);
                wake(|| self.changed.notify_waiters());
            }
            // Whoever ended it may not have come to tell of it yet.
            Stage::Lost(_) => drop(state),
            Stage::Waiting { .. } | Stage::TurnedAway(_) | Stage::GivenBack => return,
        }
        self.stop();
    }

    /// Completes at the next change after the call; check the stage after calling and before awaiting.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// The token that fires with the stop margin. Look at the clock after this, with [`watch`](TrackedClaim::watch): it may be due.
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

fn is_too_short(claim: &Claim, terms: &Terms, deadline: &Deadline, now: Moment) -> bool {
    deadline.is_too_short_to_begin(now, terms.stop_margin, claim.wait_lease())
}

impl Group {
    /// Binds the members of a multi-lock: one lost, all lost.
    pub(crate) fn bind(members: &[&Arc<TrackedClaim>], now: Moment) -> Arc<Group> {
        let weak = members
            .iter()
            .map(|member| Arc::downgrade(member))
            .collect();
        let group = Arc::new(Group {
            members: weak,
            told: AtomicBool::new(false),
            stop: CancellationToken::new(),
        });
        for member in members {
            // Set once: a claim belongs to one group.
            let _ = member.group.set(Arc::clone(&group));
        }
        // One may have been lost, or come near it, before it was bound: whoever sees that tells the group.
        for member in members {
            member.watch(now);
        }
        group
    }

    /// One was lost. Flat: those who are lost with it do not tell again.
    fn lost(&self) {
        if self.told.load(Ordering::Acquire) {
            return;
        }
        wake(|| self.stop.cancel());
        for member in self.members.iter().filter_map(Weak::upgrade) {
            member.member_lost();
        }
        // Only now: until then everybody who sees the loss tells all of them.
        self.told.store(true, Ordering::Release);
    }
}
