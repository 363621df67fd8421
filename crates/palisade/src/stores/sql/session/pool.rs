//! The connections of the claims that wait: each waits on one of its own. A lock cannot move to
//! another session, so a claim that was granted keeps the connection until it is released. Then
//! another claim may wait on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::Backend;
use super::engine::Engine;
use super::sessions::Session;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};

/// How long an idle connection is kept.
const IDLE_FOR: Duration = Duration::from_secs(10);

pub(super) struct Pool<E: Engine> {
    /// One place for each connection. Claims beyond that queue for one, in order.
    free: Arc<Semaphore>,
    idle: Mutex<Idle<E>>,
}

struct Idle<E: Engine> {
    /// The last one to become idle at the end.
    sessions: Vec<(Arc<Session<E>>, Moment)>,
    /// Whether a task will close those that stay idle.
    is_swept: bool,
}

impl<E: Engine> Pool<E> {
    pub(super) fn new(most: usize) -> Arc<Pool<E>> {
        Arc::new(Pool {
            free: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            idle: Mutex::new(Idle {
                sessions: Vec::new(),
                is_swept: false,
            }),
        })
    }

    fn idle(&self) -> MutexGuard<'_, Idle<E>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session of this length that nothing else uses, when there is a place for it.
    pub(super) async fn take(
        &self,
        backend: &Arc<Backend<E>>,
        length: Duration,
    ) -> Result<Arc<Session<E>>> {
        let place = Arc::clone(&self.free).acquire_owned().await;
        let place = place.map_err(|_| ending())?;
        self.take_at(place, backend, length).await
    }

    /// The same, if there is a place for it now.
    pub(super) async fn take_now(
        &self,
        backend: &Arc<Backend<E>>,
        length: Duration,
    ) -> Result<Option<Arc<Session<E>>>> {
        match Arc::clone(&self.free).try_acquire_owned() {
            Ok(place) => self.take_at(place, backend, length).await.map(Some),
            Err(_) => Ok(None),
        }
    }

    async fn take_at(
        &self,
        place: OwnedSemaphorePermit,
        backend: &Arc<Backend<E>>,
        length: Duration,
    ) -> Result<Arc<Session<E>>> {
        if let Some(session) = self.reuse(length) {
            session.lend(place);
            return Ok(session);
        }
        let (tell, opened) = oneshot::channel();
        let backend = Arc::clone(backend);
        // In a task: when the claim is withdrawn meanwhile, another one has the connection. To open
        // one for each claim that leaves soon would keep the server busy.
        tokio::spawn(async move {
            let session = backend.sessions.system.session(length).await;
            if let Ok(session) = &session {
                session.lend(place);
            }
            if let Err(Ok(session)) = tell.send(session) {
                backend.pool.put(session);
            }
        });
        opened.await.map_err(|_| ending())?
    }

    /// An idle session of this length. Without one, an idle one of another length makes room.
    fn reuse(&self, length: Duration) -> Option<Arc<Session<E>>> {
        let mut idle = self.idle();
        idle.sessions
            .retain(|(session, _)| !session.has_ended() && session.is_fresh());
        let found = idle
            .sessions
            .iter()
            .rposition(|(session, _)| session.length() == length);
        if let Some(at) = found {
            return Some(idle.sessions.remove(at).0);
        }
        if idle.sessions.len() > self.free.available_permits() {
            drop(idle.sessions.remove(0));
        }
        None
    }

    /// Takes a session back on which no key is locked. Inside the client's runtime.
    pub(super) fn put(self: &Arc<Self>, session: Arc<Session<E>>) {
        let Some(place) = session.take_back() else {
            return;
        };
        if session.has_ended() {
            return;
        }
        let mut idle = self.idle();
        idle.sessions.push((session, BootClock.now()));
        drop(place);
        if !std::mem::replace(&mut idle.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes those that were idle for too long; whether any are left.
    fn close_idle(&self) -> bool {
        let (mut idle, now) = (self.idle(), BootClock.now());
        idle.sessions
            .retain(|(session, since)| !session.has_ended() && now.since(*since) < IDLE_FOR);
        idle.is_swept = !idle.sessions.is_empty();
        idle.is_swept
    }
}

fn ending() -> Error {
    Error::unavailable("the client is ending")
}

async fn sweep<E: Engine>(pool: std::sync::Weak<Pool<E>>) {
    loop {
        tokio::time::sleep(IDLE_FOR / 2).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.close_idle() {
            return;
        }
    }
}
