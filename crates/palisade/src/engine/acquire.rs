//! The loop that every store shares: claim, wait, then renew or claim again.
//!
//! The caller's task runs it, inside the client's runtime. When the caller drops it, the client's
//! thread finishes the request that is in flight, and withdraws the claim.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::back_pressure::Permit;
use super::held_claim::HeldClaim;
use super::pending_claim::{Entered, PendingClaim, UnconfirmedClaim};
use super::plan::{Plan, Spin};
use super::poll_inside::inside;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Moment;
use crate::lease::registry::Pending;
use crate::lease::tracked::{Stage, TrackedClaim, Trouble};
use crate::store::{Answer, Busy, Claim, Gone, Holder, Query, Wakes};

/// How long a caller whose wait is over stays to learn who holds the name.
const NAMING: Duration = Duration::from_millis(100);

/// Between two attempts to reach a store.
const UNREACHED: Spin = Spin {
    min: Duration::from_millis(20),
    max: Duration::from_secs(1),
};

/// A request in line may go unanswered for so long even without any patience.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(100);

/// How long to wait in line, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// Not at all: one attempt.
    Now,
    /// At most so long; zero is one attempt.
    AtMost(Duration),
    /// For ever.
    Forever,
}

/// The result of an acquisition.
pub(crate) enum Outcome {
    Granted(HeldClaim),
    Busy(Busy),
    Sealed,
}

/// Acquires by this plan.
///
/// # Cancel safety
///
/// Dropping it at any point withdraws the claim: at once where the store answers at once, else by
/// the client's thread as soon as the store has answered the request in flight.
pub(crate) async fn acquire(core: &Arc<Core>, plan: &Plan, wait: WaitLimit) -> Result<Outcome> {
    let wait = if wait == WaitLimit::AtMost(Duration::ZERO) {
        WaitLimit::Now
    } else {
        wait
    };
    let deadline = match wait {
        WaitLimit::AtMost(span) => core.now() + span,
        WaitLimit::Now | WaitLimit::Forever => Moment::NEVER,
    };
    let once = wait == WaitLimit::Now;
    let acquisition = Acquisition {
        core: Arc::clone(core),
        plan,
        once,
        deadline,
        holder: None,
        is_answered: false,
    };
    inside(core.handle()?, acquisition.run()).await
}

/// One acquisition.
struct Acquisition<'a> {
    core: Arc<Core>,
    plan: &'a Plan,
    /// One attempt only.
    once: bool,
    deadline: Moment,
    /// The holder of the name, as the store last said, and when it said so.
    holder: Option<(Holder, Moment)>,
    /// Whether the store has answered at all.
    is_answered: bool,
}

/// Why an acquisition ends without an outcome.
enum Exit {
    /// The wait ran out. It is no time-out if the store never answered: no other claim is known to
    /// hold the name.
    TimedOut,
    Failed(Error),
}

impl From<Error> for Exit {
    fn from(error: Error) -> Exit {
        Exit::Failed(error)
    }
}

/// The store's answer to a claim.
struct Answered {
    sent: Moment,
    answer: Answer,
    /// Whether the claim was sent more than once.
    sent_again: bool,
}

