//! Many readers, or one writer.

use std::sync::Arc;
use std::time::Duration;

use super::options::{Options, option_methods};
use super::{Attempt, Identity};
use crate::engine::acquire::WaitLimit;
use crate::error::Result;
use crate::guard::{Exclusive, Guard, GuardMode, Shared};
use crate::store::Mode;

/// A lock with many readers or one writer, first come, first served: a waiting writer is not
/// overtaken by new readers. Made by [`Client::rwlock`](crate::Client::rwlock).
///
/// A writer can become a reader ([`Guard::downgrade`]). A reader cannot become a writer: two
/// readers that both wanted to would wait for each other for ever. Release, then acquire. An
/// [`Identity`] that reads and asks to write gets [`Deadlock`](crate::ErrorKind::Deadlock) at once.
#[derive(Clone)]
pub struct RwLock {
    pub(crate) options: Options,
}

impl RwLock {
    pub(crate) fn new(options: Options) -> RwLock {
        RwLock { options }
    }

    option_methods!();

    /// Checks name and options without asking the store.
    ///
    /// # Errors
    ///
    /// As `read` and `write`, before a request is sent.
    pub fn check(&self) -> Result<()> {
        self.options.plan(Mode::Shared).map(drop)
    }

    /// Waits in line to read.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn, and with it the place in line.
    pub async fn read(&self) -> Result<Guard<Shared>> {
        self.options
            .waited(self.read_within(WaitLimit::Forever).await?)
    }

    /// Reads if that is possible now; `None` when a writer holds it or any claim waits for it.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_read(&self) -> Result<Option<Guard<Shared>>> {
        self.read_within(WaitLimit::Now).await
    }

    /// Reads if that is possible now; `None` when a writer holds it or any claim waits for it.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_read_or_holder(&self) -> Result<Attempt<Guard<Shared>>> {
        self.options
            .attempt_guard(Mode::Shared, WaitLimit::Now)
            .await
    }

    /// Waits in line to read for at most so long; zero is one attempt.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when the wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn read_timeout(&self, longest: Duration) -> Result<Guard<Shared>> {
        self.options
            .waited(self.read_within(WaitLimit::AtMost(longest)).await?)
    }

    /// Waits in line to write.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn, and with it the place in line.
    pub async fn write(&self) -> Result<Guard> {
        self.options
            .waited(self.write_within(WaitLimit::Forever).await?)
    }

    /// Writes if that is possible now; `None` when any claim holds it or waits for it.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.write_within(WaitLimit::Now).await
    }

    /// Writes if that is possible now; `None` when any claim holds it or waits for it.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_write_or_holder(&self) -> Result<Attempt<Guard>> {
        self.options
            .attempt_guard(Mode::Exclusive, WaitLimit::Now)
            .await
    }

    /// Waits in line to write for at most so long; zero is one attempt.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when the wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn write_timeout(&self, longest: Duration) -> Result<Guard> {
        self.options
            .waited(self.write_within(WaitLimit::AtMost(longest)).await?)
    }

    /// Reads as this identity, which may read already; see
    /// [`Mutex::acquire_as`](super::Mutex::acquire_as).
    ///
    /// # Errors
    ///
    /// [`Deadlock`](crate::ErrorKind::Deadlock) when the identity writes.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn; guards that the identity has already are not
    /// touched.
    pub async fn read_as(&self, identity: &Identity) -> Result<Guard<Shared>> {
        identity
            .enter(&self.options, Mode::Shared, WaitLimit::Forever)
            .await
    }

    /// Writes as this identity, which may write already; see
    /// [`Mutex::acquire_as`](super::Mutex::acquire_as).
    ///
    /// # Errors
    ///
    /// [`Deadlock`](crate::ErrorKind::Deadlock) when the identity reads: it would wait for itself.
    ///
    /// # Cancel safety
    ///
    /// As [`read_as`](RwLock::read_as).
    pub async fn write_as(&self, identity: &Identity) -> Result<Guard> {
        identity
            .enter(&self.options, Mode::Exclusive, WaitLimit::Forever)
            .await
    }

    /// Acquires to write, runs the body, and releases however it ends; see
    /// [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](super::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the body is dropped and the lock is released.
    pub async fn run_writing<T, F, Fut>(&self, body: F) -> Result<T>
    where
        F: FnOnce(Arc<Guard<Exclusive>>) -> Fut,
        Fut: Future<Output = T>,
    {
        self.write().await?.run(body).await
    }

    /// Acquires to read, runs the body, and releases however it ends; see
    /// [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](super::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the body is dropped and the lock is released.
    pub async fn run_reading<T, F, Fut>(&self, body: F) -> Result<T>
    where
        F: FnOnce(Arc<Guard<Shared>>) -> Fut,
        Fut: Future<Output = T>,
    {
        self.read().await?.run(body).await
    }

    /// Waits in line to read as the value says; `None` when it says [`Now`](WaitLimit::Now) and the
    /// name is taken.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when a wait ran out; a name that is
    /// taken now is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn read_within(&self, wait: WaitLimit) -> Result<Option<Guard<Shared>>> {
        self.within(Mode::Shared, wait).await
    }

    /// Waits in line to write as the value says; `None` when it says [`Now`](WaitLimit::Now) and
    /// the name is taken.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when a wait ran out; a name that is
    /// taken now is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn write_within(&self, wait: WaitLimit) -> Result<Option<Guard>> {
        self.within(Mode::Exclusive, wait).await
    }

    async fn within<M: GuardMode>(&self, mode: Mode, wait: WaitLimit) -> Result<Option<Guard<M>>> {
        Ok(self
            .options
            .acquire_within(mode, wait)
            .await?
            .map(|held| Guard::new(Arc::new(held))))
    }
}
