//! The guard: the user's value for a grant. It is the owner, never a thread, a task or a
//! connection.

mod detached;
mod mode;
mod refused;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::Core;
use crate::engine::held_claim::HeldClaim;
use crate::engine::release::PendingRelease;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::tracked::TrackedClaim;
use crate::lease::{LossReason, Status};
use crate::store::{
    Capability, Change, ClaimRef, Detach, Ending, Gone, Kind, LeaseUnit, Mode, Query, Released,
    Standing, Store,
};

pub use detached::DetachedGrant;
pub use mode::{AnyMode, Exclusive, GuardMode, Permits, Shared};
pub use refused::Refused;

/// A lock that is held. Dropping it releases the lock; [`release`](Guard::release) does so and
/// returns the outcome.
///
/// It can be moved to any task or thread. Its state is computed from the clock at each call.
///
/// # Drop
///
/// The release is sent by the client's own thread: dropping never blocks and needs no runtime. If
/// the store cannot be reached, the release is tried until the lease has ended.
/// [`Client::shutdown`](crate::Client::shutdown) waits for it.
#[must_use = "a guard that is dropped at once protects nothing"]
pub struct Guard<M: GuardMode = Exclusive> {
    held: Arc<HeldClaim>,
    mode: PhantomData<fn() -> M>,
}

impl<M: GuardMode> Guard<M> {
    pub(crate) fn new(held: Arc<HeldClaim>) -> Guard<M> {
        Guard {
            held,
            mode: PhantomData,
        }
    }

    pub(crate) fn held(&self) -> &Arc<HeldClaim> {
        &self.held
    }

    /// The name that is held.
    pub fn name(&self) -> &str {
        self.held.tracked.claim.name.as_str()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.held.tracked.mode()
    }

    /// The number of this grant: higher than that of every earlier grant of this name.
    ///
    /// Hand an exclusive guard's fence to the resource with every write: a resource that has seen a
    /// higher one refuses it.
    pub fn fence(&self) -> M::Fence {
        self.held.fence().into()
    }

    /// Its state now: held, at risk, or lost and why.
    pub fn status(&self) -> Status {
        self.held.tracked.status(self.held.core.now())
    }

    /// Whether it is held now. Reads the clock and asks no server.
    pub fn is_held(&self) -> bool {
        !matches!(self.status(), Status::Lost(_))
    }

    /// How long it is certainly held without another renewal.
    pub fn remaining(&self) -> Duration {
        self.held.tracked.remaining(self.held.core.now())
    }

    /// The length of the lease, as the store granted it.
    pub fn lease(&self) -> Duration {
        self.held.tracked.lease()
    }

    /// Completes when the lock is lost, with the reason. It fires by the clock, before the store
    /// may admit another holder, even when the network is cut and this runtime was blocked.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; a loss is never missed.
    pub async fn lost(&self) -> LossReason {
        loop {
            let mut changed = pin!(self.held.tracked.changed());
            changed.as_mut().enable();
            if let Status::Lost(reason) = self.status() {
                return reason;
            }
            changed.await;
        }
    }

    /// A token that is cancelled `stop_margin` before the lock would be lost, so that there is time
    /// to stop, or at once when the store says that it is gone.
    pub fn on_lost(&self) -> CancellationToken {
        let token = self.held.tracked.stop_token();
        // After the token exists: a stop that was due earlier was fired without it.
        if self.held.tracked.watch(self.held.core.now()).is_none() {
            token.cancel();
        }
        token
    }

