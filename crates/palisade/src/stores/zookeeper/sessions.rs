//! The sessions that claims hang on, and one to read by.

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::batch::{self, Batcher};
use super::client::{Credentials, Session, SessionListener, Settings};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock};
use crate::store::{Claim, Lease};
use crate::stores::in_task::in_task;
use crate::stores::kit::session::sessions::{self as kit, Length, OpensSessions};

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
        LockSession {
            batcher: batch::on(&session),
            session,
            heartbeat: Arc::default(),
        }
    }

    /// Its lease, as far as it is proven.
    pub(super) fn lease(&self) -> Lease {
        self.lease_of(self.length())
    }

    /// The last part of its lease, at most so long.
    pub(super) fn lease_of(&self, longest: Duration) -> Lease {
        let (length, counted_from) = self.last_part(longest);
        Lease {
            length,
            counted_from: Some(counted_from),
        }
    }
}

impl Deref for LockSession {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}

/// All sessions of a client that claims hang on.
pub(super) type Sessions = kit::Sessions<Servers>;

/// Opens sessions.
pub(super) struct Servers {
    settings: Arc<Settings>,
    listener: Weak<dyn SessionListener>,
}

impl OpensSessions for Servers {
    type Session = LockSession;

    async fn open(&self, length: Length) -> Result<LockSession> {
        let session = LockSession::new(
            Session::open(&self.settings, length.of, Some(Weak::clone(&self.listener))).await?,
        );
        self.check(&session, length).await?;
        Ok(session)
    }

    fn can_join(&self, session: &LockSession, length: Length) -> bool {
        is_granted(session, length) && session.left(BootClock.now()) > JOINABLE
    }

    async fn can_join_later(&self, session: &LockSession, length: Length) -> Result<bool> {
        if session.left(BootClock.now()) > JOINABLE {
            self.check(session, length).await?;
        }
        Ok(false)
    }

    fn has_ended(&self, session: &LockSession) -> bool {
        session.is_gone()
    }

    async fn close(&self, session: LockSession) {
        drop(session.session.close().await);
    }

    fn limit(&self) -> Duration {
        self.settings.request_timeout
    }
}

pub(super) fn length_of(claim: &Claim) -> Length {
    Length {
        of: claim.lease,
        is_exact: claim.exact_lease,
    }
}

/// Whether the server has granted this length, or another will do.
fn is_granted(session: &Session, asked: Length) -> bool {
    !asked.is_exact || session.length().as_millis() == asked.of.as_millis()
}

impl Servers {
    pub(super) fn new(settings: &Arc<Settings>, listener: Weak<dyn SessionListener>) -> Servers {
        Servers {
            settings: Arc::clone(settings),
            listener,
        }
    }

    /// Opens a session to read by.
    async fn open_to_read(&self) -> Result<Arc<Session>> {
        Session::open(
            &self.settings,
            Duration::from_secs(10),
            Some(Weak::clone(&self.listener)),
        )
        .await
    }

    /// Refuses a length that the server does not grant, if no other will do.
    async fn check(&self, session: &Session, asked: Length) -> Result<()> {
        if is_granted(session, asked) {
            return Ok(());
        }
        // The limits cannot be read, but a server grants the nearest length.
        let least = Session::open(&self.settings, Duration::from_millis(1), None)
            .await?
            .length();
        let most = Session::open(&self.settings, Duration::from_millis(i32::MAX as u64), None)
            .await?
            .length();
        Err(Error::config(format!(
            "a lease of {:?} does not work on this ZooKeeper, whose sessions last {least:?} to {most:?}; give one of that \
             length, or raise maxSessionTimeout of the servers",
            asked.of
        )))
    }
}

impl Sessions {
    /// Takes up the session of a claim that another client has left; `None` when it has ended.
    pub(super) async fn take_up(
        &self,
        claim: &Claim,
        credentials: Credentials,
    ) -> Result<Option<LockSession>> {
        let Servers { settings, listener } = &self.system;
        let session = Session::take_up(
            settings,
            claim.lease,
            credentials,
            Some(Weak::clone(listener)),
        )
        .await?;
        Ok(session
            .map(LockSession::new)
            .inspect(|session| self.own(claim.id, session)))
    }
}

/// A session to read by, for a client without claims.
#[derive(Clone, Default)]
pub(super) struct ReadingSession(Arc<tokio::sync::Mutex<Option<Arc<Session>>>>);

impl ReadingSession {
    pub(super) async fn get(&self, sessions: &Arc<Sessions>) -> Result<Arc<Session>> {
        let (this, sessions) = (self.clone(), Arc::clone(sessions));
        in_task(async move {
            let mut reading = this.0.lock().await;
            if let Some(session) = reading
                .as_ref()
                .filter(|session| session.left(BootClock.now()) > JOINABLE)
            {
                return Ok(Arc::clone(session));
            }
            let session = sessions.system.open_to_read().await?;
            *reading = Some(Arc::clone(&session));
            Ok(session)
        })
        .await
    }
}
