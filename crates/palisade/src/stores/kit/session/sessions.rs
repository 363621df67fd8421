//! The sessions of a client: one for each length of lease, opened at first use and shared by its
//! claims of that length; and one of its own for a claim that must be able to outlive the client,
//! or needs another length than the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::store::{ByClaim, Claim, ClaimId};
use crate::stores::in_task::in_task;

/// A length of session that claims ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Length {
    pub(crate) of: Duration,
    /// Whether no other length will do.
    pub(crate) is_exact: bool,
}

/// A system that has sessions.
pub(crate) trait OpensSessions: Send + Sync + 'static {
    /// A handle of a session.
    type Session: Clone + Send + Sync + 'static;

    /// Opens a session of this length.
    fn open(&self, length: Length) -> impl Future<Output = Result<Self::Session>> + Send;

    /// Whether claims of this length may join the session as it is.
    ///
    /// A session of which little is left has no claims that are renewed. A claim that joined it and
    /// renewed it would keep the others alive: so another session is opened in its place.
    fn can_join(&self, session: &Self::Session, length: Length) -> bool;

    /// Whether claims may join a session that they cannot join as it is, once it is renewed or its
    /// length is checked.
    fn can_join_later(
        &self,
        session: &Self::Session,
        length: Length,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Whether a session has certainly ended.
    fn has_ended(&self, session: &Self::Session) -> bool;

    /// Ends a session, and all claims on it.
    fn close(&self, session: Self::Session) -> impl Future<Output = ()> + Send;

    /// How long the opening of a session may take.
    fn limit(&self) -> Duration;
}

/// The session of one length. Locked while one is opened, so that not every claim opens its own.
type Current<S> = Arc<tokio::sync::Mutex<Option<S>>>;

pub(crate) struct Sessions<O: OpensSessions> {
    pub(crate) system: O,
    by_length: Mutex<HashMap<Duration, Current<O::Session>>>,
    /// Sessions that belong to one claim.
    owned: Mutex<ByClaim<O::Session>>,
}

impl<O: OpensSessions> Sessions<O> {
    pub(crate) fn new(system: O) -> Arc<Sessions<O>> {
        Arc::new(Sessions {
            system,
            by_length: Mutex::default(),
            owned: Mutex::default(),
        })
    }

    fn current(&self, length: Duration) -> Current<O::Session> {
        Arc::clone(
            self.by_length
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(length)
                .or_default(),
        )
    }

    fn owned(&self) -> MutexGuard<'_, ByClaim<O::Session>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session for claims of this length, if they can join it as it is: `None` also while one
    /// is opened.
    pub(crate) fn ready(&self, length: Length) -> Option<O::Session> {
        let current = self.current(length.of);
        let current = current.try_lock().ok()?;
        current
            .as_ref()
            .filter(|session| self.system.can_join(session, length))
            .cloned()
    }

    /// The session for claims of this length, opened if need be.
    pub(crate) async fn of_length(self: &Arc<Self>, length: Length) -> Result<O::Session> {
        if let Some(session) = self.ready(length) {
            return Ok(session);
        }
        let (this, limit) = (Arc::clone(self), self.system.limit());
        let opening = async move {
            let current = this.current(length.of);
            let mut current = current.lock().await;
            if let Some(session) = &*current
                && (this.system.can_join(session, length)
                    || this.system.can_join_later(session, length).await?)
            {
                return Ok(session.clone());
            }
            let session = this.system.open(length).await?;
            *current = Some(session.clone());
            Ok(session)
        };
        let late = |_| Error::unavailable("the store has not opened a session in time");
        in_task(async move { tokio::time::timeout(limit, opening).await.map_err(late)? }).await
    }

    /// The session for the entry of a claim: that of its length, or one of its own where the claim
    /// must be able to outlive the client.
    pub(crate) async fn of_claim(
        self: &Arc<Self>,
        claim: &Claim,
        length: Length,
    ) -> Result<O::Session> {
        if !claim.detachable {
            return match self.ready(length) {
                Some(session) => Ok(session),
                // Boxed, because it is rare, and the future of every claim has room for it.
                None => Box::pin(self.of_length(length)).await,
            };
        }
        if let Some(session) = self.owned_by(claim.id) {
            return Ok(session);
        }
        let session = self.system.open(length).await?;
        self.own(claim.id, &session);
        Ok(session)
    }

