//! The way back: release, cancel, time-out and drop are one verb, tried until it is done or the lease has ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use super::begun::Going;
use super::plan::Spin;
use super::{Boxed, Core, broken_off};
use crate::error::{Error, Result};
use crate::lease::LossReason;
use crate::lease::kept::Kept;
use crate::store::{ClaimRef, Ending, Released, Runs};

/// Between two attempts to release.
const PAUSE: Spin = Spin { min: Duration::from_millis(50), max: Duration::from_secs(1) };

/// A release on its way.
pub(crate) struct GivingBack {
    answer: Answer,
    lost: Option<LossReason>,
}

enum Answer {
    Here(Result<Released>),
    Coming(Going, oneshot::Receiver<Result<Released>>),
    /// The caller's to send and to wait for.
    Sent(Sent),
}

/// A release that the caller may wait for in its own thread. Whoever leaves it lets it go on in the client's thread.
struct Sent {
    core: Arc<Core>,
    claim: ClaimRef,
    ending: Ending,
    answer: Option<Boxed<Result<Released>>>,
}

impl Sent {
    async fn outcome(mut self) -> Result<Released> {
        let Some(answer) = &mut self.answer else { return Ok(Released::Unknown) };
        let error = match answer.await {
            Ok(released) => {
                self.answer = None;
                return Ok(released);
            }
            Err(error) => error,
        };
        self.answer = None;
        match self.core.release_later(self.claim.clone(), self.ending, Box::pin(async { Err(error) })) {
            Answer::Coming(going, coming) => going.brings(coming).await.unwrap_or(Ok(Released::Unknown)),
            Answer::Here(answer) => answer,
            Answer::Sent(_) => Ok(Released::Unknown),
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            drop(self.core.release_later(self.claim.clone(), self.ending, answer));
        }
    }
}

impl GivingBack {
    /// Nothing to ask the store: it was given back already, or this was one of several holds of a re-entered lock.
    pub(crate) fn nothing() -> GivingBack {
        GivingBack { answer: Answer::Here(Ok(Released::Done)), lost: None }
    }

    /// Lets it go on by itself.
    pub(crate) fn in_background(self) {}

    /// What became of it.
    ///
    /// # Cancel safety
    ///
    /// Dropping it does not stop the release.
    pub(crate) async fn outcome(self) -> Result<Released> {
        let answer = match self.answer {
            Answer::Here(answer) => answer,
            // No answer: the client's thread ended, or the store panicked. The lease ends the claim.
            Answer::Coming(going, coming) => going.brings(coming).await.unwrap_or(Ok(Released::Unknown)),
            Answer::Sent(sent) => sent.outcome().await,
        };
        match self.lost {
            // Whatever the store said: it was not held until now.
            Some(_) => answer.map(|_| Released::AlreadyLost),
            None => answer,
        }
    }
}

impl Core {
    /// Gives a kept claim back. Never blocks.
    pub(crate) fn give_back(self: &Arc<Self>, kept: &Arc<Kept>, ending: Ending) -> GivingBack {
        let Some((claim, lost)) = kept.give_back(self.now()) else {
            return GivingBack::nothing();
        };
        self.ledger.forget(kept);
        GivingBack { answer: self.release(claim, ending), lost }
    }

    /// Withdraws a claim that nobody waits for any more, as if it had never been made.
    pub(crate) fn withdraw(self: &Arc<Self>, claim: ClaimRef) {
        drop(self.release(claim, Ending::Undo));
    }

    fn release(self: &Arc<Self>, claim: ClaimRef, ending: Ending) -> Answer {
        let mut first = self.send_release(&claim, ending);
        if self.capability().runs == Runs::Caller {
            // Sent by whoever polls it first: by the user who waits for it, or else by the client's thread. Nobody may poll the
            // runtime of a user who does not wait.
            return Answer::Sent(Sent { core: Arc::clone(self), claim, ending, answer: Some(first) });
        }
        // This may run in a drop while a panic unwinds: a second panic here would end the process.
        let here = catch_unwind(AssertUnwindSafe(|| self.poll_here(&mut first)));
        match here {
            Ok(Ok(Poll::Ready(Ok(released)))) => Answer::Here(Ok(released)),
            Ok(Ok(Poll::Ready(Err(error)))) => self.release_later(claim, ending, Box::pin(async { Err(error) })),
            Ok(Ok(Poll::Pending)) => self.release_later(claim, ending, first),
            Ok(Err(error)) => {
                self.not_released(&claim, &error);
                Answer::Here(Err(error))
            }
            // The store panicked, or this thread is just ending and has no place for a runtime any more.
            Err(_) => {
                let again = self.send_release(&claim, ending);
                self.release_later(claim, ending, again)
            }
        }
    }

    fn send_release(&self, claim: &ClaimRef, ending: Ending) -> Boxed<Result<Released>> {
        let (store, claim) = (Arc::clone(&self.store), claim.clone());
        Box::pin(async move { store.release(&claim, ending).await })
    }

    /// Goes on with a release on the client's thread.
    fn release_later(self: &Arc<Self>, claim: ClaimRef, ending: Ending, first: Boxed<Result<Released>>) -> Answer {
        let (reply, coming) = oneshot::channel();
        let core = Arc::clone(self);
        let task = async move {
            let panics = Panics { core: &core, claim: &claim };
            core.release_until_done(&claim, ending, first, reply).await;
            std::mem::forget(panics);
        };
        match self.spawn(task) {
            Ok(going) => Answer::Coming(going, coming),
            Err(error) => Answer::Here(Err(error)),
        }
    }

    async fn release_until_done(
        &self,
        claim: &ClaimRef,
        ending: Ending,
        first: Boxed<Result<Released>>,
        reply: oneshot::Sender<Result<Released>>,
    ) {
        // By then its lease has ended in the store, whatever was confirmed last.
        let until = self.now() + claim.claim.lease;
        let mut reply = Some(reply);
        let mut answer = |answer| drop(reply.take().map(|reply| reply.send(answer)));
        let mut result = first.await;
        for attempts in 0.. {
            match result {
                Ok(released) => return answer(Ok(released)),
                Err(error) if error.retry_may_help() && self.now() < until => {
                    answer(Ok(Released::Unknown));
                    self.sleep_until((self.now() + PAUSE.pause(attempts)).min(until)).await;
                }
                Err(error) => {
                    self.not_released(claim, &error);
                    return answer(Err(error));
                }
            }
            result = self.send_release(claim, ending).await;
        }
    }

    fn not_released(&self, claim: &ClaimRef, error: &Error) {
        self.count_unsent_release();
        tracing::warn!(name = %claim.claim.name, claim = ?claim.claim.id, %error, "not released; its lease ends it");
    }
}

/// Counts a release that ended without an answer, because the store panicked.
struct Panics<'a> {
    core: &'a Core,
    claim: &'a ClaimRef,
}

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        self.core.not_released(self.claim, &broken_off());
    }
}
