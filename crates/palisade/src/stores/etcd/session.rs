//! Sessions: leases of etcd. A client has one for each length of lease, opened at first use and shared by its claims of that
//! length; and one of its own for a claim that must be able to outlive the client.
//!
//! A session lives only by the renewals of its claims. Nothing here keeps it alive by itself: a claim that is not renewed must end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::client::cluster::{Cluster, Failed};
use super::client::keep_alive::KeepAlive;
use super::client::leases::{length_of, seconds};
use super::client::{in_task, spawn};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ClaimId, Lease};

/// Renewals that begin within so long of each other share one keep-alive. A later one does not wait for one that may hang.
const ONE_ROUND: Duration = Duration::from_millis(100);

/// A lease of etcd.
pub(super) struct Session {
    pub(super) id: i64,
    confirmed: Mutex<Confirmed>,
    ended: AtomicBool,
    round: Mutex<Option<Round>>,
}

/// What the server last said.
#[derive(Clone, Copy)]
struct Confirmed {
    /// When it was asked.
    at: Moment,
    /// The length that it granted.
    length: Duration,
}

/// The last keep-alive: when it began, and whether the session lives; none while it is in flight.
struct Round {
    began: Moment,
    outcome: watch::Receiver<Option<Result<bool>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(super) fn new(id: i64, at: Moment, length: Duration) -> Arc<Session> {
        let confirmed = Mutex::new(Confirmed { at, length });
        Arc::new(Session { id, confirmed, ended: AtomicBool::new(false), round: Mutex::new(None) })
    }

    fn confirmed(&self) -> Confirmed {
        *locked(&self.confirmed)
    }

    /// Its lease: as long as was granted, from when the confirmation was asked for.
    pub(super) fn lease(&self) -> Lease {
        let Confirmed { at, length } = self.confirmed();
        Lease { length, counted_from: Some(at) }
    }

    fn confirmed_at(&self) -> Moment {
        self.confirmed().at
    }

    /// When it ends, if it is not renewed.
    pub(super) fn end_of(&self) -> Moment {
        let Confirmed { at, length } = self.confirmed();
        at + length
    }

    /// Whether it was confirmed so recently that another renewal brings nothing to claims of this lease. The session itself may
    /// be much longer.
    fn is_fresh(&self, lease: Duration, now: Moment) -> bool {
        now.since(self.confirmed_at()) < lease / 10
    }

    /// Whether enough is left of it for a new claim. Its claims are renewed every third: with less than this it is not renewed.
    fn can_be_joined(&self, now: Moment) -> bool {
        let Confirmed { at, length } = self.confirmed();
        (at + length).since(now) > length.mul_f64(0.6)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Marks it as ended; `false` if it was before.
    pub(super) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }
}

/// The session of one length. Locked while one is opened, so that not every claim opens its own.
type Current = Arc<tokio::sync::Mutex<Option<Arc<Session>>>>;

pub(super) struct Sessions {
    cluster: Arc<Cluster>,
    keep_alive: KeepAlive,
    by_length: Mutex<HashMap<u64, Current>>,
    /// Sessions that belong to one claim.
    owned: Mutex<HashMap<ClaimId, Arc<Session>>>,
    /// All that are in use.
    all: Mutex<Vec<Weak<Session>>>,
}

impl Sessions {
    pub(super) fn new(cluster: &Arc<Cluster>) -> Arc<Sessions> {
        Arc::new(Sessions {
            cluster: Arc::clone(cluster),
            keep_alive: KeepAlive::new(cluster),
            by_length: Mutex::default(),
            owned: Mutex::default(),
            all: Mutex::default(),
        })
    }

    fn enrolled(&self, session: Arc<Session>) -> Arc<Session> {
        let mut all = locked(&self.all);
        all.retain(|session| session.strong_count() > 0);
        all.push(Arc::downgrade(&session));
        session
    }

    /// Marks all sessions as ended. The answer has those that were not.
    pub(super) fn end_all(&self) -> Vec<Arc<Session>> {
        locked(&self.all).iter().filter_map(Weak::upgrade).filter(|session| session.end()).collect()
    }

    fn current(&self, length: Duration) -> Current {
        Arc::clone(locked(&self.by_length).entry(seconds(length)).or_default())
    }

    /// The session for claims of this length, if it can be joined as it is.
    pub(super) fn ready(&self, length: Duration) -> Option<Arc<Session>> {
        let current = self.current(length);
        let current = current.try_lock().ok()?;
        let session = current.as_ref()?;
        (!session.has_ended() && session.can_be_joined(BootClock.now())).then(|| Arc::clone(session))
    }

