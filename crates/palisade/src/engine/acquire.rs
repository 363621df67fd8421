//! The loop that every store shares: claim, wake, then renew or claim again.
//!
//! It runs as an errand on the client's thread, and the user's future is only the receiver of what it brings. Where the store
//! answers at once ([`in_caller`](crate::store::Capability::in_caller)) the first claim is made in the caller's thread, and
//! the errand begins only if it has to wait.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use super::grip::Grip;
use super::plan::{Plan, Spin};
use super::{Boxed, Core, broken_off};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::kept::{Kept, Stage};
use crate::lease::{Moment, Status};
use crate::store::{Answer, Busy, Claim, Gone, Holder, Woken};

/// Between two attempts to reach a store.
const UNREACHED: Spin = Spin { min: Duration::from_millis(20), max: Duration::from_secs(1) };

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
    Granted(Grip),
    Busy(Busy),
    Sealed,
}

/// Acquires by this plan.
///
/// # Cancel safety
///
/// Dropping it at any point withdraws the claim: at once where the store answers at once, else by the client's thread as soon
/// as the store has answered what was already sent.
pub(crate) async fn acquire(core: &Arc<Core>, plan: &Plan, wait: Wait) -> Result<Outcome> {
    let wait = if wait == Wait::For(Duration::ZERO) { Wait::Try } else { wait };
    let deadline = match wait {
        Wait::For(span) => core.now() + span,
        Wait::Try | Wait::Forever => Moment::NEVER,
    };
    let claim = plan.claim(wait != Wait::Try)?;
    let mut asked = Asked::of(core, claim);
    let here = match core.poll_here(&mut asked.answer)? {
        Poll::Ready(Ok(Answer::Granted(grant))) => {
            let now = core.now();
            let kept = Kept::granted(Arc::clone(&asked.claim), plan.terms, asked.sent, grant, now);
            let grip = Grip::new(Arc::clone(core), kept);
            if !grip.kept.must_renew_to_begin(now) {
                return Ok(Outcome::Granted(grip));
            }
            // So slow, for a store that answers at once, that the lease is nearly over: begin anew in the background.
            drop(grip);
            asked = Asked::of(core, plan.claim(wait != Wait::Try)?);
            None
        }
        Poll::Ready(Ok(Answer::Busy(busy))) if wait == Wait::Try || busy.too_soon => return Ok(Outcome::Busy(busy)),
        Poll::Ready(Ok(Answer::Sealed)) => return Ok(Outcome::Sealed),
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    };
    if let Some(answer) = here {
        asked.answer = Box::pin(async { answer });
    }
    let (reply, brought) = oneshot::channel();
    let errand = Errand { core: Arc::clone(core), plan: plan.clone(), once: wait == Wait::Try, deadline, reply, holder: None };
    core.spawn(errand.run(asked))?;
    brought.await.unwrap_or_else(|_| Err(broken_off()))
}

/// A claim on its way to the store.
struct Asked {
    claim: Arc<Claim>,
    sent: Moment,
    answer: Boxed<Result<Answer>>,
}

impl Asked {
    fn of(core: &Core, claim: Arc<Claim>) -> Asked {
        let (store, asking) = (Arc::clone(&core.store), Arc::clone(&claim));
        Asked { claim, sent: core.now(), answer: Box::pin(async move { store.claim(&asking).await }) }
    }
}

/// One acquisition, carried out on the client's thread.
struct Errand {
    core: Arc<Core>,
    plan: Plan,
    /// One attempt only.
    once: bool,
    deadline: Moment,
    reply: oneshot::Sender<Result<Outcome>>,
    /// Who held the name when the store was last asked.
    holder: Option<Holder>,
}

/// Why an errand ends without bringing anything.
enum Exit {
    /// The user dropped the future.
    Left,
    /// The wait ran out.
    TimedOut,
    Failed(Error),
}

impl From<Error> for Exit {
    fn from(error: Error) -> Exit {
        Exit::Failed(error)
    }
}

impl Errand {
    async fn run(mut self, asked: Asked) {
        let brought = match self.pursue(asked).await {
            Ok(outcome) => Ok(outcome),
            Err(Exit::Left) => return,
            Err(Exit::TimedOut) => Err(self.timed_out()),
            Err(Exit::Failed(error)) => Err(error),
        };
        // A user who has left meanwhile: the grip comes back in the error and gives itself back.
        drop(self.reply.send(brought));
    }

