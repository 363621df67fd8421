//! Sessions of the server, as the kit wants them: opened for one length of lease, watched for their
//! end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::Backend;
use super::engine::{Engine, Link};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{Lease, Mode};
use crate::stores::kit::session::sessions::{Length, OpensSessions};

/// A session, and what this client does with it.
pub(crate) struct Session<E: Engine> {
    /// Never the same for two sessions of a client, unlike the server's number.
    pub(super) id: i64,
    pub(super) link: E::Link,
    length: Duration,
    /// When the last request was sent that the server has answered.
    confirmed: Mutex<Moment>,
    ended: AtomicBool,
    /// The keys that are locked, or just being asked for. A session that locked a key twice would
    /// be granted it beside itself.
    keys: Mutex<HashMap<E::Key, Mode>>,
    /// Its place among the connections that wait; `None` for one that never waits, or is idle.
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Engine> Session<E> {
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.link.closed().is_cancelled()
    }

    /// Ends it: its locks are free as soon as the server sees that.
    pub(super) fn close(&self) {
        self.link.closed().cancel();
    }

    /// Notes that the server has answered a request that was sent at this time.
    pub(super) fn confirm(&self, sent: Moment) {
        let mut confirmed = locked(&self.confirmed);
        *confirmed = (*confirmed).max(sent);
    }

    pub(super) fn confirmed(&self) -> Moment {
        *locked(&self.confirmed)
    }

    /// The server counts from later than the confirmation was sent.
    pub(super) fn lease(&self) -> Lease {
        Lease {
            length: self.length,
            counted_from: Some(self.confirmed()),
        }
    }

    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// Whether enough is left of it for another claim.
    pub(super) fn is_fresh(&self) -> bool {
        BootClock.now().since(self.confirmed()) < self.length.mul_f64(0.4)
    }

    /// Takes a key, unless it is taken on this session: then in which mode.
    pub(super) fn take(&self, key: &E::Key, mode: Mode) -> Result<(), Mode> {
        match locked(&self.keys).entry(key.clone()) {
            Entry::Occupied(taken) => Err(*taken.get()),
            Entry::Vacant(free) => {
                free.insert(mode);
                Ok(())
            }
        }
    }

    /// A key is certainly not locked on it any more.
    pub(super) fn give_back(&self, key: &E::Key) {
        locked(&self.keys).remove(key);
    }

    /// A writer's key is a reader's from now on.
    pub(super) fn now_shared(&self, key: &E::Key) {
        if let Some(mode) = locked(&self.keys).get_mut(key) {
            *mode = Mode::Shared;
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        locked(&self.keys).is_empty()
    }

    pub(super) fn lend(&self, place: OwnedSemaphorePermit) {
        *locked(&self.place) = Some(place);
    }

    /// The end of its loan; whether it was lent.
    pub(super) fn take_back(&self) -> Option<OwnedSemaphorePermit> {
        locked(&self.place).take()
    }

    pub(super) fn is_lent(&self) -> bool {
        locked(&self.place).is_some()
    }

    /// Runs a request, within a limit. The session is confirmed by the answer.
    pub(super) async fn ask<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let sent = BootClock.now();
        let answer = tokio::time::timeout(limit, request).await;
        let answer = answer.unwrap_or_else(|_| Err(silent(limit)));
        if answer.is_ok() {
            self.confirm(sent);
        }
        answer
    }
}

impl<E: Engine> Drop for Session<E> {
    fn drop(&mut self) {
        self.close();
    }
}

fn silent(limit: Duration) -> Error {
    Error::unavailable(format!("the server does not answer within {limit:?}"))
}

/// Opens sessions.
pub(crate) struct Opener<E: Engine> {
    engine: Arc<E>,
    backend: Weak<Backend<E>>,
    numbers: AtomicI64,
}

impl<E: Engine> Opener<E> {
    pub(super) fn new(engine: Arc<E>, backend: Weak<Backend<E>>) -> Opener<E> {
        Opener {
            engine,
            backend,
            numbers: AtomicI64::new(1),
        }
    }

    /// Opens a session, inside the client's runtime.
    pub(super) async fn session(&self, length: Duration) -> Result<Arc<Session<E>>> {
        let sent = BootClock.now();
        let link = self.engine.open(length).await?;
        let closed = link.closed().clone();
        let session = Arc::new(Session {
            id: self.numbers.fetch_add(1, Ordering::Relaxed),
            link,
            length,
            confirmed: Mutex::new(sent),
            ended: AtomicBool::new(false),
            keys: Mutex::default(),
            place: Mutex::default(),
        });
        let (weak, backend) = (Arc::downgrade(&session), Weak::clone(&self.backend));
        tokio::spawn(async move {
            closed.cancelled().await;
            // One without users has nothing to lose.
            if let (Some(session), Some(backend)) = (weak.upgrade(), backend.upgrade()) {
                session.ended.store(true, Ordering::Release);
                backend.session_over(&session);
            }
        });
        Ok(session)
    }
}

impl<E: Engine> OpensSessions for Opener<E> {
    type Session = Arc<Session<E>>;

    async fn open(&self, length: Length) -> Result<Arc<Session<E>>> {
        self.session(length.of).await
    }

    fn can_join(&self, session: &Arc<Session<E>>, _: Length) -> bool {
        !session.has_ended() && session.is_fresh()
    }

    async fn can_join_later(&self, session: &Arc<Session<E>>, _: Length) -> Result<bool> {
        if session.has_ended() || !session.is_unused() {
            return Ok(false);
        }
        let limit = self.engine.request_timeout() / 2;
        let alive = session.ask(limit, session.link.beat()).await.is_ok();
        if !alive {
            session.close();
        }
        Ok(alive)
    }

    fn has_ended(&self, session: &Arc<Session<E>>) -> bool {
        session.has_ended()
    }

    async fn close(&self, session: Arc<Session<E>>) {
        session.close();
    }

    fn limit(&self) -> Duration {
        self.engine.request_timeout() * 2
    }
}
