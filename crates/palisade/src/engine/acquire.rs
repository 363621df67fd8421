//! The loop that every store shares: claim, wake, then renew or claim again.
//!
//! It is an errand. On most stores it runs on the client's thread, on some of them [from the caller's](crate::store::Runs::FromCaller)
//! on, and the user's future is only the receiver of what it brings. Where the store answers at once, the first claim is made in
//! the caller's thread, and the errand begins only if it has to wait. Where the store can be asked from
//! [anywhere](crate::store::Runs::Caller), the user's own task runs the errand; if it leaves, what is on its way is seen off on the
//! client's thread.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::grip::Grip;
use super::plan::{Plan, Spin};
use super::{Boxed, Core, broken_off};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Moment;
use crate::lease::kept::{Kept, Stage};
use crate::store::{Answer, Busy, Claim, Gone, Holder, Runs, Wakes, Woken};

/// Between two attempts to reach a store.
const UNREACHED: Spin = Spin { min: Duration::from_millis(20), max: Duration::from_secs(1) };

/// How much longer than its wait somebody stays who is to hear who holds the name.
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
    core.handle()?;
    let mut asked = Asked::of(core, plan.claim(wait != Wait::Try)?);
    let errand =
        |user| Errand { core: Arc::clone(core), plan: plan.clone(), once: wait == Wait::Try, deadline, user, holder: None };
    if core.capability().runs == Runs::Caller {
        return errand(User::Here).run_here(asked).await;
    }
    let here = match core.poll_here(&mut asked.answer)? {
        Poll::Ready(Ok(Answer::Granted(grant))) => {
            asked.settled = true;
            let kept = Kept::granted(Arc::clone(&asked.claim), plan.terms, asked.sent, grant, core.now());
            let grip = Grip::new(Arc::clone(core), kept);
            if let Stage::Held = grip.kept.stage() {
                return Ok(Outcome::Granted(grip.arrived()));
            }
            First::Taken(grip)
        }
        Poll::Ready(Ok(Answer::Busy(busy))) if wait == Wait::Try || busy.too_soon => {
            asked.settled = true;
            return Ok(Outcome::Busy(busy));
        }
        Poll::Ready(Ok(Answer::Sealed)) => {
            asked.settled = true;
            return Ok(Outcome::Sealed);
        }
        Poll::Ready(answer) => {
            asked.answer = Box::pin(async { answer });
            First::Asked(asked)
        }
        Poll::Pending => First::Asked(asked),
    };
    let (reply, brought) = oneshot::channel();
    let stay = Arc::new(Stay { core: Arc::clone(core), left: Mutex::new(None) });
    let going = core.spawn_errand(Box::new(errand(User::Far { reply, _stay: Arc::clone(&stay) })).run(here))?;
    let staying = Staying(Some(stay));
    let brought = going.brings(brought).await.unwrap_or_else(|_| Err(broken_off()));
    staying.stayed();
    match brought? {
        Outcome::Granted(grip) => Ok(Outcome::Granted(grip.arrived())),
        other => Ok(other),
    }
}

/// What an errand begins with.
enum First {
    Asked(Box<Asked>),
    /// A grant that must be renewed before anybody may begin.
    Taken(Grip),
}

/// Shared by an errand and the user who waits for it. When the user leaves, the errand becomes background work, which
/// [`Core::drain`] waits for: from the moment of leaving, and not only from when the errand notices.
struct Stay {
    core: Arc<Core>,
    left: Mutex<Option<TaskTrackerToken>>,
}

/// The user's side of a [`Stay`].
struct Staying(Option<Arc<Stay>>);

impl Staying {
    fn stayed(mut self) {
        self.0 = None;
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        if let Some(stay) = self.0.take() {
            *stay.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(stay.core.background_token());
        }
    }
}

/// A claim on its way to the store. Whoever leaves it before it has its answer lets it arrive, and then withdraws it.
struct Asked {
    core: Arc<Core>,
    claim: Arc<Claim>,
    sent: Moment,
    answer: Boxed<Result<Answer>>,
    /// An earlier attempt with the same claim may have arrived.
    may_be_there: bool,
    /// The answer is in the hands of somebody who sees to it.
    settled: bool,
}

impl Asked {
    fn of(core: &Arc<Core>, claim: Arc<Claim>) -> Box<Asked> {
        let (store, asking) = (Arc::clone(&core.store), Arc::clone(&claim));
        let answer = Box::pin(async move { store.claim(&asking).await });
        Box::new(Asked { core: Arc::clone(core), claim, sent: core.now(), answer, may_be_there: false, settled: false })
    }

