//! The core, between locks and stores: the client's own thread, the acquisition loop, and releases.
//!
//! ```text
//! lock ──plan──► acquire ──claim──► store          guard ──► release ──► store
//!                   │ queued: wait, ask, claim again
//!                   ▼
//!                 held (a claim that the keeper renews; dropping it releases it)
//! ```

pub(crate) mod acquire;
mod back_pressure;
mod client_thread;
pub(crate) mod held_claim;
mod pending_claim;
pub(crate) mod plan;
pub(crate) mod poll_inside;
pub(crate) mod release;
mod released;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use self::back_pressure::Gate;
use self::poll_inside::{ToTheEnd, inside};
use self::released::ReleasedGrants;
use crate::error::{Error, Result};
use crate::lease::keeper::Keeper;
use crate::lease::registry::Registry;
use crate::lease::tracked::TrackedClaim;
use crate::lease::{Clock, Drift, Moment};
use crate::store::{
    Capability, ClaimId, ClientHandle, Kind, LineView, Listener, Push, Query, Store, no_standing,
};

/// How long a caller that is refused stays to learn who holds the name.
const LOOKING: Duration = Duration::from_millis(250);

/// A future of the store that is run to its end.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Shared by a client and all its guards. The client's thread has no reference to it, and ends when
/// this is dropped.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Arc<Registry>,
    /// The detached grants that it has released.
    pub(crate) released: ReleasedGrants,
    pub(crate) drift: Drift,
    /// Equal for clients that are known to use one store, by their URLs.
    pub(crate) identity: Option<String>,
    /// Bounds the requests in flight.
    gate: Gate,
    /// Releases and withdrawals that run in the background.
    background: TaskTracker,
    /// Set when the thread has started, at first use.
    handle: OnceLock<Handle>,
    /// Receives the end of the thread. Locked while the thread is started.
    ended: Mutex<Option<Receiver<()>>>,
    /// Wakes sleepers whose clock was moved by hand.
    jumped: Arc<Notify>,
    unsent_releases: AtomicU64,
}

impl Core {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        drift: Drift,
        identity: Option<String>,
    ) -> Arc<Core> {
        let jumped = Arc::new(Notify::new());
        let tell = Arc::clone(&jumped);
        clock.on_jump(Arc::new(move || tell.notify_waiters()));
        let background = TaskTracker::new();
        // Closed: `wait` returns whenever nothing runs, and more may be spawned all the same.
        background.close();
        Arc::new(Core {
            store,
            registry: Registry::new(clock),
            released: ReleasedGrants::default(),
            drift,
            identity,
            gate: Gate::new(),
            background,
            handle: OnceLock::new(),
            ended: Mutex::new(None),
            jumped,
            unsent_releases: AtomicU64::new(0),
        })
    }

    pub(crate) fn capability(&self) -> &Capability {
        self.store.capability()
    }

    pub(crate) fn now(&self) -> Moment {
        self.registry.clock.now()
    }

    /// The client's own runtime, started at first use.
    pub(crate) fn handle(&self) -> Result<&Handle> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        let keeper = Keeper::new(Arc::clone(&self.store), Arc::clone(&self.registry));
        let (handle, hears) =
            client_thread::start(keeper, self.background.clone()).map_err(|cause| {
                Error::unavailable("the client's thread cannot be started").with_source(cause)
            })?;
        *ended = Some(hears);
        self.store.attach(ClientHandle::new(
            handle.clone(),
            Arc::new(ToRegistry(Arc::clone(&self.registry))),
        ));
        Ok(self.handle.get_or_init(|| handle))
    }

    /// Runs a task on the client's thread; [`drain`](Core::drain) waits for it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // A client whose thread cannot be started has nothing in flight.
        if let Ok(handle) = self.handle() {
            drop(handle.spawn(self.background.track_future(task)));
        }
    }

    /// Calls the store, and runs its future to the end, whether or not the caller stays.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the client's thread runs the store's future to its end.
    pub(crate) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        inside(self.handle()?, ToTheEnd::new(self, call)).await
    }

    /// The line of one kind of a name, for a caller that was refused or whose wait is over: not for
    /// long, and `None` when the store does not say.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub(crate) async fn look(self: &Arc<Self>, query: Query, kind: Kind) -> Option<LineView> {
        let store = Arc::clone(&self.store);
        let page = tokio::select! {
            biased;
            page = self.call(async move { store.inspect(&query).await }) => page.ok()?,
            () = self.sleep_until(self.now() + LOOKING) => return None,
        };
        let one_line = self.capability().mutex_is_write_side;
        page.lines
            .into_iter()
            .find(|line| one_line || line.kind == kind)
    }

    /// Renews one claim at its holder's request. The keeper's own renewals go on beside it.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the renewal may have been done.
    pub(crate) async fn renew_now(self: &Arc<Self>, tracked: &Arc<TrackedClaim>) -> Result<()> {
        let (store, claim, sent) = (Arc::clone(&self.store), tracked.to_ref(), self.now());
        let renewing = async move {
            store
                .renew(std::slice::from_ref(&claim))
                .await
                .pop()
                .unwrap_or_else(|| Err(no_standing()))
        };
        tracked.confirm(sent, self.call(renewing).await?, self.now());
        self.registry.settle(tracked);
        Ok(())
    }

    /// Sleeps on the client's clock, by a timer of the client's runtime: the caller's runtime may
    /// have none.
    pub(crate) async fn sleep_until(&self, at: Moment) {
        const LONGEST: Duration = Duration::from_secs(3600);
        if at == Moment::NEVER {
            return std::future::pending().await;
        }
        loop {
            let mut jumped = std::pin::pin!(self.jumped.notified());
            jumped.as_mut().enable();
            let left = at.since(self.now());
            if left.is_zero() {
                return;
            }
            // Without the client's thread no caller waits.
            let Some(handle) = self.handle.get() else {
                return;
            };
            let sleep = {
                let _inside = handle.enter();
                tokio::time::sleep(left.min(LONGEST))
            };
            tokio::select! {
                () = sleep => {}
                () = jumped => {}
            }
        }
    }

    /// Pauses a user's future. The timer is the client's: the user's runtime may have none.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub(crate) async fn pause(&self, span: Duration) -> Result<()> {
        inside(self.handle()?, self.sleep_until(self.now() + span)).await;
        Ok(())
    }

    /// Receives the end of the client's thread; `None` when it was never started, or when this was
    /// called before.
    pub(crate) fn ended(&self) -> Option<Receiver<()>> {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Waits until nothing runs in the background.
    pub(crate) async fn drain(&self) {
        self.background.wait().await;
    }

    fn count_unsent_release(&self) {
        self.unsent_releases.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unsent_releases(&self) -> u64 {
        self.unsent_releases.load(Ordering::Relaxed)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.registry.close();
    }
}

/// A store's pushes go to the registry of claims.
struct ToRegistry(Arc<Registry>);

impl Listener for ToRegistry {
    fn hear(&self, push: Push) {
        self.0.hear(push);
    }

    fn wants(&self, claim: ClaimId) -> bool {
        self.0.wants(claim)
    }

    fn done_waiting(&self, claim: ClaimId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Arc::clone(&self.0).done_waiting(claim))
    }
}
