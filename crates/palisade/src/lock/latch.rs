//! A counter that many wait for.

use std::sync::Arc;
use std::time::Duration;

use super::options::Options;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{Latches, Store};

/// How long the store waits for one push. A push that was lost costs as much at most.
const LONGEST_PUSH: Duration = Duration::from_secs(1);

/// A latch: it is set to a count, is counted down by any client, and opens for all waiters at zero.
/// Made by [`Client::latch`](crate::Client::latch).
///
/// It is no lock: it has no holder, no lease and no fence, and a client that dies before it has
/// counted down leaves the latch closed. A latch that was never set, and one that was counted down
/// to zero, is open, and can be set again.
///
/// Only Redis has it, in its own format and in `redisson`, where it is an `RCountDownLatch`.
///
/// # Examples
///
/// ```no_run
/// # async fn example(locks: &palisade::Client) -> palisade::Result<()> {
/// let ready = locks.latch("import/ready", 3);
/// ready.set().await?;
/// // In each of three workers:
/// ready.count_down().await?;
/// // In any program:
/// ready.wait().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Latch {
    options: Options,
    count: u32,
}

impl Latch {
    pub(crate) fn new(options: Options, count: u32) -> Latch {
        Latch { options, count }
    }

    fn name(&self) -> Result<Name> {
        Name::new(&*self.options.name)
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.options.core.store)
    }

    /// Closes the latch with its count, unless it is closed already: `false` then, whatever its
    /// count.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store without latches,
    /// [`Config`](crate::ErrorKind::Config) for a count of zero.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the latch may have been set.
    pub async fn set(&self) -> Result<bool> {
        if self.count == 0 {
            return Err(Error::config(
                "a latch with the count 0 would always be open; give it a count of 1 at least",
            ));
        }
        let (store, name, count) = (self.store(), self.name()?, self.count);
        let setting = async move { latches(&*store)?.set_latch(&name, count).await };
        self.options.core.call(setting).await
    }

    /// Counts down by one, and says how many are left. An open latch stays open.
    ///
    /// # Errors
    ///
    /// As [`set`](Latch::set). After [`Unavailable`](crate::ErrorKind::Unavailable) it may have been
    /// counted down or not.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the latch may have been counted down.
    pub async fn count_down(&self) -> Result<u32> {
        let (store, name) = (self.store(), self.name()?);
        let counting = async move { latches(&*store)?.count_down(&name).await };
        self.options.core.call(counting).await
    }

    /// How often the latch must still be counted down: zero when it is open.
    ///
    /// # Errors
    ///
    /// As [`set`](Latch::set).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn count(&self) -> Result<u32> {
        let (store, name) = (self.store(), self.name()?);
        let reading = async move { latches(&*store)?.latch_count(&name).await };
        self.options.core.call(reading).await
    }

    /// Waits until the latch is open.
    ///
    /// # Errors
    ///
    /// As [`set`](Latch::set); [`Unavailable`](crate::ErrorKind::Unavailable) as soon as the store
    /// cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn wait(&self) -> Result<()> {
        while self.count_after_change(LONGEST_PUSH).await? > 0 {}
        Ok(())
    }

    /// Waits for so long at most, and says whether the latch is open.
    ///
    /// # Errors
    ///
    /// As [`wait`](Latch::wait).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn wait_timeout(&self, longest: Duration) -> Result<bool> {
        let core = &self.options.core;
        let begun = core.now();
        loop {
            let left = longest.saturating_sub(core.now().since(begun));
            if self.count_after_change(left.min(LONGEST_PUSH)).await? == 0 {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    async fn count_after_change(&self, longest: Duration) -> Result<u32> {
        let (store, name) = (self.store(), self.name()?);
        let waiting = async move { latches(&*store)?.latch_after_change(&name, longest).await };
        self.options.core.call(waiting).await
    }
}

fn latches(store: &dyn Store) -> Result<&dyn Latches> {
    store.extensions().latches.ok_or_else(|| {
        Error::unsupported(format!(
            "{} has no latches; use redis: for them",
            store.capability()
        ))
    })
}