    async fn pursue(&mut self, mut asked: Asked) -> Result<Outcome, Exit> {
        let mut attempts = 0;
        loop {
            let (claim, sent, answer) = self.ask(asked).await?;
            let now = self.core.now();
            let kept = match answer {
                Answer::Granted(grant) => Kept::granted(Arc::clone(&claim), self.plan.terms, sent, grant, now),
                Answer::Queued(place) => {
                    let kept = Kept::queued(Arc::clone(&claim), self.plan.terms, sent, place, now);
                    self.core.ledger.keep(&kept);
                    match self.stand_in_line(&kept).await? {
                        Turn::Ours => kept,
                        Turn::Refused(outcome) => return Ok(outcome),
                        Turn::Again => {
                            asked = Asked::of(&self.core, self.plan.claim(true)?);
                            continue;
                        }
                    }
                }
                Answer::Busy(busy) if self.once || busy.too_soon => return Ok(Outcome::Busy(busy)),
                Answer::Busy(busy) => {
                    self.pause(&claim, busy, attempts).await?;
                    attempts += 1;
                    // Nothing was left in the store: the same claim asks again.
                    asked = Asked::of(&self.core, claim);
                    continue;
                }
                Answer::Sealed => return Ok(Outcome::Sealed),
            };
            if let Some(grip) = self.begin(kept).await? {
                return Ok(Outcome::Granted(grip));
            }
            asked = Asked::of(&self.core, self.plan.claim(!self.once)?);
        }
    }

    /// Completes when nobody waits for this errand any more.
    async fn left(&mut self) -> Exit {
        let core = Arc::clone(&self.core);
        tokio::select! {
            biased;
            () = self.reply.closed() => Exit::Left,
            () = core.sleep_until(self.deadline) => Exit::TimedOut,
        }
    }

    /// Takes a claim to the store, again and again while the store cannot be reached.
    async fn ask(&mut self, mut asked: Asked) -> Result<(Arc<Claim>, Moment, Answer), Exit> {
        let mut unreached_since = None;
        let mut attempts = 0;
        loop {
            let answer = tokio::select! {
                biased;
                answer = &mut asked.answer => answer,
                exit = self.left() => {
                    self.see_off(asked);
                    return Err(exit);
                }
            };
            let error = match answer {
                Ok(answer) => return Ok((asked.claim, asked.sent, answer)),
                Err(error) => error,
            };
            let since = *unreached_since.get_or_insert(asked.sent);
            let give_up = self.once || !error.retry_may_help() || self.core.now().since(since) >= self.plan.store_wait;
            if give_up {
                self.withdraw_after(&error, &asked.claim);
                return Err(Exit::Failed(error));
            }
            let resume = self.core.now() + UNREACHED.pause(attempts);
            let core = Arc::clone(&self.core);
            tokio::select! {
                biased;
                exit = self.left() => {
                    self.withdraw_after(&error, &asked.claim);
                    // Not a time-out: nobody is known to hold the name.
                    return Err(if matches!(exit, Exit::TimedOut) { Exit::Failed(error) } else { exit });
                }
                () = core.sleep_until(resume) => {}
            }
            // The same claim: if the first request arrived after all, this one finds its grant.
            asked = Asked::of(&self.core, asked.claim);
            attempts += 1;
        }
    }

    /// Withdraws a claim that failed, unless the store refused it outright: then it has nothing of ours.
    fn withdraw_after(&self, error: &Error, claim: &Arc<Claim>) {
        if !matches!(error.kind(), ErrorKind::Config | ErrorKind::Unsupported | ErrorKind::Denied) {
            self.core.withdraw(claim.to_ref(None));
        }
    }

    /// Lets a claim that is on its way arrive, then withdraws it.
    fn see_off(&self, asked: Asked) {
        let core = Arc::clone(&self.core);
        let task = async move {
            if core.capability().claim_blocks {
                core.withdraw(asked.claim.to_ref(None));
            }
            let claim = asked.claim.to_ref(None);
            match asked.answer.await {
                Ok(Answer::Busy(_) | Answer::Sealed) => {}
                Ok(Answer::Granted(_) | Answer::Queued(_)) | Err(_) => core.withdraw(claim),
            }
        };
        // This runs on the client's thread, so the thread is there.
        drop(self.core.spawn(task));
    }