impl Acquisition<'_> {
    async fn run(mut self) -> Result<Outcome> {
        match self.pursue().await {
            Ok(Outcome::Granted(held)) => Ok(Outcome::Granted(held.delivered())),
            Ok(other) => Ok(other),
            Err(Exit::Failed(error)) => Err(error),
            Err(Exit::TimedOut) => Err(self.timed_out()),
        }
    }

    async fn pursue(&mut self) -> Result<Outcome, Exit> {
        let begun = self.core.now();
        loop {
            let claim = self.plan.claim(!self.once)?;
            let entered = Entered::new(&self.core, claim.id);
            let held = match self.claim(claim, &entered.pending).await? {
                Progress::Waiting(held) => held,
                Progress::Settled(outcome) => return Ok(outcome),
                Progress::ClaimAgain => continue,
            };
            // Large futures are boxed, here and below: this one is made and moved with every claim.
            match Box::pin(self.wait_in_line(held)).await? {
                Progress::Settled(outcome) => return Ok(outcome),
                // Without a line to wait in, it was granted, and over when the answer came.
                _ if self.once && self.core.now().since(begun) >= self.plan.store_wait => {
                    return Err(Exit::Failed(too_slow(self.plan)));
                }
                Progress::Waiting(_) | Progress::ClaimAgain => {}
            }
        }
    }

    /// Asks until the store has granted the name or queued the claim.
    async fn claim(&mut self, claim: Arc<Claim>, pending: &Pending) -> Result<Progress, Exit> {
        let core = Arc::clone(&self.core);
        for attempts in 0.. {
            let Answered {
                sent,
                answer,
                sent_again,
            } = self.ask(&claim, pending).await?;
            let (terms, now) = (self.plan.terms, core.now());
            let tracked = match answer {
                Answer::Granted(grant) => {
                    TrackedClaim::granted(Arc::clone(&claim), terms, sent, grant, now)
                }
                Answer::Queued(place) => {
                    TrackedClaim::queued(Arc::clone(&claim), terms, sent, place, now)
                }
                Answer::Busy(busy) if self.once || busy.too_soon => {
                    return Ok(Progress::Settled(Outcome::Busy(busy)));
                }
                Answer::Sealed => return Ok(Progress::Settled(Outcome::Sealed)),
                Answer::Busy(busy) => {
                    // Nothing is left in the store: the same claim asks again.
                    Box::pin(self.pause(&claim, pending, busy, attempts)).await?;
                    continue;
                }
            };
            let held = HeldClaim::new(
                core,
                if sent_again {
                    tracked.sent_again()
                } else {
                    tracked
                },
            );
            return Ok(match held.tracked.stage() {
                Stage::Held => Progress::Settled(Outcome::Granted(held)),
                _ => Progress::Waiting(held),
            });
        }
        Ok(Progress::ClaimAgain)
    }

    /// Sends a claim, and repeats it while the store cannot be reached.
    async fn ask(&mut self, claim: &Arc<Claim>, pending: &Pending) -> Result<Answered, Exit> {
        let core = Arc::clone(&self.core);
        let queued = core.now();
        let mut unreached_since = None;
        pending.reset();
        let mut request = PendingClaim::send(&core, claim, self.permit(queued).await?);
        let mut attempts = 0;
        let mut last_error = None;
        loop {
            let sent = request.sent;
            let answer = tokio::select! {
                biased;
                answer = request.answered() => answer,
                () = core.sleep_until(self.deadline) => return Err(Exit::TimedOut),
                () = core.sleep_until(self.unanswered_until(unreached_since.unwrap_or(sent))) => {
                    return Err(Exit::Failed(last_error.unwrap_or_else(|| silent(self.plan.store_wait))));
                }
            };
            let error = match answer {
                Ok(answer) => {
                    self.is_answered = true;
                    return Ok(Answered {
                        sent,
                        answer,
                        sent_again: attempts > 0,
                    });
                }
                Err(error) => error,
            };
            // Unless the store refused it, or it was never sent: then the store has no trace of it.
            let refused = matches!(
                error.kind(),
                ErrorKind::Config | ErrorKind::Unsupported | ErrorKind::Denied
            );
            let may_be_there = request.may_be_there || !error.nothing_was_sent();
            let mut unconfirmed = UnconfirmedClaim {
                core: &core,
                claim: (may_be_there && !refused).then_some(claim),
            };
            let since = *unreached_since.get_or_insert(sent);
            let give_up = self.once
                || !error.retry_may_help()
                || core.now().since(since) >= self.plan.store_wait;
            if give_up {
                return Err(Exit::Failed(error));
            }
            let resume = core.now() + UNREACHED.pause(attempts);
            if resume > self.deadline {
                Box::pin(core.sleep_until(self.deadline)).await;
                // It is a time-out only if an earlier answer said that the name is busy. If none
                // did, no other claim is known to hold it.
                return Err(if self.is_answered {
                    Exit::TimedOut
                } else {
                    Exit::Failed(error)
                });
            }
            Box::pin(core.sleep_until(resume)).await;
            // The same claim: if the first request arrived after all, this one finds its grant.
            let permit = self.permit(since).await?;
            unconfirmed.claim = None;
            drop(unconfirmed);
            request = PendingClaim::send(&core, claim, permit);
            request.may_be_there = may_be_there;
            last_error = Some(error);
            attempts += 1;
        }
    }

    /// Until when requests that have gone unanswered since `since` are repeated. Without any
    /// patience one attempt is made. A claim that waits inside the engine is answered late by
    /// design.
    fn unanswered_until(&self, since: Moment) -> Moment {
        let is_limited = !self.plan.store_wait.is_zero() && !self.core.capability().claim_blocks;
        if is_limited {
            since + self.plan.store_wait
        } else {
            Moment::NEVER
        }
    }

    /// Queues in the client while too many requests are in flight.
    async fn permit(&self, since: Moment) -> Result<Permit, Exit> {
        let core = &self.core;
        // A claim that waits inside the engine would keep its permit for as long as it waits.
        if core.capability().claim_blocks {
            return Ok(Permit::unbounded());
        }
        tokio::select! {
            biased;
            permit = core.gate.claim() => Ok(permit),
            () = core.sleep_until(self.deadline) => Err(Exit::TimedOut),
            () = core.sleep_until(since + self.plan.store_wait) => Err(Exit::Failed(overloaded())),
        }
    }

    /// Waits in line until the claim holds. The registry takes the store's pushes, and the keeper
    /// renews the place and asks when needed. This only awaits the result. Dropping it drops the
    /// claim and its place.
    async fn wait_in_line(&mut self, held: HeldClaim) -> Result<Progress, Exit> {
        let (core, tracked) = (Arc::clone(&self.core), Arc::clone(&held.tracked));
        loop {
            let mut changed = pin!(tracked.changed());
            changed.as_mut().enable();
            match tracked.stage() {
                Stage::Waiting { place, .. } => self.has_said(place.holder),
                Stage::Held => {
                    // Its end must be watched from now on.
                    core.registry.keep(&tracked);
                    return Ok(Progress::Settled(Outcome::Granted(held)));
                }
                Stage::TurnedAway(why) => return Ok(Progress::turned_away(why)),
                // Granted and lost before this task was polled: begin anew.
                Stage::Lost(_) | Stage::GivenBack => return Ok(Progress::ClaimAgain),
            }
            let trouble = tracked.trouble();
            let look_at = match self.patience_ends(&tracked, trouble.as_ref()) {
                Ok(look_at) => look_at,
                Err(error) => return Err(Exit::Failed(error)),
            };
            tokio::select! {
                biased;
                () = changed.as_mut() => {}
                () = core.sleep_until(look_at) => {}
                () = core.sleep_until(self.deadline) => {
                    if trouble.is_none() {
                        self.name_holder(&tracked.claim).await;
                    }
                    return Err(Exit::TimedOut);
                }
            }
        }
    }

    /// When to look again whether the store is still silent; the error when it has been for too
    /// long. No request that is sent after this is late before then.
    fn patience_ends(
        &self,
        tracked: &TrackedClaim,
        trouble: Option<&Trouble>,
    ) -> Result<Moment, Error> {
        let (now, patience) = (self.core.now(), self.plan.store_wait);
        if let Some(trouble) = trouble {
            let end = trouble.since + patience;
            let is_over = !trouble.error.retry_may_help() || now >= end;
            return if is_over {
                Err(trouble.error.clone())
            } else {
                Ok(end)
            };
        }
        let patience = patience.max(SHORTEST_PATIENCE);
        let end = tracked.unanswered_since().unwrap_or(now) + patience;
        if now >= end {
            return Err(silent(self.plan.store_wait));
        }
        Ok(end)
    }

    /// Asks for the holder of the name, where no answer has named it. Only briefly: the wait is
    /// over.
    async fn name_holder(&mut self, claim: &Claim) {
        if self.holder.is_some() {
            return;
        }
        // The waiters before this claim are not read: they may be many.
        let query = Query::Leader(claim.name.clone());
        let core = Arc::clone(&self.core);
        let line = tokio::select! {
            biased;
            line = core.look(query, claim.kind) => line,
            () = core.sleep_until(self.deadline + NAMING) => None,
        };
        self.has_said(line.and_then(|line| line.holders.into_iter().next()));
    }

    /// Takes note of the holder that the store names, if it does.
    fn has_said(&mut self, holder: Option<Holder>) {
        // An answer that was noted before is as old as it was.
        let is_known =
            |holder: &Holder| matches!(&self.holder, Some((known, _)) if known == holder);
        if let Some(holder) = holder.filter(|holder| !is_known(holder)) {
            self.holder = Some((holder, self.core.now()));
        }
    }

    /// Pauses before the next attempt on a store that does not queue.
    async fn pause(
        &mut self,
        claim: &Claim,
        pending: &Pending,
        busy: Busy,
        attempts: u32,
    ) -> Result<(), Exit> {
        let core = Arc::clone(&self.core);
        self.has_said(busy.holder);
        // Where the store wakes us, asking by the clock is only a fallback; but a peer of a store
        // that pushes may wake no one, and then the user says how often to ask.
        let pause = match (self.plan.spin, core.capability().wakes) {
            (_, Wakes::Poll) if busy.woken => claim.wait_lease() / 3,
            (Some(spin), _) => spin.pause(attempts),
            (None, Wakes::Poll) => Spin::DEFAULT.pause(attempts),
            (None, _) => claim.wait_lease() / 3,
        };
        let resume = core.now()
            + busy
                .ask_in
                .map_or(pause, |left| left.clamp(Duration::from_millis(1), pause));
        tokio::select! {
            biased;
            () = core.sleep_until(self.deadline) => Err(Exit::TimedOut),
            () = pending.told() => Ok(()),
            () = core.sleep_until(resume) => Ok(()),
        }
    }

    fn timed_out(&mut self) -> Error {
        let name = &self.plan.name;
        if !self.is_answered {
            return Error::unavailable(format!(
                "the store has not answered in time: whether {name} is free is not known"
            ));
        }
        let now = self.core.now();
        let holder = self.holder.take().map(|(holder, said)| Holder {
            held: holder.held.map(|held| held + now.since(said)),
            ..holder
        });
        let message = match &holder {
            Some(holder) => format!("not acquired in time: {name} is held by {}", holder.owner),
            None => format!("not acquired in time: {name} is busy"),
        };
        Error::timeout(holder, message)
    }
}

/// The result of a claim, or of waiting in line.
enum Progress {
    Settled(Outcome),
    /// The claim is in line.
    Waiting(HeldClaim),
    /// The store does not have the claim any more: claim again, at the end of the line.
    ClaimAgain,
}

impl Progress {
    fn turned_away(why: Gone) -> Progress {
        match why {
            Gone::Sealed => Progress::Settled(Outcome::Sealed),
            Gone::TooSoon => Progress::Settled(Outcome::Busy(Busy {
                too_soon: true,
                ..Busy::default()
            })),
            Gone::Expired
            | Gone::Ended
            | Gone::Unknown
            | Gone::Taken
            | Gone::SessionEnded
            | Gone::Revoked => Progress::ClaimAgain,
        }
    }
}

fn too_slow(plan: &Plan) -> Error {
    Error::unavailable(format!(
        "the store takes longer to answer than the lease of {:?} lasts; ask for a longer one",
        plan.lease
    ))
}

fn silent(patience: Duration) -> Error {
    Error::unavailable(format!("the store has not answered within {patience:?}"))
}

fn overloaded() -> Error {
    Error::unavailable(
        "this client has too many requests in flight; the store does not answer them in time",
    )
}
