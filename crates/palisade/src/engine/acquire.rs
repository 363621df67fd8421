//! The loop that every store shares: claim, wait, then renew or claim again.
//!
//! The caller's task runs it, inside the client's runtime. When the caller drops it, the client's thread finishes the request that
//! is in flight, and withdraws the claim.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::held::HeldClaim;
use super::inside::{caught, inside};
use super::plan::{Plan, Spin};
use super::{Boxed, Core};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Moment;
use crate::lease::kept::{Kept, Stage};
use crate::store::{Answer, Busy, Claim, Gone, Holder, Wakes, Woken};

/// Between two attempts to reach a store.
const UNREACHED: Spin = Spin { min: Duration::from_millis(20), max: Duration::from_secs(1) };

/// How much longer than its wait a caller stays to learn who holds the name.
const NAMING: Duration = Duration::from_millis(250);

/// How long to wait in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: one attempt.
    Try,
    /// At most so long; zero is one attempt.
    For(Duration),
    /// For ever.
    Forever,
}

/// What an acquisition brings.
pub(crate) enum Outcome {
    Granted(HeldClaim),
    Busy(Busy),
    Sealed,
}

/// Acquires by this plan.
///
/// # Cancel safety
///
/// Dropping it at any point withdraws the claim: at once where the store answers at once, else by the client's thread as soon
/// as the store has answered the request in flight.
pub(crate) async fn acquire(core: &Arc<Core>, plan: &Plan, wait: Wait) -> Result<Outcome> {
    let wait = if wait == Wait::For(Duration::ZERO) { Wait::Try } else { wait };
    let deadline = match wait {
        Wait::For(span) => core.now() + span,
        Wait::Try | Wait::Forever => Moment::NEVER,
    };
    let acquisition = Acquisition { core: Arc::clone(core), plan, once: wait == Wait::Try, deadline, holder: None };
    inside(core.handle()?, acquisition.run()).await
}

/// A claim in flight. Dropped before its answer, the client's thread waits for the answer and withdraws the claim.
struct PendingClaim {
    core: Arc<Core>,
    claim: Arc<Claim>,
    sent: Moment,
    answer: Boxed<Result<Answer>>,
    /// An earlier attempt with the same claim may have arrived.
    may_be_there: bool,
    answered: bool,
}

impl PendingClaim {
    fn send(core: &Arc<Core>, claim: Arc<Claim>) -> PendingClaim {
        let (store, asking) = (Arc::clone(&core.store), Arc::clone(&claim));
        let answer = caught(async move { store.claim(&asking).await });
        PendingClaim { core: Arc::clone(core), claim, sent: core.now(), answer, may_be_there: false, answered: false }
    }

    async fn answered(&mut self) -> Result<Answer> {
        let answer = (&mut self.answer).await;
        self.answered = true;
        answer
    }
}

impl Drop for PendingClaim {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let answer = std::mem::replace(&mut self.answer, Box::pin(std::future::pending()));
        let (core, claim, may_be_there) = (Arc::clone(&self.core), self.claim.to_ref(None), self.may_be_there);
        self.core.spawn(async move {
            if core.capability().claim_blocks {
                core.withdraw(claim.clone());
            }
            match answer.await {
                Ok(Answer::Busy(_) | Answer::Sealed) => {}
                Err(error) if error.nothing_was_sent() && !may_be_there => {}
                Ok(Answer::Granted(_) | Answer::Queued(_)) | Err(_) => core.withdraw(claim),
            }
        });
    }
}

/// A claim that may have arrived although no answer came. Dropping it withdraws the claim.
struct UnconfirmedClaim<'a> {
    core: &'a Arc<Core>,
    claim: Option<&'a Arc<Claim>>,
}

impl Drop for UnconfirmedClaim<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.core.withdraw(claim.to_ref(None));
        }
    }
}

/// One acquisition.
struct Acquisition<'a> {
    core: Arc<Core>,
    plan: &'a Plan,
    /// One attempt only.
    once: bool,
    deadline: Moment,
    /// The holder of the name, as the store last said.
    holder: Option<Holder>,
}

/// Why an acquisition ends without an outcome.
enum Exit {
    /// The wait ran out.
    TimedOut,
    Failed(Error),
}

impl From<Error> for Exit {
    fn from(error: Error) -> Exit {
        Exit::Failed(error)
    }
}