    /// Waits in line. The keeper renews the place; what it learns, and what the store pushes, comes in here.
    async fn stand_in_line(&mut self, kept: &Arc<Kept>) -> Result<Turn, Exit> {
        let core = Arc::clone(&self.core);
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
                Stage::Held(_) => return Ok(Turn::Ours),
                Stage::TurnedAway(why) => return Ok(Turn::turned_away(why)),
                // Granted and lost before we looked, or given back by nobody: begin anew.
                Stage::Lost { .. } | Stage::GivenBack => return Ok(Turn::Again),
            };
            let trouble = kept.trouble();
            let give_up_at = trouble.as_ref().map_or(Moment::NEVER, |trouble| trouble.since + self.plan.store_wait);
            if let Some(trouble) = &trouble
                && (!trouble.error.retry_may_help() || core.now() >= give_up_at)
            {
                self.step_out(kept);
                return Err(Exit::Failed(trouble.error.clone()));
            }
            // While the store cannot be reached the keeper asks by itself.
            let ask_at = if trouble.is_some() || asking { Moment::NEVER } else { ask_at.unwrap_or(Moment::NEVER) };
            tokio::select! {
                biased;
                () = changed => asking = false,
                woken = &mut wake, if !asking => {
                    wake = store.wake(&kept.claim);
                    match woken {
                        Woken::Granted(fence) => kept.pushed(fence, core.now()),
                        Woken::Ask => {
                            asking = true;
                            core.ledger.renew_now(kept);
                        }
                    }
                }
                () = core.sleep_until(ask_at) => {
                    asking = true;
                    core.ledger.renew_now(kept);
                }
                () = core.sleep_until(give_up_at) => {}
                exit = self.left() => {
                    self.step_out(kept);
                    return Err(exit);
                }
            }
        }
    }

    /// Gives the place in line back.
    fn step_out(&self, kept: &Arc<Kept>) {
        self.core.give_back(kept, crate::store::Ending::Release).in_background();
    }

    /// Takes up a grant; renews it first if little is left of it. `None` when it is gone again.
    async fn begin(&mut self, kept: Arc<Kept>) -> Result<Option<Grip>, Exit> {
        let core = Arc::clone(&self.core);
        let grip = Grip::new(Arc::clone(&core), Arc::clone(&kept));
        if !kept.must_renew_to_begin(core.now()) {
            return Ok(Some(grip));
        }
        let before = kept.valid_until();
        core.ledger.renew_now(&kept);
        loop {
            let mut changed = pin!(kept.changed());
            changed.as_mut().enable();
            match kept.status(core.now()) {
                Status::Lost(_) => return Ok(None),
                Status::Held | Status::AtRisk if kept.valid_until() > before => return Ok(Some(grip)),
                Status::Held | Status::AtRisk => {}
            }
            tokio::select! {
                biased;
                () = changed => {}
                exit = self.left() => return Err(exit),
            }
        }
    }

    /// Pauses before the next attempt on a store that does not queue.
    async fn pause(&mut self, claim: &Claim, busy: Busy, attempts: u32) -> Result<(), Exit> {
        let core = Arc::clone(&self.core);
        let store = Arc::clone(&core.store);
        self.holder = busy.holder.or_else(|| self.holder.take());
        let spin = self.plan.spin.pause(attempts);
        let resume = core.now() + busy.ask_in.map_or(spin, |left| left.min(spin));
        tokio::select! {
            biased;
            exit = self.left() => Err(exit),
            _ = store.wake(claim) => Ok(()),
            () = core.sleep_until(resume) => Ok(()),
        }
    }

    fn timed_out(&mut self) -> Error {
        let name = &self.plan.name;
        let message = match &self.holder {
            Some(holder) => format!("not acquired in time: {name} is held by {}", holder.owner),
            None => format!("not acquired in time: {name} is held by somebody else"),
        };
        Error::new(ErrorKind::Timeout { holder: self.holder.take() }, message)
    }
}

/// What standing in line came to.
enum Turn {
    Ours,
    Again,
    Refused(Outcome),
}

impl Turn {
    fn turned_away(why: Gone) -> Turn {
        match why {
            Gone::Sealed => Turn::Refused(Outcome::Sealed),
            Gone::TooSoon => Turn::Refused(Outcome::Busy(Busy { too_soon: true, ..Busy::default() })),
            // The store forgot us: to the end of the line.
            Gone::Expired | Gone::Taken | Gone::SessionEnded | Gone::Revoked => Turn::Again,
        }
    }
}
