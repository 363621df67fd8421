//! Claiming: the lock is tried on the session that the client's claims of this length share. If it
//! is taken, a task waits for it on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use super::claims::{Own, Position, Waiting};
use super::engine::{Engine, Link};
use super::sessions::Session;
use super::{Backend, wait};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::lease::{BootClock, Clock};
use crate::store::{Answer, Busy, Claim, Grant, Lease, Mode};
use crate::stores::kit::session::claim::Enter;
use crate::stores::kit::session::sessions::Length;

/// How long a claim that is turned away waits to learn who holds the name.
const NAMING: Duration = Duration::from_millis(250);

impl<E: Engine> Enter for Backend<E> {
    async fn find_again(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Option<Answer>> {
        let session = match self.claims.lock().own.get(&claim.id) {
            None => return Ok(None),
            Some(own) => match &own.position {
                Position::Waiting(waiting) => {
                    return Ok(Some(Answer::Queued(waiting.place(claim))));
                }
                Position::Held { .. } => Arc::clone(&own.session),
            },
        };
        let limit = self.engine.request_timeout();
        let alive = session.ask(limit, session.link.beat()).await;
        if session.has_ended() {
            self.session_over(&session);
            return Ok(None);
        }
        alive?;
        let claims = self.claims.lock();
        Ok(claims.own.get(&claim.id).map(|own| match &own.position {
            Position::Waiting(waiting) => Answer::Queued(waiting.place(claim)),
            Position::Held { fence, .. } => Answer::Granted(Grant {
                fence: *fence,
                lease: own.session.lease(),
            }),
        }))
    }

    async fn enter(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Answer> {
        let key = self.engine.key(&claim.name)?;
        let length = Length {
            of: E::length(claim.lease),
            is_exact: claim.exact_lease,
        };
        let session = self.sessions.of_claim(claim, length).await?;
        if !self.claims.is_wanted(claim.id) {
            let left = "the caller has left before the claim was sent";
            return Err(Error::unavailable(left).with_nothing_sent());
        }
        match session.take(&key, claim.mode) {
            Ok(()) => {
                if let Some(fence) = self.attempt(&session, &key, claim.mode).await? {
                    return Ok(self.granted(claim, key, &session, fence));
                }
            }
            // Readers of one client share as well, each on a session of its own.
            Err(Mode::Shared) if claim.mode == Mode::Shared && !claim.queue => {
                return self.try_elsewhere(claim, key, length).await;
            }
            Err(_) => {}
        }
        if !claim.queue {
            return Ok(self.busy(claim).await);
        }
        let waiting = Waiting {
            cancel: tokio_util::sync::CancellationToken::new(),
            over: tokio_util::sync::CancellationToken::new(),
            on: None,
            seen: BootClock.now(),
            was_missing: false,
        };
        let place = waiting.place(claim);
        let waiter = wait::Waiter::new(self, claim, &key, &waiting);
        let own = Own {
            claim: Arc::clone(claim),
            key,
            session,
            position: Position::Waiting(waiting),
        };
        // First: it may be granted at once.
        self.claims.lock().own.insert(claim.id, own);
        waiter.begin();
        Ok(Answer::Queued(place))
    }

    fn turned_away(self: &Arc<Self>, _: &Claim, _: &Result<Answer>) -> bool {
        true
    }
}

impl<E: Engine> Backend<E> {
    /// Tries to lock a key that was taken on this session for it. The key is given back, unless it
    /// is locked.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        session: &Arc<Session<E>>,
        key: &E::Key,
        mode: Mode,
    ) -> Result<Option<Fence>> {
        let limit = self.engine.request_timeout();
        let answer = session.ask(limit, session.link.attempt(key, mode)).await;
        match &answer {
            Ok(Some(_)) => {}
            Ok(None) => session.give_back(key),
            // It may be locked.
            Err(_) => self.unlock_later(session, key, mode),
        }
        answer
    }

    /// A lock that was just granted on a session.
    fn granted(
        &self,
        claim: &Arc<Claim>,
        key: E::Key,
        session: &Arc<Session<E>>,
        fence: Fence,
    ) -> Answer {
        let own = Own {
            claim: Arc::clone(claim),
            key,
            session: Arc::clone(session),
            position: Position::Held {
                fence,
                mode: claim.mode,
            },
        };
        self.claims.lock().own.insert(claim.id, own);
        Answer::Granted(Grant {
            fence,
            lease: Lease::of(session.length()),
        })
    }

    /// The name is taken: by which session?
    async fn busy(&self, claim: &Claim) -> Answer {
        let looking = tokio::time::timeout(NAMING, self.show(&claim.name)).await;
        let line = looking.ok().and_then(|page| page.ok()?.lines.pop());
        Answer::Busy(Busy {
            holder: line.and_then(|line| line.holders.into_iter().next()),
            ..Busy::default()
        })
    }

    /// Tries a lock on a connection that no other claim uses, if there is one.
    async fn try_elsewhere(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        key: E::Key,
        length: Length,
    ) -> Result<Answer> {
        let (backend, claim) = (Arc::clone(self), Arc::clone(claim));
        // In a task of its own: a caller that is not polled must not keep the connection.
        crate::stores::in_task::in_task(async move {
            let Some(session) = backend.pool.take_now(&backend, length.of).await? else {
                return Ok(backend.busy(&claim).await);
            };
            let _ = session.take(&key, claim.mode);
            match backend.attempt(&session, &key, claim.mode).await? {
                Some(fence) => Ok(backend.granted(&claim, key, &session, fence)),
                None => {
                    backend.pool.put(session);
                    Ok(backend.busy(&claim).await)
                }
            }
        })
        .await
    }
}
