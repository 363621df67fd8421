//! Waits for the turn of a claim: on a connection of its own for the bell of the claim before it,
//! or, without a connection, by asking again at times.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

use super::backend::Backend;
use super::client::Connection;
use super::table::{self, Seen, Spot};
use crate::store::{Claim, ClaimId};

/// How long one statement waits for a bell. A waiter that has left ends with it.
const SLICE: u64 = 2;
/// The pause before the first in line asks again, where no bell wakes it. It doubles with every
/// place.
const FIRST_POLL: Duration = Duration::from_millis(20);
/// How long an idle connection is kept.
const IDLE_FOR: Duration = Duration::from_secs(10);

type Permit = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// The connections that wait.
pub(super) struct Waits {
    free: Arc<Semaphore>,
    idle: Mutex<Vec<(Connection, Instant)>>,
}

impl Waits {
    pub(super) fn new(most: usize) -> Waits {
        Waits {
            free: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            idle: Mutex::default(),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Connection, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leave to use a connection, in the order in which the claims ask: so those that are nearest to
    /// the head of their line have it first.
    fn permit(&self) -> Permit {
        Box::pin(Arc::clone(&self.free).acquire_owned())
    }

    /// An idle connection.
    fn take(&self) -> Option<Connection> {
        self.close_idle();
        self.idle().pop().map(|(connection, _)| connection)
    }

    /// Closes the connections that have been idle for too long.
    pub(super) fn close_idle(&self) {
        let mut idle = self.idle();
        let is_old = |(_, since): &&(Connection, Instant)| since.elapsed() > IDLE_FOR;
        let old = idle.iter().take_while(is_old).count();
        idle.drain(..old);
    }

    fn put_back(&self, connection: Connection) {
        self.idle().push((connection, Instant::now()));
    }
}

/// What a waiter hears next.
enum Heard {
    /// Its listener is back, with its leave to use a connection.
    Listened(Option<Seen>, Option<OwnedSemaphorePermit>),
    /// It has leave to use a connection.
    Permitted(OwnedSemaphorePermit),
    /// It is time to ask again.
    Polled,
    /// It has another spot.
    Moved,
}

/// Waits until the claim holds. Ends when its entry does.
pub(super) async fn wait(
    backend: Weak<Backend>,
    claim: Arc<Claim>,
    mut spots: watch::Receiver<Spot>,
) {
    // A bell that was found free although the claim still waits: its owner's session is gone. It is
    // tried again after the next heartbeat: the owner may have taken it anew.
    let mut silent: Option<ClaimId> = None;
    let (mut permitting, mut permit): (Option<Permit>, _) = (None, None);
    let mut listening: Option<JoinHandle<(Option<Seen>, OwnedSemaphorePermit)>> = None;
    loop {
        let spot = *spots.borrow_and_update();
        let Some(alive) = backend.upgrade() else {
            return;
        };
        let is_silent = spot.bell.is_some() && spot.bell == silent;
        silent = None;
        let listens = !is_silent && listening.is_none() && !alive.client.settings().is_proxied();
        if let Some(bell) = spot.bell.filter(|_| listens) {
            match permit.take() {
                Some(permit) => {
                    // In a task of its own: when this one is dropped, the connection stays usable.
                    let listen = listen(Arc::clone(&alive), permit, Arc::clone(&claim), bell);
                    listening = Some(tokio::spawn(listen));
                    permitting = None;
                }
                None => drop(permitting.get_or_insert_with(|| alive.waits.permit())),
            }
        }
        drop(alive);
        let polls = (listening.is_none() && !is_silent) || spot.many;
        let pause = FIRST_POLL.saturating_mul(1 << spot.ahead.unwrap_or(16).min(16));
        // Otherwise the heartbeat comes first.
        let polls = polls && pause < claim.wait_lease() / 3;
        let heard = tokio::select! {
            seen = async { listening.as_mut()?.await.ok() }, if listening.is_some() => match seen {
                Some((seen, permit)) => Heard::Listened(seen, Some(permit)),
                None => Heard::Listened(None, None),
            },
            permitted = async {
                match &mut permitting {
                    Some(permitting) => permitting.await,
                    None => std::future::pending().await,
                }
            } => match permitted {
                Ok(permit) => Heard::Permitted(permit),
                Err(_) => return,
            },
            () = tokio::time::sleep(pause), if polls => Heard::Polled,
            changed = spots.changed() => match changed {
                Ok(()) => Heard::Moved,
                Err(_) => return,
            },
        };
        let asks = match heard {
            Heard::Moved => false,
            Heard::Polled => true,
            Heard::Permitted(permitted) => {
                (permitting, permit) = (None, Some(permitted));
                false
            }
            Heard::Listened(seen, permitted) => {
                (listening, permit) = (None, permitted);
                match seen {
                    Some(Seen {
                        fence: Some(fence), ..
                    }) => {
                        let Some(backend) = backend.upgrade() else {
                            return;
                        };
                        if let Some(core) = backend.core() {
                            core.granted(claim.id, fence);
                        }
                        return;
                    }
                    // Not in time: it waits for the next slice.
                    Some(Seen { rang: false, .. }) => false,
                    // It rang, or the connection failed, and then the heartbeat is the fallback.
                    Some(Seen { rang: true, .. }) | None => {
                        silent = spot.bell;
                        true
                    }
                }
            }
        };
        if asks {
            let Some(backend) = backend.upgrade() else {
                return;
            };
            let Some(core) = backend.core() else { return };
            core.ask_again(claim.id);
            drop(backend);
            // The answer to that, or to the next heartbeat, is the next spot.
            if spots.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Waits for a bell, for one slice at most.
async fn listen(
    backend: Arc<Backend>,
    permit: OwnedSemaphorePermit,
    claim: Arc<Claim>,
    bell: ClaimId,
) -> (Option<Seen>, OwnedSemaphorePermit) {
    (listen_once(&backend, &claim, bell).await, permit)
}

async fn listen_once(backend: &Backend, claim: &Claim, bell: ClaimId) -> Option<Seen> {
    let key = backend.settings.key(&claim.name);
    let statement = backend.texts.wait(&key, claim.id, bell, SLICE);
    let limit = Duration::from_secs(SLICE) + backend.client.settings().request_timeout;
    // An idle connection may have ended meanwhile.
    for reused in [true, false] {
        let mut connection = match backend.waits.take() {
            Some(connection) if reused => connection,
            _ => backend.client.connect().await.ok()?,
        };
        match connection.run(&statement, limit).await {
            Ok(rows) => {
                backend.waits.put_back(connection);
                return table::seen(&rows).ok();
            }
            Err(failure) => {
                tracing::debug!(?failure, "a connection that waited for a lock has ended");
                connection.abandon();
            }
        }
    }
    None
}
