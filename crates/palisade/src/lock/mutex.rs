//! One holder at a time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::options::{Options, option_methods};
use super::{Attempt, Identity, OncePer};
use crate::engine::acquire::WaitLimit;
use crate::error::Result;
use crate::guard::{Exclusive, Guard};
use crate::store::Mode;

/// A lock with one holder. Made by [`Client::mutex`](crate::Client::mutex).
///
/// It is not reentrant: a second `acquire` waits for the first. For nested code that cannot know
/// whether the lock is held, see [`acquire_as`](Mutex::acquire_as).
#[derive(Clone)]
pub struct Mutex {
    pub(crate) options: Options,
}

impl Mutex {
    pub(crate) fn new(options: Options) -> Mutex {
        Mutex { options }
    }

    option_methods!();

    /// Checks name and options without asking the store.
    ///
    /// # Errors
    ///
    /// As `acquire`, before a request is sent.
    pub fn check(&self) -> Result<()> {
        self.options.plan(Mode::Exclusive).map(drop)
    }

    /// Waits in line, without a limit.
    ///
    /// # Errors
    ///
    /// Never because another claim holds it. See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn, and with it the place in line.
    pub async fn acquire(&self) -> Result<Guard> {
        self.options
            .waited(self.acquire_within(WaitLimit::Forever).await?)
    }

    /// Takes it if it is free now; `None` when another claim holds it or waits for it.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.acquire_within(WaitLimit::Now).await
    }

    /// Takes it if it is free now; `None` when another claim holds it or waits for it.
    ///
    /// ```
    /// # use palisade::Attempt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> palisade::Result<()> {
    /// # let locks = palisade::connect("memory:").await?;
    /// match locks.mutex("orders/42").try_acquire_or_holder().await? {
    ///     Attempt::Acquired(guard) => println!("held with fence {}", guard.fence()),
    ///     Attempt::Busy(obstacle) => println!("{obstacle}"), // orders/42 is held by web-3 (refund)
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn try_acquire_or_holder(&self) -> Result<Attempt<Guard>> {
        self.options
            .attempt_guard(Mode::Exclusive, WaitLimit::Now)
            .await
    }

    /// Waits in line for at most so long; zero is one attempt.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when the wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn.
    pub async fn acquire_timeout(&self, longest: Duration) -> Result<Guard> {
        self.options
            .waited(self.acquire_within(WaitLimit::AtMost(longest)).await?)
    }

    /// Waits in line as the value says; `None` when it says [`Now`](WaitLimit::Now) and the name is
    /// taken. [`acquire`](Mutex::acquire), [`try_acquire`](Mutex::try_acquire) and
    /// [`acquire_timeout`](Mutex::acquire_timeout) are this one verb.
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
        Ok(self
            .options
            .acquire_within(Mode::Exclusive, wait)
            .await?
            .map(|held| Guard::new(Arc::new(held))))
    }

    /// Waits in line unless this identity holds it already: then it is entered again, with the same
    /// fence, and released with the last of its guards.
    ///
    /// # Errors
    ///
    /// [`Deadlock`](crate::ErrorKind::Deadlock) when the identity holds the name in another mode.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the claim is withdrawn; guards that the identity has already are not
    /// touched.
    pub async fn acquire_as(&self, identity: &Identity) -> Result<Guard> {
        identity
            .enter(&self.options, Mode::Exclusive, WaitLimit::Forever)
            .await
    }

    /// As [`acquire_as`](Mutex::acquire_as), for at most so long.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) when the wait ran out;
    /// [`Deadlock`](crate::ErrorKind::Deadlock) when the identity holds the name in another mode.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire_as`](Mutex::acquire_as).
    pub async fn acquire_timeout_as(
        &self,
        identity: &Identity,
        longest: Duration,
    ) -> Result<Guard> {
        identity
            .enter(&self.options, Mode::Exclusive, WaitLimit::AtMost(longest))
            .await
    }

    /// Acquires, runs the body, and releases however it ends. The body is dropped at the stop
    /// margin before a loss.
    ///
    /// Work that can fail has an error of its own inside of ours, hence two question marks:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = palisade::connect("memory:").await?;
    /// let stock: u32 = locks.mutex("stock").run(async |_| "41".parse::<u32>()).await??;
    /// # assert_eq!(stock, 41);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) when the body was stopped; what `acquire` and `release`
    /// answer otherwise.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the body is dropped and the lock is released.
    pub async fn run<T, F, Fut>(&self, body: F) -> Result<T>
    where
        F: FnOnce(Arc<Guard<Exclusive>>) -> Fut,
        Fut: Future<Output = T>,
    {
        self.acquire().await?.run(body).await
    }

    /// The same lock, refused while less than `period` has passed since such a grant: for work that
    /// is to run once per tick on many hosts.
    pub fn once_per(self, period: Duration) -> OncePer {
        OncePer::new(self.options, period)
    }
}