    async fn answered(&mut self) -> Result<Answer> {
        let answer = (&mut self.answer).await;
        self.settled = true;
        answer
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let answer = std::mem::replace(&mut self.answer, Box::pin(std::future::pending()));
        let (core, claim, may_be_there) = (Arc::clone(&self.core), self.claim.to_ref(None), self.may_be_there);
        let task = async move {
            if core.capability().claim_blocks {
                core.withdraw(claim.clone());
            }
            match answer.await {
                Ok(Answer::Busy(_) | Answer::Sealed) => {}
                Err(error) if error.nothing_was_sent() && !may_be_there => {}
                Ok(Answer::Granted(_) | Answer::Queued(_)) | Err(_) => core.withdraw(claim),
            }
        };
        // A client whose thread cannot be started has sent nothing.
        drop(self.core.spawn(task));
    }
}

/// A claim of which nobody knows whether it arrived. Whoever leaves it withdraws it.
struct Unsure<'a> {
    core: &'a Arc<Core>,
    claim: Option<&'a Arc<Claim>>,
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.core.withdraw(claim.to_ref(None));
        }
    }
}

/// One acquisition.
struct Errand {
    core: Arc<Core>,
    plan: Plan,
    /// One attempt only.
    once: bool,
    deadline: Moment,
    user: User,
    /// Who held the name when the store was last asked.
    holder: Option<Holder>,
}

/// Where the user waits.
enum User {
    /// In the task that runs the errand: whoever leaves drops it.
    Here,
    /// In a task of its own, while the client's thread runs the errand.
    Far { reply: oneshot::Sender<Result<Outcome>>, _stay: Arc<Stay> },
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
    /// Runs it in the user's own task.
    ///
    /// # Cancel safety
    ///
    /// Whatever is on its way or in line sees to its own end when it is dropped.
    async fn run_here(mut self, asked: Box<Asked>) -> Result<Outcome> {
        match self.pursue(First::Asked(asked)).await {
            Ok(Outcome::Granted(grip)) => Ok(Outcome::Granted(grip.arrived())),
            Ok(other) => Ok(other),
            Err(Exit::Failed(error)) => Err(error),
            Err(Exit::TimedOut | Exit::Left) => Err(self.timed_out()),
        }
    }

    /// Runs it on the client's thread, for a user who waits elsewhere. Boxed, here and below, is what would make a future large that is
    /// made and moved with every claim.
    async fn run(mut self: Box<Self>, first: First) {
        let brought = match self.pursue(first).await {
            Ok(outcome) => Ok(outcome),
            Err(Exit::Left) => return,
            Err(Exit::TimedOut) => Err(self.timed_out()),
            Err(Exit::Failed(error)) => Err(error),
        };
        if let User::Far { reply, _stay } = self.user {
            // A user who has left meanwhile: the grip comes back in the error and gives itself back.
            drop(reply.send(brought));
        }
    }

    async fn pursue(&mut self, first: First) -> Result<Outcome, Exit> {
        let mut attempts = 0;
        let mut asked = match first {
            First::Asked(asked) => asked,
            First::Taken(grip) => match Box::pin(self.stand_in_line(grip, false)).await? {
                Turn::Settled(outcome) => return Ok(outcome),
                Turn::Again => Asked::of(&self.core, self.plan.claim(!self.once)?),
            },
        };
        loop {
            let (claim, sent, answer, sent_again) = self.ask(asked).await?;
            let now = self.core.now();
            let kept = match answer {
                Answer::Granted(grant) => Kept::granted(Arc::clone(&claim), self.plan.terms, sent, grant, now),
                Answer::Queued(place) => Kept::queued(Arc::clone(&claim), self.plan.terms, sent, place, now),
                Answer::Busy(busy) if self.once || busy.too_soon => return Ok(Outcome::Busy(busy)),
                Answer::Busy(busy) => {
                    Box::pin(self.pause(&claim, busy, attempts)).await?;
                    attempts += 1;
                    // Nothing was left in the store: the same claim asks again.
                    asked = Asked::of(&self.core, claim);
                    continue;
                }
                Answer::Sealed => return Ok(Outcome::Sealed),
            };
            let grip = Grip::new(Arc::clone(&self.core), kept);
            if let Stage::Held = grip.kept.stage() {
                return Ok(Outcome::Granted(grip));
            }
            match Box::pin(self.stand_in_line(grip, sent_again)).await? {
                Turn::Settled(outcome) => return Ok(outcome),
                Turn::Again => asked = Asked::of(&self.core, self.plan.claim(!self.once)?),
            }
        }
    }