    /// Completes at the next change of what is known about the lock: a renewal that was confirmed,
    /// one that failed, or the loss. Changes count from the call on, so call it, then look at
    /// [`remaining`](Guard::remaining), [`trouble`](Guard::trouble) and [`status`](Guard::status),
    /// and then await it: nothing is missed.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + '_ {
        self.held.tracked.changed()
    }

    /// Why the last renewal failed; `None` when it was confirmed. The lock is held until its
    /// deadline, and the client goes on trying.
    pub fn trouble(&self) -> Option<Error> {
        self.held.tracked.trouble().map(|trouble| trouble.error)
    }

    /// The unique value of this claim, as it is in the store, except in etcd, where keys are
    /// reused. A secret: a client that knows it can release the lock.
    pub fn value(&self) -> String {
        self.held.tracked.claim.id.reveal()
    }

    /// Renews the lease now, and says how long the lock is certainly held. The client does so by
    /// itself, unless [`auto_renew`](crate::Mutex::auto_renew) is off: then this is how the lease
    /// is extended.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) when the store has another holder or none;
    /// [`Unavailable`](ErrorKind::Unavailable) when it cannot be asked: then the lock is held until
    /// the deadline that it had.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point; the renewal may have been done all the same.
    pub async fn renew(&self) -> Result<Duration> {
        let HeldClaim { core, tracked, .. } = &*self.held;
        if let Status::Lost(reason) = self.status() {
            return Err(Error::lost(reason));
        }
        core.renew_now(tracked).await?;
        match self.status() {
            Status::Lost(reason) => Err(Error::lost(reason)),
            Status::Held | Status::AtRisk => Ok(self.remaining()),
        }
    }

    /// Asks the store now whether it still has this grant, without renewing it. A grant that is
    /// gone is [lost](Guard::lost) from then on.
    ///
    /// [`is_held`](Guard::is_held) asks no server, and is right as long as the store keeps what it
    /// confirmed. This call also sees a grant that the store has dropped by itself. The answer may
    /// be out of date when it arrives: protect a write that needs certainty by the
    /// [fence](Guard::fence).
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) when the store cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn verify(&self) -> Result<bool> {
        let HeldClaim { core, tracked, .. } = &*self.held;
        if !self.is_held() {
            return Ok(false);
        }
        let (store, query) = (
            Arc::clone(&core.store),
            Query::Show(tracked.claim.name.clone()),
        );
        let page = core
            .call(async move { store.inspect(&query).await })
            .await?;
        let mut holders = page.lines.into_iter().flat_map(|line| line.holders);
        if holders.any(|holder| holder.fence == tracked.fence()) {
            return Ok(self.is_held());
        }
        // A renewal revives nothing, and its answer says why the grant is gone.
        core.renew_now(tracked).await?;
        Ok(self.is_held())
    }

    /// Releases the lock, and says whether it was held until now.
    ///
    /// If the store cannot be asked, the answer is [`Released::Unknown`] and the client goes on
    /// trying. For a re-entered lock this ends one of its holds; the last one asks the store.
    ///
    /// # Errors
    ///
    /// Errors that a retry cannot mend: rights that were taken away, or an answer that we do not
    /// understand. The lease ends the grant.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the lock is released all the same.
    pub async fn release(self) -> Result<Released> {
        self.end(Ending::Release).await
    }

    /// Releases the lock as if it had never been granted: its `once_per` mark and its `min_hold`
    /// are removed.
    ///
    /// # Errors
    ///
    /// As [`release`](Guard::release).
    ///
    /// # Cancel safety
    ///
    /// Dropped before the first poll, the lock is released but the marks stay; later, as
    /// [`release`](Guard::release).
    pub async fn undo(self) -> Result<Released> {
        self.end(Ending::Undo).await
    }

    async fn end(self, ending: Ending) -> Result<Released> {
        // Only one of several holds of a re-entered lock is the last.
        let Some(held) = Arc::into_inner(self.held) else {
            return Ok(Released::Done);
        };
        held.release(ending).outcome().await
    }

    /// Lets the grant live on without this client: it is not renewed until a client
    /// [adopts](crate::Client::adopt) it, and it ends with its lease, which begins anew.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) where the store cannot, or the lock was re-entered;
    /// [`Lost`](ErrorKind::Lost) when it is gone. The guard comes back.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the lock is released.
    pub async fn detach(self) -> Result<DetachedGrant, Refused<Guard<M>>> {
        if let Err(error) = self.detached().await {
            return Err(Refused { guard: self, error });
        }
        let detached = DetachedGrant::of(&self.held);
        match Arc::try_unwrap(self.held) {
            Ok(held) => {
                held.forget();
                Ok(detached)
            }
            // No caller can enter a grant that leaves.
            Err(held) => Err(Refused {
                guard: Guard::new(held),
                error: Error::protocol("a caller entered a detached lock; a bug"),
            }),
        }
    }

    async fn detached(&self) -> Result<()> {
        let (core, tracked) = (&self.held.core, &self.held.tracked);
        let Capability {
            store,
            detach,
            lease_unit,
            ..
        } = *core.capability();
        if detach == Detach::Never {
            return Err(Error::unsupported(format!(
                "on {store} a grant cannot outlive the client that holds it"
            )));
        }
        if lease_unit == LeaseUnit::Session && !tracked.claim.detachable {
            return Err(Error::unsupported(format!(
                "on {store} only a lock that was made detachable() can be detached"
            )));
        }
        self.certainly(|store, claim| async move { store.change(&claim, Change::Detach).await })
            .await
    }

    /// Changes the grant: asks the store until its answer is certain, or the lock is lost. A guard
    /// whose change is uncertain is lost: it must not claim its old mode.
    async fn certainly<F, Fut>(&self, ask: F) -> Result<()>
    where
        F: Fn(Arc<dyn Store>, ClaimRef) -> Fut,
        Fut: Future<Output = Result<Standing>> + Send + 'static,
    {
        let (core, tracked) = (&self.held.core, &self.held.tracked);
        // First closed, then counted, so that no task enters in between.
        tracked.leave(true);
        if Arc::strong_count(&self.held) > 1 {
            tracked.leave(false);
            return Err(Error::unsupported(
                "the lock is held more than once by its owner; release the inner holds first",
            ));
        }
        loop {
            if let Status::Lost(reason) = self.status() {
                return Err(Error::lost(reason));
            }
            match core
                .call(ask(Arc::clone(&core.store), tracked.to_ref()))
                .await
            {
                Ok(Standing::Held(_)) => return Ok(()),
                Ok(Standing::Gone(why)) => tracked.ended(why),
                Err(error) if error.retry_may_help() => core.pause(RETRY).await?,
                Ok(Standing::Waiting(_)) | Err(_) => tracked.ended(Gone::Expired),
            }
        }
    }

    /// The same guard, with its mode known only at run time.
    pub fn into_any_mode(self) -> Guard<AnyMode> {
        Guard::new(self.held)
    }

    /// Ends this hold for good, also if the guard has been moved elsewhere.
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            core: Arc::clone(&self.held.core),
            tracked: Arc::clone(&self.held.tracked),
            armed: true,
        }
    }

    /// Runs a body while the lock is held, then releases the lock. The body is dropped at the stop
    /// margin before a loss.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> palisade::Result<()> {
    /// let locks = palisade::connect("memory:").await?;
    /// let guard = locks.mutex("report").acquire().await?;
    /// let written = guard.run(async |guard| format!("report {}", guard.fence())).await?;
    /// # assert_eq!(written, "report 1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) when the body was stopped; what [`release`](Guard::release)
    /// answers otherwise.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the body is dropped and the lock is released.
    pub async fn run<T, F, Fut>(self, body: F) -> Result<T>
    where
        F: FnOnce(Arc<Guard<M>>) -> Fut,
        Fut: Future<Output = T>,
    {
        let stop = self.on_lost();
        // However this future or the body ends, the claim is released, also if the body has kept
        // the guard.
        let ends = self.ends();
        let guard = Arc::new(self);
        // Our own reference: this call awaits the release, which must not begin with the end of the
        // body.
        let done = until_stopped(&stop, body(Arc::clone(&guard))).await;
        let status = guard.status();
        let released = ends.now().outcome().await;
        match (done, status) {
            (Some(done), _) => released.map(|_| done),
            (None, Status::Lost(reason)) => Err(Error::lost(reason)),
            (None, Status::Held | Status::AtRisk) => Err(about_to_be_lost()),
        }
    }
}

