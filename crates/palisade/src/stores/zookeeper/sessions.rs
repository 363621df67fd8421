//! The sessions of a client: one for each length of lease, opened at first use and shared by its claims of that length; and one of
//! its own for a claim that must be able to outlive the client.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::batch::{self, Batcher};
use super::client::{Credentials, Session, SessionListener, Settings, in_task};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock};
use crate::store::{ByClaim, Claim, ClaimId, Lease};

/// With less than this part of its life left, a session takes no new claims.
const JOINABLE: f64 = 0.4;

/// A session that claims hang on, and the batches of its claims and releases.
#[derive(Clone)]
pub(super) struct LockSession {
    session: Arc<Session>,
    pub(super) batcher: Arc<Batcher>,
    /// Held while a heartbeat is in flight: renewals of many claims at the same time share one.
    pub(super) heartbeat: Arc<tokio::sync::Mutex<()>>,
}

impl LockSession {
    fn new(session: Arc<Session>) -> LockSession {
        LockSession { batcher: batch::on(&session), session, heartbeat: Arc::default() }
    }

    /// Its lease, as far as it is proven.
    pub(super) fn lease(&self) -> Lease {
        self.lease_of(self.length())
    }

    /// The last part of its lease, at most so long.
    pub(super) fn lease_of(&self, longest: Duration) -> Lease {
        let (length, counted_from) = self.last_part(longest);
        Lease { length, counted_from: Some(counted_from) }
    }

    /// Ends it in the background. If the server cannot be told, the session ends by itself.
    pub(super) fn close_later(self) {
        tokio::spawn(async move { drop(self.session.close().await) });
    }
}

impl Deref for LockSession {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}

pub(super) struct Sessions {
    settings: Arc<Settings>,
    listener: Weak<dyn SessionListener>,
    /// The current session of each length. Locked while one is opened, so that not every claim opens its own.
    by_length: tokio::sync::Mutex<HashMap<Duration, LockSession>>,
    /// Sessions that belong to one claim.
    owned: Mutex<ByClaim<LockSession>>,
    /// A session to read by, for a client without claims.
    reading: tokio::sync::Mutex<Option<Arc<Session>>>,
}

impl Sessions {
    pub(super) fn new(settings: Arc<Settings>, listener: Weak<dyn SessionListener>) -> Arc<Sessions> {
        let (by_length, owned, reading) = Default::default();
        Arc::new(Sessions { settings, listener, by_length, owned, reading })
    }

    fn owned(&self) -> MutexGuard<'_, ByClaim<LockSession>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session that the nodes of a claim hang on, if it is open: `None` when it must be opened, or is being looked for.
    pub(super) fn at_hand(&self, claim: &Claim) -> Option<LockSession> {
        if claim.detachable {
            return None;
        }
        let sessions = self.by_length.try_lock().ok()?;
        let session = sessions.get(&claim.lease).filter(|session| session.left(BootClock.now()) > JOINABLE)?;
        (!claim.exact_lease || is_granted(session, claim.lease)).then(|| session.clone())
    }

    /// The same, opened if need be.
    pub(super) async fn of_claim(self: &Arc<Self>, claim: &Claim) -> Result<LockSession> {
        if !claim.detachable {
            return self.of_length(claim.lease, claim.exact_lease).await;
        }
        if let Some(session) = self.owned().get(&claim.id).filter(|session| !session.is_gone()) {
            return Ok(session.clone());
        }
        let session = LockSession::new(self.open(claim.lease, claim.exact_lease).await?);
        self.owned().insert(claim.id, session.clone());
        Ok(session)
    }

    /// The session for claims of this length. `exact` when no other length will do.
    ///
    /// A session of which little is left has no claims that are renewed. A claim that joined it and renewed it would keep the others
    /// alive: so another session is opened in its place.
    async fn of_length(self: &Arc<Self>, length: Duration, exact: bool) -> Result<LockSession> {
        let (this, limit) = (Arc::clone(self), self.settings.request_timeout);
        let finding = async move {
            let mut sessions = this.by_length.lock().await;
            sessions.retain(|_, session| !session.is_gone());
            if let Some(session) = sessions.get(&length).filter(|session| session.left(BootClock.now()) > JOINABLE) {
                this.check(session, length, exact).await?;
                return Ok(session.clone());
            }
            let session = LockSession::new(this.open(length, exact).await?);
            sessions.insert(length, session.clone());
            Ok(session)
        };
        let too_long = |_| Error::unavailable("ZooKeeper has not opened a session in time");
        in_task(async move { tokio::time::timeout(limit, finding).await.map_err(too_long)? }).await
    }

    /// A session to read by.
    pub(super) async fn to_read(self: &Arc<Self>) -> Result<Arc<Session>> {
        let this = Arc::clone(self);
        in_task(async move {
            let mut reading = this.reading.lock().await;
            if let Some(session) = reading.as_ref().filter(|session| session.left(BootClock.now()) > JOINABLE) {
                return Ok(Arc::clone(session));
            }
            let session = this.open(Duration::from_secs(10), false).await?;
            *reading = Some(Arc::clone(&session));
            Ok(session)
        })
        .await
    }

    /// Takes up the session of a claim that another client has left; `None` when it has ended.
    pub(super) async fn take_up(&self, claim: &Claim, credentials: Credentials) -> Result<Option<LockSession>> {
        let listener = Some(Weak::clone(&self.listener));
        let session = Session::take_up(&self.settings, claim.lease, credentials, listener).await?;
        let session = session.map(LockSession::new);
        if let Some(session) = &session {
            self.owned().insert(claim.id, session.clone());
        }
        Ok(session)
    }

    /// Forgets the session that belongs to a claim.
    pub(super) fn disown(&self, claim: ClaimId) -> Option<LockSession> {
        self.owned().remove(&claim)
    }

    /// A session has ended.
    pub(super) fn ended(&self, session: &Arc<Session>) {
        self.owned().retain(|_, owned| !Arc::ptr_eq(owned, session));
    }

    async fn open(&self, length: Duration, exact: bool) -> Result<Arc<Session>> {
        let session = Session::open(&self.settings, length, Some(Weak::clone(&self.listener))).await?;
        self.check(&session, length, exact).await?;
        Ok(session)
    }

    /// Refuses a length that the server does not grant, if no other will do.
    async fn check(&self, session: &Arc<Session>, asked: Duration, exact: bool) -> Result<()> {
        if !exact || is_granted(session, asked) {
            return Ok(());
        }
        // The limits cannot be read, but a server grants the nearest length.
        let least = Session::open(&self.settings, Duration::from_millis(1), None).await?.length();
        let most = Session::open(&self.settings, Duration::from_millis(i32::MAX as u64), None).await?.length();
        Err(Error::config(format!(
            "a lease of {asked:?} does not work on this ZooKeeper, whose sessions last {least:?} to {most:?}; give one of that \
             length, or raise maxSessionTimeout of the servers"
        )))
    }
}

fn is_granted(session: &Session, asked: Duration) -> bool {
    session.length().as_millis() == asked.as_millis()
}
