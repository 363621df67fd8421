//! Ending a claim: release, cancel, time-out and drop are one verb, tried until it is done or the
//! lease has ended.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::plan::Spin;
use super::poll_inside::{can_enter, caught, inside};
use super::{Boxed, Core};
use crate::error::{Error, Result};
use crate::lease::LossReason;
use crate::lease::tracked::TrackedClaim;
use crate::store::{ClaimRef, Ending, Released};

/// Between two attempts to release.
const PAUSE: Spin = Spin {
    min: Duration::from_millis(50),
    max: Duration::from_secs(1),
};

/// A release in flight, or not yet sent. The caller may wait for it; dropped, it goes on by itself.
pub(crate) struct PendingRelease {
    request: Option<Request>,
    lost: Option<LossReason>,
}

/// One attempt, and what it takes to repeat it.
struct Request {
    core: Arc<Core>,
    claim: ClaimRef,
    ending: Ending,
    attempt: Boxed<Result<Released>>,
}

impl PendingRelease {
    /// No request is needed: it was released already, or this was one of several holds of a
    /// re-entered lock.
    pub(crate) fn nothing() -> PendingRelease {
        PendingRelease {
            request: None,
            lost: None,
        }
    }

    /// Waits for the first attempt. If it fails and a retry may help, the client's thread goes on
    /// trying.
    ///
    /// # Cancel safety
    ///
    /// Dropping it does not stop the release.
    pub(crate) async fn outcome(mut self) -> Result<Released> {
        let lost = self.lost;
        let Some(request) = &mut self.request else {
            return Ok(Released::Done);
        };
        let core = Arc::clone(&request.core);
        let answer = inside(core.handle()?, &mut request.attempt).await;
        // From here on there is nothing to hand over when this is dropped.
        let answer = match (self.request.take(), answer) {
            (Some(request), Err(error)) => request.failed(error),
            (_, answer) => answer,
        };
        match lost {
            // Whatever the store answered: it was not held until now.
            Some(_) => answer.map(|_| Released::AlreadyLost),
            None => answer,
        }
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.go_on();
        }
    }
}

impl Request {
    fn new(core: &Arc<Core>, claim: ClaimRef, ending: Ending) -> Request {
        let attempt = core.attempt_release(&claim, ending);
        Request {
            core: Arc::clone(core),
            claim,
            ending,
            attempt,
        }
    }

    /// Goes on without the caller. A store that answers at once has answered when this returns.
    fn go_on(mut self) {
        // A panic may be unwinding here, and the thread may be running its last destructors:
        // neither may panic.
        let Ok(runtime) = self.core.handle() else {
            return;
        };
        if can_enter() {
            let _inside = runtime.enter();
            match self
                .attempt
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                Poll::Ready(Ok(_)) => return,
                Poll::Ready(Err(error)) => return drop(self.failed(error)),
                Poll::Pending => {}
            }
        }
        let core = Arc::clone(&self.core);
        core.spawn(async move {
            if let Err(error) = (&mut self.attempt).await
                && self.failed_for_good(&error).is_none()
            {
                self.repeat().await;
            }
        });
    }

    /// The first attempt failed: the client's thread tries again, where that may help.
    fn failed(self, error: Error) -> Result<Released> {
        match self.failed_for_good(&error) {
            Some(()) => Err(error),
            None => {
                let core = Arc::clone(&self.core);
                core.spawn(self.repeat());
                Ok(Released::Unknown)
            }
        }
    }

    /// Counts and logs a release that no retry can mend; `None` for one that may be retried.
    fn failed_for_good(&self, error: &Error) -> Option<()> {
        (!error.retry_may_help()).then(|| self.core.not_released(&self.claim, error))
    }

    /// Tries until the store answers, or its lease has certainly ended in the store.
    async fn repeat(self) {
        let core = &self.core;
        let until = core.now() + self.claim.claim.lease;
        for attempts in 0.. {
            core.sleep_until((core.now() + PAUSE.pause(attempts)).min(until))
                .await;
            match core.attempt_release(&self.claim, self.ending).await {
                Ok(_) => return,
                Err(error) if error.retry_may_help() && core.now() < until => {}
                Err(error) => return core.not_released(&self.claim, &error),
            }
        }
    }
}

impl Core {
    /// Releases a tracked claim. Nothing is sent before the answer is polled or dropped.
    pub(crate) fn release_tracked(
        self: &Arc<Self>,
        tracked: &Arc<TrackedClaim>,
        ending: Ending,
    ) -> PendingRelease {
        let Some((claim, lost)) = tracked.give_back(self.now()) else {
            return PendingRelease::nothing();
        };
        self.registry.forget(tracked);
        if claim.claim.detachable {
            self.released.add(claim.claim.id);
        }
        PendingRelease {
            request: Some(Request::new(self, claim, ending)),
            lost,
        }
    }

    /// Withdraws a claim whose caller has left, as if it had never been made.
    pub(crate) fn withdraw(self: &Arc<Self>, claim: ClaimRef) {
        Request::new(self, claim, Ending::Undo).go_on();
    }

    /// The same, on the client's thread: returns when the store has answered once.
    pub(super) async fn withdrawn(self: &Arc<Self>, claim: ClaimRef) {
        let mut request = Request::new(self, claim, Ending::Undo);
        if let Err(error) = (&mut request.attempt).await {
            drop(request.failed(error));
        }
    }

    fn attempt_release(
        self: &Arc<Self>,
        claim: &ClaimRef,
        ending: Ending,
    ) -> Boxed<Result<Released>> {
        let (core, claim) = (Arc::clone(self), claim.clone());
        caught(async move {
            let _permit = core.gate.ending().await;
            core.store.release(&claim, ending).await
        })
    }

    fn not_released(&self, claim: &ClaimRef, error: &Error) {
        self.count_unsent_release();
        tracing::warn!(name = %claim.claim.name, claim = ?claim.claim.id, %error, "not released; its lease ends it");
    }
}
