//! The sessions of a client: one for each length of lease, opened at first use and shared by its claims of that length; and one of
//! its own for a claim that must be able to outlive the client.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::failure::client_ended;
use super::session::{Hears, Session};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock};

#[derive(Clone)]
pub(super) struct Sessions {
    settings: Arc<Settings>,
    /// The current session of each length. Locked while one is opened, so that not every claim opens its own.
    by_length: Arc<tokio::sync::Mutex<HashMap<Duration, Arc<Session>>>>,
}

impl Sessions {
    pub(super) fn new(settings: &Arc<Settings>) -> Sessions {
        Sessions { settings: Arc::clone(settings), by_length: Arc::default() }
    }

    /// The session for claims of this length. `exact` when no other length will do.
    ///
    /// One of which little is left is on its way out: if it has claims, nobody renews them, and whoever joined it and renewed
    /// it would keep them alive. So another is opened in its place.
    pub(super) async fn of_length(&self, length: Duration, exact: bool, hears: Weak<dyn Hears>) -> Result<Arc<Session>> {
        let (this, limit) = (self.clone(), self.settings.request_timeout);
        let finding = async move {
            let mut sessions = this.by_length.lock().await;
            sessions.retain(|_, session| !session.is_gone());
            if let Some(session) = sessions.get(&length).filter(|session| session.can_be_joined(BootClock.now())) {
                this.check(session, length, exact).await?;
                return Ok(Arc::clone(session));
            }
            let session = this.open(length, exact, hears).await?;
            sessions.insert(length, Arc::clone(&session));
            Ok(session)
        };
        let too_long = |_| Error::unavailable("ZooKeeper has not opened a session in time");
        in_client(async move { tokio::time::timeout(limit, finding).await.map_err(too_long)? }).await
    }

    /// The same without waiting: `None` when one would have to be opened first, or somebody else is just looking.
    pub(super) fn at_hand(&self, length: Duration, exact: bool) -> Option<Arc<Session>> {
        let sessions = self.by_length.try_lock().ok()?;
        let session = sessions.get(&length).filter(|session| session.can_be_joined(BootClock.now()))?;
        (!exact || session.length().as_millis() == length.as_millis()).then(|| Arc::clone(session))
    }

    /// A session of its own.
    pub(super) async fn open(&self, length: Duration, exact: bool, hears: Weak<dyn Hears>) -> Result<Arc<Session>> {
        let session = Session::open(&self.settings, length, hears).await?;
        self.check(&session, length, exact).await?;
        Ok(session)
    }

    /// Refuses a length that the server does not grant, if no other will do.
    async fn check(&self, session: &Arc<Session>, asked: Duration, exact: bool) -> Result<()> {
        if !exact || session.length().as_millis() == asked.as_millis() {
            return Ok(());
        }
        // The limits are nowhere to be read, but a server grants the nearest.
        let mut limits = Vec::new();
        for extreme in [Duration::from_millis(1), Duration::from_millis(i32::MAX as u64)] {
            let probe = Session::open(&self.settings, extreme, Weak::<Nobody>::new()).await?;
            limits.push(probe.length());
        }
        let (least, most) = (limits.first().copied().unwrap_or_default(), limits.last().copied().unwrap_or_default());
        Err(Error::config(format!(
            "a lease of {asked:?} does not work on this ZooKeeper, whose sessions last {least:?} to {most:?}; give one of that \
             length, or raise maxSessionTimeout of the servers"
        )))
    }
}

/// Does in a task of its own what takes a lock that others wait for: a caller may leave lying for a while what is lent to him.
pub(super) async fn in_client<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(client_ended()))
}

/// Hears nothing: for sessions on which nothing hangs.
pub(super) struct Nobody;

impl Hears for Nobody {
    fn told(&self, _: &Arc<Session>, _: &str) {}
    fn cut_off(&self, _: &Arc<Session>) {}
    fn restored(&self, _: &Arc<Session>) {}
    fn ended(&self, _: &Arc<Session>) {}
    fn left(&self, _: i64) {}
    fn in_use(&self, _: &Session) -> bool {
        false
    }
}
