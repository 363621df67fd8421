//! How claims end: a holder's key is unlocked, a waiter's statement is ended.

use std::sync::Arc;

use super::Backend;
use super::claims::{Own, Position};
use super::engine::{Engine, Link};
use super::sessions::Session;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{ClaimRef, Ending, Mode};
use crate::stores::kit::session::cleanup::{Attempt, until_done};
use crate::stores::kit::session::release::{Holding, Leave};

impl<E: Engine> Leave for Backend<E> {
    /// No grant of another client can be ended.
    type Entry = ();

    async fn delete(
        self: &Arc<Self>,
        _: &ClaimRef,
        own: Option<Own<E>>,
        _: Ending,
    ) -> Result<bool> {
        // The server has nothing but what this client knows of.
        let Some(own) = own else { return Ok(false) };
        match own.position {
            Position::Held { mode, .. } => self.unlock(&own.session, &own.key, mode).await,
            Position::Waiting(waiting) => {
                waiting.cancel.cancel();
                // If it takes longer, the task goes on by itself.
                let limit = self.engine.request_timeout();
                let _ = tokio::time::timeout(limit, waiting.over.cancelled()).await;
                Ok(true)
            }
        }
    }

    async fn holders_of(&self, _: &Name) -> Result<Vec<Holding<()>>> {
        Err(Error::unsupported(format!(
            "{} ends a grant of another client only with the holder's session and all its locks; \
             show NAME says which session that is, and an administrator of the database can end it",
            self.capability
        )))
    }

    async fn delete_holder(&self, _: Vec<()>) -> Result<bool> {
        Ok(false)
    }

    fn detached(&self, _: Own<E>, _: Option<Arc<Session<E>>>) {}
}

impl<E: Engine> Backend<E> {
    async fn unlock(
        self: &Arc<Self>,
        session: &Arc<Session<E>>,
        key: &E::Key,
        mode: Mode,
    ) -> Result<bool> {
        if session.has_ended() {
            return Ok(false);
        }
        let unlocked = self.unlock_once(session, key, mode).await;
        match &unlocked {
            Ok(_) => self.unlocked(session, key),
            Err(_) => self.unlock_later(session, key, mode),
        }
        unlocked
    }

    async fn unlock_once(
        &self,
        session: &Arc<Session<E>>,
        key: &E::Key,
        mode: Mode,
    ) -> Result<bool> {
        let limit = self.engine.request_timeout();
        let unlocked = session.ask(limit, session.link.unlock(key, mode)).await?;
        if unlocked || mode != Mode::Exclusive {
            return Ok(unlocked);
        }
        // The answer to its change into a reader may have been lost.
        let reader = session.link.unlock(key, Mode::Shared);
        session.ask(limit, reader).await
    }

    fn unlocked(self: &Arc<Self>, session: &Arc<Session<E>>, key: &E::Key) {
        session.give_back(key);
        self.pool.put(Arc::clone(session));
    }

    /// A key may be locked that no claim has any more: unlocks it in the background. Inside the
    /// client's runtime.
    pub(super) fn unlock_later(
        self: &Arc<Self>,
        session: &Arc<Session<E>>,
        key: &E::Key,
        mode: Mode,
    ) {
        if session.is_lent() {
            // Nothing else is on it.
            session.give_back(key);
            session.close();
            return self.pool.put(Arc::clone(session));
        }
        let (weak, session, key) = (Arc::downgrade(self), Arc::clone(session), key.clone());
        tokio::spawn(async move {
            until_done(|| async {
                let Some(backend) = weak.upgrade().filter(|_| !session.has_ended()) else {
                    return Attempt::Done;
                };
                match backend.unlock_once(&session, &key, mode).await {
                    Ok(_) => Attempt::Done,
                    Err(_) => Attempt::Again,
                }
            })
            .await;
            session.give_back(&key);
        });
    }
}