    /// The session for claims of this length. `in_use` says whether a session has claims.
    ///
    /// A session with claims of which little is left is about to end: a claim that joined and renewed it would keep alive claims
    /// that are not renewed. So another is opened beside it.
    pub(super) async fn of_length(
        self: &Arc<Self>,
        length: Duration,
        in_use: impl Fn(&Session) -> bool + Send + Sync + 'static,
    ) -> Result<Arc<Session>> {
        if let Some(session) = self.ready(length) {
            return Ok(session);
        }
        let sessions = Arc::clone(self);
        let opening = in_task(async move {
            let current = sessions.current(length);
            let mut current = current.lock().await;
            if let Some(session) = current.as_ref().filter(|session| !session.has_ended()) {
                let can_be_joined = session.can_be_joined(BootClock.now());
                if can_be_joined || !in_use(session) && sessions.keep_alive(session).await? {
                    return Ok(Arc::clone(session));
                }
            }
            let session = sessions.open(length).await?;
            *current = Some(Arc::clone(&session));
            Ok(session)
        });
        let too_long = |_| Error::unavailable("the store has not opened a session in time");
        tokio::time::timeout(self.cluster.request_timeout, opening).await.map_err(too_long)?
    }

    /// Opens a session.
    pub(super) async fn open(&self, length: Duration) -> Result<Arc<Session>> {
        let sent = BootClock.now();
        let (id, length) = self.cluster.grant_lease(length).await?;
        Ok(self.enrolled(Session::new(id, sent, length)))
    }

    /// The session that a key is attached to, renewed for a claim of this lease. From now on it is ours, if it was another
    /// client's; `None` when it has ended.
    pub(super) async fn of_key(self: &Arc<Self>, id: i64, lease: Duration) -> Result<Option<Arc<Session>>> {
        let known = locked(&self.all).iter().filter_map(Weak::upgrade).find(|session| session.id == id && !session.has_ended());
        // Its length comes with its first renewal.
        let session = known.unwrap_or_else(|| self.enrolled(Session::new(id, Moment::default(), Duration::ZERO)));
        Ok(self.renew(&session, lease).await?.then_some(session))
    }

    /// Renews a session for claims of this lease or longer, unless that was just done; `false` when it has ended.
    pub(super) async fn renew(self: &Arc<Self>, session: &Arc<Session>, lease: Duration) -> Result<bool> {
        let now = BootClock.now();
        if session.has_ended() || session.is_fresh(lease, now) {
            return Ok(!session.has_ended());
        }
        let mut outcome = {
            let mut round = locked(&session.round);
            match &*round {
                Some(round) if now.since(round.began) < ONE_ROUND => round.outcome.clone(),
                _ => {
                    let (tell, outcome) = watch::channel(None);
                    *round = Some(Round { began: now, outcome: outcome.clone() });
                    let (sessions, session) = (Arc::clone(self), Arc::clone(session));
                    spawn(async move { drop(tell.send(Some(sessions.keep_alive(&session).await))) });
                    outcome
                }
            }
        };
        let outcome = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        outcome.ok().flatten().unwrap_or_else(|| Err(Error::unavailable("the client has ended")))
    }

    /// Makes sure that a session lasts until then, by a renewal where it would not; `false` when it has ended. A key that moves to
    /// it must not end sooner than before: its holder counts on that.
    pub(super) async fn outlasts(&self, session: &Session, until: Moment) -> Result<bool> {
        Ok(!session.has_ended() && (session.end_of() >= until || self.keep_alive(session).await?))
    }

    async fn keep_alive(&self, session: &Session) -> Result<bool> {
        let sent = BootClock.now();
        let third = session.confirmed().length / 3;
        let limit = if third.is_zero() { self.cluster.request_timeout } else { third.min(self.cluster.request_timeout) };
        let left = self.keep_alive.renew(session.id, limit).await?;
        if left <= 0 {
            return Ok(false);
        }
        let mut confirmed = locked(&session.confirmed);
        if confirmed.at < sent {
            *confirmed = Confirmed { at: sent, length: length_of(left) };
        }
        Ok(true)
    }

    /// Which of these sessions have ended, by the server's word.
    pub(super) async fn ended_of(&self, sessions: &[&Arc<Session>]) -> Result<Vec<Arc<Session>>, Failed> {
        let mut ended = Vec::new();
        for session in sessions {
            if self.cluster.lease_left(session.id).await?.is_none() {
                ended.push(Arc::clone(session));
            }
        }
        Ok(ended)
    }

    /// Ends a session, and with it all its keys.
    pub(super) async fn revoke(&self, session: &Session) -> Result<(), Failed> {
        session.end();
        self.cluster.revoke_lease(session.id).await
    }

    /// Keeps a session for one claim only.
    pub(super) fn own(&self, claim: ClaimId, session: &Arc<Session>) {
        locked(&self.owned).insert(claim, Arc::clone(session));
    }

    /// The session that belongs to a claim, if it has not ended.
    pub(super) fn owned_by(&self, claim: ClaimId) -> Option<Arc<Session>> {
        locked(&self.owned).get(&claim).filter(|session| !session.has_ended()).cloned()
    }

    /// Lets go of the session that belongs to a claim.
    pub(super) fn disown(&self, claim: ClaimId) -> Option<Arc<Session>> {
        locked(&self.owned).remove(&claim)
    }

    /// Ends the session that belongs to a claim, where there is one. If the server cannot be told, the session ends by itself.
    pub(super) fn end_owned(self: &Arc<Self>, claim: ClaimId) {
        if let Some(session) = self.disown(claim) {
            let sessions = Arc::clone(self);
            spawn(async move { drop(sessions.revoke(&session).await) });
        }
    }
}