    /// Keeps a session for one claim only.
    pub(crate) fn own(&self, claim: ClaimId, session: &O::Session) {
        self.owned().insert(claim, session.clone());
    }

    /// The session that belongs to a claim, if it has not ended.
    pub(crate) fn owned_by(&self, claim: ClaimId) -> Option<O::Session> {
        let session = self.owned().get(&claim).cloned();
        session.filter(|session| !self.system.has_ended(session))
    }

    /// Forgets the session that belongs to a claim.
    pub(crate) fn disown(&self, claim: ClaimId) -> Option<O::Session> {
        self.owned().remove(&claim)
    }

    /// Ends the session that belongs to a claim, where there is one. If the server cannot be told,
    /// the session ends by itself.
    pub(crate) fn end_owned(self: &Arc<Self>, claim: ClaimId) {
        if let Some(session) = self.disown(claim) {
            let this = Arc::clone(self);
            tokio::spawn(async move { this.system.close(session).await });
        }
    }

    /// Forgets sessions that claims must not join any more.
    pub(crate) fn forget(&self, is_it: impl Fn(&O::Session) -> bool) {
        self.owned().retain(|_, session| !is_it(session));
        // One that is locked is just being opened.
        let has_none = |current: &Current<O::Session>| {
            current
                .try_lock()
                .is_ok_and(|session| session.as_ref().is_none_or(&is_it))
        };
        let mut by_length = self
            .by_length
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        by_length.retain(|_, current| Arc::strong_count(current) > 1 || !has_none(current));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Numbers {
        opened: AtomicU32,
        closed: AtomicU32,
    }

    impl OpensSessions for Numbers {
        type Session = u32;

        async fn open(&self, _: Length) -> Result<u32> {
            tokio::task::yield_now().await;
            Ok(self.opened.fetch_add(1, Ordering::Relaxed))
        }

        fn can_join(&self, session: &u32, _: Length) -> bool {
            session.is_multiple_of(2)
        }

        async fn can_join_later(&self, _: &u32, length: Length) -> Result<bool> {
            Ok(length.is_exact)
        }

        fn has_ended(&self, _: &u32) -> bool {
            false
        }

        async fn close(&self, _: u32) {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }

        fn limit(&self) -> Duration {
            Duration::from_secs(60)
        }
    }

    const SHORT: Length = Length {
        of: Duration::from_secs(1),
        is_exact: false,
    };

    #[tokio::test]
    async fn claims_of_one_length_share_a_session() {
        let sessions = Sessions::new(Numbers::default());
        let together = tokio::join!(sessions.of_length(SHORT), sessions.of_length(SHORT));
        assert_eq!((together.0.unwrap(), together.1.unwrap()), (0, 0));
        assert_eq!(sessions.ready(SHORT), Some(0));
        let long = Length {
            of: Duration::from_secs(2),
            ..SHORT
        };
        assert_eq!(sessions.ready(long), None);
        assert_eq!(sessions.of_length(long).await.unwrap(), 1);
        // An odd one cannot be joined, unless it is asked for later.
        assert_eq!(
            sessions
                .of_length(Length {
                    is_exact: true,
                    ..long
                })
                .await
                .unwrap(),
            1
        );
        assert_eq!(sessions.of_length(long).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn an_owned_session_ends_with_its_claim() {
        let (sessions, claim) = (Sessions::new(Numbers::default()), ClaimId::from_bits(1));
        sessions.own(claim, &7);
        assert_eq!(sessions.owned_by(claim), Some(7));
        sessions.end_owned(claim);
        sessions.end_owned(claim);
        tokio::task::yield_now().await;
        assert_eq!(
            (
                sessions.owned_by(claim),
                sessions.system.closed.load(Ordering::Relaxed)
            ),
            (None, 1)
        );
    }

    #[tokio::test]
    async fn a_session_that_has_ended_is_forgotten() {
        let (sessions, claim) = (Sessions::new(Numbers::default()), ClaimId::from_bits(1));
        assert_eq!(sessions.of_length(SHORT).await.unwrap(), 0);
        sessions.own(claim, &7);
        sessions.forget(|session| *session == 7);
        assert_eq!(
            (sessions.owned_by(claim), sessions.ready(SHORT)),
            (None, Some(0))
        );
        sessions.forget(|session| *session == 0);
        assert!(sessions.by_length.lock().unwrap().is_empty());
    }
}
