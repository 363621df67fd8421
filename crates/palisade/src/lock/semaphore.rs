//! A limited number of holders at once.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Attempt;
use super::options::{Options, option_methods};
use crate::engine::acquire::WaitLimit;
use crate::error::Result;
use crate::guard::{Guard, Permits};
use crate::store::Mode;

/// A lock with a limited number of permits, first come, first served: a claim for many permits is
/// not overtaken by claims for few. Made by [`Client::semaphore`](crate::Client::semaphore).
///
/// All users of a name must give the same limit; another one is refused while the name is in use.
#[derive(Clone)]
pub struct Semaphore {
    pub(crate) options: Options,
}

impl Semaphore {
    pub(crate) fn new(options: Options) -> Semaphore {
        Semaphore { options }
    }

    option_methods!();

    /// Checks name and options without asking the store.
    ///
    /// # Errors
    ///
    /// As `acquire`, before a request is sent.
    pub fn check(&self) -> Result<()> {
        self.options.plan(Mode::Permits(1)).map(drop)
    }

    /// Waits in line for one permit.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn, and with it the place in line.
    pub async fn acquire(&self) -> Result<Guard<Permits>> {
        self.acquire_many(1).await
    }

    /// Waits in line for so many permits at once.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for none, or for more than there are.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn, and with it the place in line.
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard<Permits>> {
        self.options.waited(
            self.acquire_many_within(permits, WaitLimit::Forever)
                .await?,
        )
    }

    /// Takes one permit if there is one now; `None` otherwise, or when any claim waits.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_acquire(&self) -> Result<Option<Guard<Permits>>> {
        self.try_acquire_many(1).await
    }

    /// Takes so many permits if there are as many now; `None` otherwise, or when any claim waits.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard<Permits>>> {
        self.acquire_many_within(permits, WaitLimit::Now).await
    }

    /// Takes one permit if there is one now; `None` otherwise, or when any claim waits.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_acquire_or_holder(&self) -> Result<Attempt<Guard<Permits>>> {
        self.try_acquire_many_or_holder(1).await
    }

    /// Takes so many permits if there are as many now; `None` otherwise, or when any claim waits.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_acquire_many_or_holder(
        &self,
        permits: u32,
    ) -> Result<Attempt<Guard<Permits>>> {
        self.options
            .attempt_guard(Mode::Permits(permits), WaitLimit::Now)
            .await
    }

    /// Waits in line for one permit for at most so long; zero is one attempt.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with a holder when the wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn acquire_timeout(&self, longest: Duration) -> Result<Guard<Permits>> {
        self.acquire_many_timeout(1, longest).await
    }

    /// Waits in line for so many permits for at most so long; zero is one attempt.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many), and [`Timeout`](crate::ErrorKind::Timeout)
    /// when the wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn acquire_many_timeout(
        &self,
        permits: u32,
        longest: Duration,
    ) -> Result<Guard<Permits>> {
        self.options.waited(
            self.acquire_many_within(permits, WaitLimit::AtMost(longest))
                .await?,
        )
    }

    /// Acquires one permit, runs the body, and releases however it ends; see
    /// [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](super::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the body is dropped and the permit is released.
    pub async fn run<T, F, Fut>(&self, body: F) -> Result<T>
    where
        F: FnOnce(Arc<Guard<Permits>>) -> Fut,
        Fut: Future<Output = T>,
    {
        self.acquire().await?.run(body).await
    }

    /// Waits in line for so many permits as the value says; `None` when it says
    /// [`Now`](WaitLimit::Now) and there are too few.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when a wait ran out; a name that is
    /// taken now is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn acquire_many_within(
        &self,
        permits: u32,
        wait: WaitLimit,
    ) -> Result<Option<Guard<Permits>>> {
        Ok(self
            .options
            .acquire_within(Mode::Permits(permits), wait)
            .await?
            .map(|held| Guard::new(Arc::new(held))))
    }
}