/// Runs a body until it ends or must stop; then it is dropped, and the answer is `None`.
pub(crate) async fn until_stopped<T>(
    stop: &CancellationToken,
    body: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        done = body => Some(done),
    }
}

/// The work was stopped at the stop margin, before the lock was lost.
pub(crate) fn about_to_be_lost() -> Error {
    let message = "the work was stopped: the lease was about to end and could not be renewed";
    Error::new(ErrorKind::Lost(LossReason::Expired), message)
}

/// Releases a claim when `run` ends, however it ends.
pub(crate) struct Ends {
    core: Arc<Core>,
    tracked: Arc<TrackedClaim>,
    armed: bool,
}

impl Ends {
    /// Begins to release the claim.
    pub(crate) fn now(mut self) -> PendingRelease {
        self.armed = false;
        self.core.release_tracked(&self.tracked, Ending::Release)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if self.armed {
            self.core.release_tracked(&self.tracked, Ending::Release);
        }
    }
}

impl Guard<Exclusive> {
    /// Turns the writer into a reader in one step: no other writer comes between.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) where the store cannot, or for a mutex;
    /// [`Lost`](ErrorKind::Lost) when it is lost before the store has confirmed. The guard comes
    /// back.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the lock is released.
    pub async fn downgrade(self) -> Result<Guard<Shared>, Refused<Guard>> {
        match self.downgraded().await {
            Ok(()) => {
                self.held.tracked.downgraded();
                Ok(Guard::new(self.held))
            }
            Err(error) => Err(Refused { guard: self, error }),
        }
    }

    async fn downgraded(&self) -> Result<()> {
        let capability = self.held.core.capability();
        if self.held.tracked.claim.kind != Kind::RwLock {
            return Err(Error::unsupported(
                "a mutex has no read side; take the write side of an rwlock instead",
            ));
        }
        if !capability.downgrade {
            return Err(Error::unsupported(format!(
                "{} cannot turn a writer into a reader in one step",
                capability.store
            )));
        }
        self.certainly(|store, claim| async move { store.change(&claim, Change::Downgrade).await })
            .await
    }
}

/// Between two attempts to get a certain answer.
const RETRY: Duration = Duration::from_millis(50);

impl<M: GuardMode> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("mode", &self.mode())
            .field("fence", &self.held.fence().get())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
