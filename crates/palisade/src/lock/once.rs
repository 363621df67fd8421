//! Once per period, and once and for all.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Attempt;
use super::options::{Options, option_methods};
use crate::engine::acquire::{Outcome, WaitLimit};
use crate::error::{Error, Result};
use crate::guard::{Exclusive, Guard};
use crate::lease::{LossReason, Status};
use crate::store::{Ending, Mode, Released};

/// A mutex that is refused while less than a period has passed since its last grant, by the store's
/// clock. Made by [`Mutex::once_per`](super::Mutex::once_per).
///
/// A run that fails counts. [`Guard::undo`] takes the mark back.
#[derive(Clone)]
pub struct OncePer {
    options: Options,
}

impl OncePer {
    pub(crate) fn new(options: Options, period: Duration) -> OncePer {
        OncePer {
            options: Options {
                once_per: Some(period),
                ..options
            },
        }
    }

    /// Checks name and options without asking the store.
    ///
    /// # Errors
    ///
    /// As `acquire`, before a request is sent.
    pub fn check(&self) -> Result<()> {
        self.options.plan(Mode::Exclusive).map(drop)
    }

    /// Waits in line; `None` when the period's run has begun already, now or by the time it is our
    /// turn.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn acquire(&self) -> Result<Option<Guard>> {
        self.acquire_within(WaitLimit::Forever).await
    }

    /// Takes it if it is free and due now.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); neither busy nor too soon is one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.acquire_within(WaitLimit::Now).await
    }

    /// Takes it if it is free and due now, or says who holds it, or when it is due.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); neither busy nor too soon is one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_acquire_or_holder(&self) -> Result<Attempt<Guard>> {
        self.attempt(WaitLimit::Now).await
    }

    /// Waits in line as the value says, or says why it is not due. When the value says
    /// [`Now`](WaitLimit::Now), this is [`try_acquire_or_holder`](OncePer::try_acquire_or_holder).
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when a wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn attempt(&self, wait: WaitLimit) -> Result<Attempt<Guard>> {
        self.options.attempt_guard(Mode::Exclusive, wait).await
    }

    /// As [`acquire`](OncePer::acquire), waiting in line for at most so long.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when the wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn acquire_timeout(&self, longest: Duration) -> Result<Option<Guard>> {
        self.acquire_within(WaitLimit::AtMost(longest)).await
    }

    /// Waits in line as the value says; `None` when it is not due, or when it says
    /// [`Now`](WaitLimit::Now) and the name is taken.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when a wait ran out; a name that is
    /// taken now is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn acquire_within(&self, wait: WaitLimit) -> Result<Option<Guard>> {
        match self.options.acquire(Mode::Exclusive, wait).await? {
            Outcome::Granted(held) => Ok(Some(Guard::new(Arc::new(held)))),
            Outcome::Busy(_) | Outcome::Sealed => Ok(None),
        }
    }

    /// Runs the body if it is due, and releases however it ends; `None` when it was not due.
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](super::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the body is dropped and the lock is released; the run counts.
    pub async fn run<T, F, Fut>(&self, body: F) -> Result<Option<T>>
    where
        F: FnOnce(Arc<Guard<Exclusive>>) -> Fut,
        Fut: Future<Output = T>,
    {
        match self.acquire().await? {
            Some(guard) => guard.run(body).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Work that is to be done once, however often it is asked for: the same request sent twice, a
/// message delivered again. Made by [`Client::once`](crate::Client::once).
///
/// A caller that begins holds the key like a mutex. [`finish`](OnceGuard::finish) seals it; a guard
/// that is dropped, or lost, leaves the key to the next caller. So the work is done at least once
/// and its end is recorded once. Where doing it twice would do harm, make its effect and its record
/// one transaction, or check the guard's fence.
#[derive(Clone)]
pub struct Once {
    options: Options,
    keep: Duration,
}

impl Once {
    /// How long a key is remembered unless [`keep`](Once::keep) says otherwise.
    pub const DEFAULT_KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

    pub(crate) fn new(options: Options) -> Once {
        Once {
            options,
            keep: Self::DEFAULT_KEEP,
        }
    }

    option_methods!();

    /// How long it is remembered that the work is done. Defaults to 7 days.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Once {
        self.keep = keep;
        self
    }

    /// Begins, waiting for another caller that has begun; `None` when the work is done.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot remember. See
    /// [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn begin(&self) -> Result<Option<OnceGuard>> {
        let capability = self.options.core.capability();
        if !capability.once {
            return Err(Error::unsupported(format!(
                "{capability} cannot remember what was done (once)"
            )));
        }
        if self.keep.is_zero() {
            return Err(Error::config(
                "keep of 0 remembers nothing; give a longer time",
            ));
        }
        match self
            .options
            .acquire(Mode::Exclusive, WaitLimit::Forever)
            .await?
        {
            Outcome::Granted(held) => Ok(Some(OnceGuard {
                guard: Guard::new(Arc::new(held)),
                keep: self.keep,
            })),
            Outcome::Busy(_) | Outcome::Sealed => Ok(None),
        }
    }
}

/// The right to do the work. Dropping it leaves the work to the next caller.
#[must_use = "dropping it leaves the work to another caller"]
pub struct OnceGuard {
    guard: Guard,
    keep: Duration,
}

impl OnceGuard {
    /// The guard of the key, with its fence and its loss signal.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Records that the work is done, and releases the key. The lease is renewed until the store
    /// has answered.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) when the key was lost before that was recorded: another
    /// caller may do the work again.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the work may or may not be recorded; the key is released.
    pub async fn finish(self) -> Result<()> {
        let (core, tracked) = (&self.guard.held().core, &self.guard.held().tracked);
        let mut may_be_sealed = false;
        loop {
            let lost = match tracked.status(core.now()) {
                Status::Lost(reason) => Some(reason),
                Status::Held | Status::AtRisk => None,
            };
            if let Some(reason) = lost
                && !may_be_sealed
            {
                return Err(Error::lost(reason));
            }
            let (store, claim, ending) = (
                Arc::clone(&core.store),
                tracked.to_ref(),
                Ending::Seal(self.keep),
            );
            match (
                core.call(async move { store.release(&claim, ending).await })
                    .await,
                lost,
            ) {
                (Ok(Released::Done), _) => {
                    tracked.give_back(core.now());
                    core.registry.forget(tracked);
                    return Ok(());
                }
                // Asked once more after the loss, because an earlier answer was lost: it was not
                // sealed.
                (_, Some(reason)) => return Err(Error::lost(reason)),
                (Ok(Released::AlreadyLost), None) => return Err(Error::lost(LossReason::Taken)),
                (Err(error), None) if !error.retry_may_help() => return Err(error),
                (Ok(Released::Unknown) | Err(_), None) => {
                    may_be_sealed = true;
                    core.pause(RETRY).await?;
                }
            }
        }
    }
}

/// Between two attempts to seal.
const RETRY: Duration = Duration::from_millis(50);

impl fmt::Debug for OnceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceGuard").field(&self.guard).finish()
    }
}