/// What the store answered to a claim.
struct Answered {
    claim: Arc<Claim>,
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
        let mut attempts = 0;
        let mut claim = self.plan.claim(!self.once)?;
        loop {
            let answered = self.ask(claim).await?;
            let now = self.core.now();
            claim = answered.claim;
            let kept = match answered.answer {
                Answer::Granted(grant) => Kept::granted(Arc::clone(&claim), self.plan.terms, answered.sent, grant, now),
                Answer::Queued(place) => Kept::queued(Arc::clone(&claim), self.plan.terms, answered.sent, place, now),
                Answer::Busy(busy) if self.once || busy.too_soon => return Ok(Outcome::Busy(busy)),
                Answer::Busy(busy) => {
                    // Boxed, here and below, is what would make a future large that is made and moved with every claim.
                    Box::pin(self.pause(&claim, busy, attempts)).await?;
                    attempts += 1;
                    // Nothing was left in the store: the same claim asks again.
                    continue;
                }
                Answer::Sealed => return Ok(Outcome::Sealed),
            };
            let held = HeldClaim::new(Arc::clone(&self.core), kept);
            if let Stage::Held = held.kept.stage() {
                return Ok(Outcome::Granted(held));
            }
            match Box::pin(self.wait_in_line(held, answered.sent_again)).await? {
                Progress::Settled(outcome) => return Ok(outcome),
                Progress::ClaimAgain => claim = self.plan.claim(!self.once)?,
            }
        }
    }

    /// Sends a claim, again and again while the store cannot be reached.
    async fn ask(&mut self, claim: Arc<Claim>) -> Result<Answered, Exit> {
        let core = Arc::clone(&self.core);
        let mut pending = PendingClaim::send(&core, claim);
        let mut unreached_since = None;
        let mut attempts = 0;
        loop {
            let answer = tokio::select! {
                biased;
                answer = pending.answered() => answer,
                () = core.sleep_until(self.deadline) => return Err(Exit::TimedOut),
            };
            let (claim, sent) = (Arc::clone(&pending.claim), pending.sent);
            let error = match answer {
                Ok(answer) => return Ok(Answered { claim, sent, answer, sent_again: attempts > 0 }),
                Err(error) => error,
            };
            // Unless the store refused it outright, or was never asked: then it has nothing of ours.
            let refused = matches!(error.kind(), ErrorKind::Config | ErrorKind::Unsupported | ErrorKind::Denied);
            let may_be_there = pending.may_be_there || !error.nothing_was_sent();
            let mut unconfirmed = UnconfirmedClaim { core: &core, claim: (may_be_there && !refused).then_some(&claim) };
            let since = *unreached_since.get_or_insert(sent);
            let give_up = self.once || !error.retry_may_help() || core.now().since(since) >= self.plan.store_wait;
            if give_up {
                return Err(Exit::Failed(error));
            }
            let resume = core.now() + UNREACHED.pause(attempts);
            if resume > self.deadline {
                Box::pin(core.sleep_until(self.deadline)).await;
                // Not a time-out: no other claim is known to hold the name.
                return Err(Exit::Failed(error));
            }
            Box::pin(core.sleep_until(resume)).await;
            // The same claim: if the first request arrived after all, this one finds its grant.
            unconfirmed.claim = None;
            drop(unconfirmed);
            pending = PendingClaim::send(&core, claim);
            pending.may_be_there = may_be_there;
            attempts += 1;
        }
    }

    /// Waits in line until the claim holds. The keeper renews the place; the keeper's answers and the store's pushes come in here.
    /// Dropping it drops the claim, and with it the place.
    ///
    /// A claim that was sent twice may find a push that was meant for its first life: then the store is asked.
    async fn wait_in_line(&mut self, held: HeldClaim, sent_again: bool) -> Result<Progress, Exit> {
        let (core, kept) = (Arc::clone(&self.core), Arc::clone(&held.kept));
        let store = Arc::clone(&core.store);
        let mut wake = store.wake(&kept.claim);
        // Set while the keeper has been asked to ask: the answer is a change.
        let mut asking = false;
        loop {
            let mut changed = pin!(kept.changed());
            changed.as_mut().enable();
            let ask_at = match kept.stage() {
                Stage::Waiting { place, ask_at } => {
                    self.holder = place.holder.or_else(|| self.holder.take());
                    ask_at
                }
                Stage::Held => {
                    // Its end must be watched from now on.
                    core.ledger.keep(&kept);
                    drop(wake);
                    return Ok(Progress::Settled(Outcome::Granted(held)));
                }
                Stage::TurnedAway(why) => return Ok(Progress::turned_away(why)),
                // Granted and lost before we looked: begin anew.
                Stage::Lost(_) | Stage::GivenBack => return Ok(Progress::ClaimAgain),
            };
            let trouble = kept.trouble();
            let give_up_at = trouble.as_ref().map_or(Moment::NEVER, |trouble| trouble.since + self.plan.store_wait);
            if let Some(trouble) = &trouble
                && (!trouble.error.retry_may_help() || core.now() >= give_up_at)
            {
                return Err(Exit::Failed(trouble.error.clone()));
            }
            // While the store cannot be reached the keeper asks by itself, at its own pace.
            let ask_at = if trouble.is_some() || asking { Moment::NEVER } else { ask_at.unwrap_or(Moment::NEVER) };
            let ask = |kept| {
                if trouble.is_none() {
                    core.ledger.renew_now(kept);
                }
            };
            tokio::select! {
                biased;
                () = changed.as_mut() => asking = false,
                woken = &mut wake, if !asking => {
                    // What we change ourselves must not wake us once more.
                    changed.set(kept.changed());
                    wake = store.wake(&kept.claim);
                    match woken {
                        Woken::Granted(fence) if !sent_again && kept.pushed(fence, core.now()) => {}
                        Woken::Granted(_) | Woken::Ask => {
                            asking = true;
                            ask(&kept);
                        }
                    }
                }
                () = core.sleep_until(ask_at) => {
                    asking = true;
                    ask(&kept);
                }
                () = core.sleep_until(give_up_at) => {}
                () = core.sleep_until(self.deadline) => {
                    if trouble.is_none() {
                        self.name_holder(&kept.claim).await;
                    }
                    return Err(Exit::TimedOut);
                }
            }
        }
    }

    /// Asks who holds the name, where no answer has said so by itself. Not for long: the wait is over.
    async fn name_holder(&mut self, claim: &Claim) {
        if self.holder.is_some() {
            return;
        }
        let core = &self.core;
        self.holder = tokio::select! {
            biased;
            holder = core.store.holder(claim) => holder.unwrap_or(None),
            () = core.sleep_until(core.now() + NAMING) => None,
        };
    }

    /// Pauses before the next attempt on a store that does not queue.
    async fn pause(&mut self, claim: &Claim, busy: Busy, attempts: u32) -> Result<(), Exit> {
        let core = Arc::clone(&self.core);
        let store = Arc::clone(&core.store);
        self.holder = busy.holder.or_else(|| self.holder.take());
        // Where the store wakes us, asking by the clock is only the net below.
        let pause = match core.capability().wakes {
            Wakes::Poll if !busy.woken => self.plan.spin.pause(attempts),
            Wakes::Poll | Wakes::Push | Wakes::Watch | Wakes::Engine => claim.wait_lease() / 3,
        };
        let resume = core.now() + busy.ask_in.map_or(pause, |left| left.clamp(Duration::from_millis(1), pause));
        tokio::select! {
            biased;
            () = core.sleep_until(self.deadline) => Err(Exit::TimedOut),
            _ = store.wake(claim) => Ok(()),
            () = core.sleep_until(resume) => Ok(()),
        }
    }

    fn timed_out(&mut self) -> Error {
        let name = &self.plan.name;
        let message = match &self.holder {
            Some(holder) => format!("not acquired in time: {name} is held by {}", holder.owner),
            None => format!("not acquired in time: {name} is busy"),
        };
        Error::new(ErrorKind::Timeout { holder: self.holder.take() }, message)
    }
}

/// What waiting in line came to.
enum Progress {
    Settled(Outcome),
    /// The store does not have the claim any more: claim again, at the end of the line.
    ClaimAgain,
}

impl Progress {
    fn turned_away(why: Gone) -> Progress {
        match why {
            Gone::Sealed => Progress::Settled(Outcome::Sealed),
            Gone::TooSoon => Progress::Settled(Outcome::Busy(Busy { too_soon: true, ..Busy::default() })),
            Gone::Expired | Gone::Taken | Gone::SessionEnded | Gone::Revoked => Progress::ClaimAgain,
        }
    }
}