    /// Completes when nobody waits for this errand any more.
    async fn left(&mut self) -> Exit {
        let (core, user) = (&self.core, &mut self.user);
        let gone = async {
            match user {
                User::Here => std::future::pending().await,
                User::Far { reply, .. } => reply.closed().await,
            }
        };
        tokio::select! {
            biased;
            () = gone => Exit::Left,
            () = core.sleep_until(self.deadline) => Exit::TimedOut,
        }
    }

    /// Sleeps until then, unless nobody waits for this errand any more.
    async fn left_before(&mut self, at: Moment) -> Option<Exit> {
        let core = Arc::clone(&self.core);
        tokio::select! {
            biased;
            exit = self.left() => Some(exit),
            () = core.sleep_until(at) => None,
        }
    }

    /// Takes a claim to the store, again and again while the store cannot be reached. The last part of the answer says whether
    /// it was sent more than once.
    async fn ask(&mut self, mut asked: Box<Asked>) -> Result<(Arc<Claim>, Moment, Answer, bool), Exit> {
        let mut unreached_since = None;
        let mut attempts = 0;
        loop {
            let answer = tokio::select! {
                biased;
                answer = asked.answered() => answer,
                exit = self.left() => return Err(exit),
            };
            let error = match answer {
                Ok(answer) => return Ok((Arc::clone(&asked.claim), asked.sent, answer, attempts > 0)),
                Err(error) => error,
            };
            // Unless the store refused it outright, or was never asked: then it has nothing of ours.
            let refused = matches!(error.kind(), ErrorKind::Config | ErrorKind::Unsupported | ErrorKind::Denied);
            let may_be_there = asked.may_be_there || !error.nothing_was_sent();
            let core = Arc::clone(&self.core);
            let mut unsure = Unsure { core: &core, claim: (may_be_there && !refused).then_some(&asked.claim) };
            let since = *unreached_since.get_or_insert(asked.sent);
            let give_up = self.once || !error.retry_may_help() || self.core.now().since(since) >= self.plan.store_wait;
            if give_up {
                return Err(Exit::Failed(error));
            }
            let resume = core.now() + UNREACHED.pause(attempts);
            match Box::pin(self.left_before(resume)).await {
                // Not a time-out: nobody is known to hold the name.
                Some(Exit::TimedOut) => return Err(Exit::Failed(error)),
                Some(exit) => return Err(exit),
                None => {}
            }
            // The same claim: if the first request arrived after all, this one finds its grant.
            unsure.claim = None;
            drop(unsure);
            asked = Asked::of(&core, Arc::clone(&asked.claim));
            asked.may_be_there = may_be_there;
            attempts += 1;
        }
    }

    /// Waits in line until it is our turn. The keeper renews the place; what it learns, and what the store pushes, comes in
    /// here. Whoever leaves drops the grip, and with it the place.
    ///
    /// A claim that was sent twice may find a push that was meant for its first life: then the store is asked.
    async fn stand_in_line(&mut self, grip: Grip, sent_again: bool) -> Result<Turn, Exit> {
        let (core, kept) = (Arc::clone(&self.core), Arc::clone(&grip.kept));
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
                    return Ok(Turn::Settled(Outcome::Granted(grip)));
                }
                Stage::TurnedAway(why) => return Ok(Turn::turned_away(why)),
                // Granted and lost before we looked: begin anew.
                Stage::Lost(_) | Stage::GivenBack => return Ok(Turn::Again),
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
                exit = self.left() => {
                    if matches!(exit, Exit::TimedOut) && trouble.is_none() {
                        self.name_holder(&kept.claim).await;
                    }
                    return Err(exit);
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
            exit = self.left() => Err(exit),
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

/// What standing in line came to.
enum Turn {
    Settled(Outcome),
    /// The store does not have the claim any more: claim again, at the end of the line.
    Again,
}

impl Turn {
    fn turned_away(why: Gone) -> Turn {
        match why {
            Gone::Sealed => Turn::Settled(Outcome::Sealed),
            Gone::TooSoon => Turn::Settled(Outcome::Busy(Busy { too_soon: true, ..Busy::default() })),
            Gone::Expired | Gone::Taken | Gone::SessionEnded | Gone::Revoked => Turn::Again,
        }
    }
}
