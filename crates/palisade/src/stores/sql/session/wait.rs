//! Waiting: each claim that waits has a task, which has a connection on which the server queues it.
//!
//! A waiter's renewal asks the server whether that connection still waits. So a grant that is pushed
//! is never older than the request by which the core dates it.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::Backend;
use super::claims::{Position, Waiting};
use super::engine::{Engine, Link};
use super::sessions::Session;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{Claim, Standing};
use crate::stores::backoff::Backoff;
use crate::stores::kit::session::claims::OwnClaim;
use crate::stores::kit::session::wait::Look;

/// Between attempts to find a connection that waits.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long an interrupted statement has to end before it is interrupted again. The first request
/// may have come before the server began to wait.
const INTERRUPTED: Duration = Duration::from_millis(50);

/// Waits for one claim.
pub(super) struct Waiter<E: Engine> {
    backend: Arc<Backend<E>>,
    claim: Arc<Claim>,
    key: E::Key,
    cancel: CancellationToken,
    /// Dropped with this.
    _over: DropGuard,
}

impl<E: Engine> Waiter<E> {
    pub(super) fn new(
        backend: &Arc<Backend<E>>,
        claim: &Arc<Claim>,
        key: &E::Key,
        waiting: &Waiting<E>,
    ) -> Waiter<E> {
        Waiter {
            backend: Arc::clone(backend),
            claim: Arc::clone(claim),
            key: key.clone(),
            cancel: waiting.cancel.clone(),
            _over: waiting.over.clone().drop_guard(),
        }
    }

    /// Begins to wait, in a task of the client's runtime.
    pub(super) fn begin(self) {
        tokio::spawn(self.wait());
    }

    async fn wait(self) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        while !self.cancel.is_cancelled() {
            match self.wait_once().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "a wait for a lock begins anew"),
            }
            tokio::select! {
                () = self.cancel.cancelled() => return,
                () = backoff.pause() => {}
            }
        }
    }

    /// Waits on one connection; whether the wait is over.
    async fn wait_once(&self) -> Result<bool> {
        let backend = &self.backend;
        let taking = backend.pool.take(backend, E::length(self.claim.lease));
        let session = tokio::select! {
            biased;
            taken = taking => taken?,
            () = self.cancel.cancelled() => return Ok(true),
        };
        let _ = session.take(&self.key, self.claim.mode);
        if !self.waits_on(Some(&session)) {
            session.give_back(&self.key);
            backend.pool.put(session);
            return Ok(true);
        }
        let sent = BootClock.now();
        let mut waiting = std::pin::pin!(session.link.wait(&self.key, self.claim.mode));
        let granted = tokio::select! {
            biased;
            granted = &mut waiting => granted,
            () = self.cancel.cancelled() => {
                let ended = self.interrupted(&session, waiting.as_mut()).await;
                self.clear(&session, ended).await;
                return Ok(true);
            }
        };
        match granted {
            Ok(Some(fence)) => {
                // The server's clock runs since the grant, which came after that.
                session.confirm(sent);
                if !self.holds(&session, fence) {
                    self.clear(&session, true).await;
                }
                Ok(true)
            }
            other => {
                self.waits_on(None);
                self.clear(&session, true).await;
                other.map(|_| false)
            }
        }
    }

    /// Notes on which session it waits; `false` when it does not wait any more.
    fn waits_on(&self, session: Option<&Arc<Session<E>>>) -> bool {
        let mut claims = self.backend.claims.lock();
        match claims
            .own
            .get_mut(&self.claim.id)
            .map(|own| &mut own.position)
        {
            // Otherwise the claim may have been made again, and another task waits for it.
            Some(Position::Waiting(waiting)) if !self.cancel.is_cancelled() => {
                waiting.on = session.cloned();
                waiting.was_missing = false;
                true
            }
            _ => false,
        }
    }

    /// The lock was granted on a session: tells the core; `false` when the claim does not wait any more.
    fn holds(&self, session: &Arc<Session<E>>, fence: Fence) -> bool {
        let mut claims = self.backend.claims.lock();
        let Some(own) = claims.own.get_mut(&self.claim.id) else {
            return false;
        };
        if self.cancel.is_cancelled() || !matches!(own.position, Position::Waiting(_)) {
            return false;
        }
        own.session = Arc::clone(session);
        own.position = Position::Held {
            fence,
            mode: self.claim.mode,
        };
        drop(claims);
        if let Some(client) = self.backend.claims.client() {
            client.granted(self.claim.id, fence);
        }
        // Its end may have come before the claim was noted on it.
        if session.has_ended() {
            self.backend.session_over(session);
        }
        true
    }

    /// Ends the statement that waits; whether it has ended.
    async fn interrupted(
        &self,
        session: &Session<E>,
        mut waiting: std::pin::Pin<&mut impl Future<Output = Result<Option<Fence>>>>,
    ) -> bool {
        let asks_by = self.session();
        let until = tokio::time::Instant::now() + self.backend.engine.request_timeout();
        while tokio::time::Instant::now() < until {
            let asks_by = asks_by.as_deref().unwrap_or(session);
            let interrupting = asks_by.link.interrupt(&session.link);
            if !matches!(
                tokio::time::timeout_at(until, interrupting).await,
                Ok(Ok(()))
            ) {
                return false;
            }
            let ended = tokio::time::timeout(INTERRUPTED, waiting.as_mut()).await;
            if ended.is_ok() {
                return true;
            }
        }
        false
    }

    /// The session that the client's claims of this length share, if it is open.
    fn session(&self) -> Option<Arc<Session<E>>> {
        self.backend
            .sessions
            .ready(crate::stores::kit::session::sessions::Length {
                of: E::length(self.claim.lease),
                is_exact: self.claim.exact_lease,
            })
    }

    /// Nothing may be left on a session that waited. A statement that was ended may have got the
    /// lock all the same.
    async fn clear(&self, session: &Arc<Session<E>>, has_ended: bool) {
        let limit = self.backend.engine.request_timeout();
        let cleared = has_ended && session.ask(limit, session.link.unlock_all()).await.is_ok();
        session.give_back(&self.key);
        if !cleared {
            session.close();
        }
        self.backend.pool.put(Arc::clone(session));
    }
}

impl<E: Engine> Look for Backend<E> {
    const ONE_BY_ONE: bool = true;

    async fn look(self: &Arc<Self>, claim: &Arc<Claim>, _: bool) -> Result<Option<Standing>> {
        let asked = BootClock.now();
        let (session, on) = match self.claims.lock().own.get(&claim.id) {
            None => return Ok(None),
            Some(own) => match &own.position {
                Position::Held { .. } => return Ok(Some(Standing::Held(own.grant(asked)))),
                Position::Waiting(waiting) => (Arc::clone(&own.session), waiting.on.clone()),
            },
        };
        let waits = match on {
            Some(on) => {
                let limit = self.engine.request_timeout();
                session
                    .ask(limit, session.link.is_waiting(&on.link))
                    .await?
            }
            // All connections are taken, perhaps for a long time.
            None => {
                self.try_without(claim, &session).await?;
                true
            }
        };
        Ok(self.standing(claim, waits.then_some(asked)))
    }
}

impl<E: Engine> Backend<E> {
    /// Where a claim stands, as far as it is known here. `seen` is when a request was sent that found
    /// it waiting.
    fn standing(&self, claim: &Claim, seen: Option<Moment>) -> Option<Standing> {
        let mut claims = self.claims.lock();
        let own = claims.own.get_mut(&claim.id)?;
        let grant = own.grant(BootClock.now());
        Some(match &mut own.position {
            Position::Held { .. } => Standing::Held(grant),
            Position::Waiting(waiting) => {
                waiting.seen = seen.unwrap_or(waiting.seen);
                // Between two statements it does not wait. Found so twice, its connection is lost,
                // and the wait begins anew.
                if std::mem::replace(&mut waiting.was_missing, seen.is_none())
                    && seen.is_none()
                    && let Some(on) = &waiting.on
                {
                    on.close();
                }
                Standing::Waiting(waiting.place(claim))
            }
        })
    }

    /// Tries the lock for a claim that queues for a connection.
    async fn try_without(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        session: &Arc<Session<E>>,
    ) -> Result<()> {
        let Ok(key) = self.engine.key(&claim.name) else {
            return Ok(());
        };
        if session.take(&key, claim.mode).is_err() {
            return Ok(());
        }
        let Some(fence) = self.attempt(session, &key, claim.mode).await? else {
            return Ok(());
        };
        let mut claims = self.claims.lock();
        if let Some(own) = claims.own.get_mut(&claim.id)
            && let Position::Waiting(waiting) = &own.position
        {
            waiting.cancel.cancel();
            own.session = Arc::clone(session);
            own.position = Position::Held {
                fence,
                mode: claim.mode,
            };
            return Ok(());
        }
        drop(claims);
        self.unlock_later(session, &key, claim.mode);
        Ok(())
    }
}
