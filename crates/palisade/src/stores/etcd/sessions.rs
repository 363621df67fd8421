//! Sessions: leases of etcd. A client has one for each length of lease, opened at first use and
//! shared by its claims of that length; and one of its own for a claim that must be able to outlive
//! the client.
//!
//! A session lives only by the renewals of its claims. Nothing here keeps it alive by itself: a
//! claim that is not renewed must end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::claims::ClaimTable;
use super::client::cluster::{Cluster, Failed};
use super::client::keep_alive::{KeepAlive, Renewed};
use super::client::leases::length_of;
use super::client::spawn;
use super::key_pool::LockKey;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::Lease;
use crate::stores::kit::session::sessions::{self as kit, Length, OpensSessions};

/// Renewals that begin within so long of each other share one keep-alive. A later one does not wait
/// for one that may hang.
const ONE_ROUND: Duration = Duration::from_millis(100);

/// A lease of etcd.
pub(super) struct Session {
    pub(super) id: i64,
    confirmed: Mutex<Confirmed>,
    ended: AtomicBool,
    round: Mutex<Option<Round>>,
    /// The line of the first key that was attached to it. It is read with each keep-alive.
    line: OnceLock<Vec<u8>>,
    /// Set when a claim may yet arrive that names it: it is revoked when its last user is gone.
    doubt: OnceLock<Arc<Cluster>>,
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
        Arc::new(Session {
            id,
            confirmed,
            ended: AtomicBool::new(false),
            round: Mutex::new(None),
            line: OnceLock::new(),
            doubt: OnceLock::new(),
        })
    }

    /// A key is attached to it, or about to be. This client has read or written that key.
    pub(super) fn attach(&self, key: &Arc<LockKey>) {
        self.line.get_or_init(|| key.line.clone());
    }

    /// Whether a claim may yet arrive that names it. No other claim joins it, and those that have
    /// are moved at their next renewal.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubt.get().is_some()
    }

    fn confirmed(&self) -> Confirmed {
        *locked(&self.confirmed)
    }

    /// Its lease: as long as was granted, from when the confirmation was asked for.
    pub(super) fn lease(&self) -> Lease {
        let Confirmed { at, length } = self.confirmed();
        Lease {
            length,
            counted_from: Some(at),
        }
    }

    fn confirmed_at(&self) -> Moment {
        self.confirmed().at
    }

    /// When it ends, if it is not renewed.
    pub(super) fn end_of(&self) -> Moment {
        let Confirmed { at, length } = self.confirmed();
        at + length
    }

    /// Whether it was confirmed so recently that another renewal brings nothing to claims of this
    /// lease. The session itself may be much longer.
    fn is_fresh(&self, lease: Duration, now: Moment) -> bool {
        now.since(self.confirmed_at()) < lease / 10
    }

    /// Whether enough is left of it for a new claim. Its claims are renewed every third: with less
    /// than this it is not renewed.
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

impl Drop for Session {
    fn drop(&mut self) {
        let Some(cluster) = self.doubt.get().filter(|_| !self.has_ended()).cloned() else {
            return;
        };
        let id = self.id;
        // Outside of the runtime the client is ending, and the session ends by itself.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { drop(cluster.revoke_lease(id).await) });
        }
    }
}

/// The sessions of one client.
pub(super) type Sessions = kit::Sessions<Leases>;

/// The leases of etcd, as sessions.
pub(super) struct Leases {
    cluster: Arc<Cluster>,
    keep_alive: KeepAlive,
    claims: Arc<ClaimTable>,
    /// All that are in use.
    all: Mutex<Vec<Weak<Session>>>,
}

impl OpensSessions for Leases {
    type Session = Arc<Session>;

    async fn open(&self, length: Length) -> Result<Arc<Session>> {
        let sent = BootClock.now();
        let (id, length) = self.cluster.grant_lease(length.of).await?;
        Ok(self.enrolled(Session::new(id, sent, length)))
    }

    fn can_join(&self, session: &Arc<Session>, _: Length) -> bool {
        !session.has_ended() && !session.is_doubtful() && session.can_be_joined(BootClock.now())
    }

    async fn can_join_later(&self, session: &Arc<Session>, _: Length) -> Result<bool> {
        let is_idle = !session.is_doubtful() && self.claims.of_session(session.id).is_empty();
        Ok(!session.has_ended() && is_idle && self.keep_alive(session).await?)
    }

    fn has_ended(&self, session: &Arc<Session>) -> bool {
        session.has_ended()
    }

    async fn close(&self, session: Arc<Session>) {
        session.end();
        // If the server cannot be told, the session ends by itself.
        drop(self.cluster.revoke_lease(session.id).await);
    }

    fn limit(&self) -> Duration {
        self.cluster.request_timeout
    }
}

impl Leases {
    pub(super) fn new(cluster: &Arc<Cluster>, claims: &Arc<ClaimTable>) -> Leases {
        let (keep_alive, cluster, claims) = (
            KeepAlive::new(cluster),
            Arc::clone(cluster),
            Arc::clone(claims),
        );
        Leases {
            cluster,
            keep_alive,
            claims,
            all: Mutex::default(),
        }
    }

    fn enrolled(&self, session: Arc<Session>) -> Arc<Session> {
        let mut all = locked(&self.all);
        all.retain(|session| session.strong_count() > 0);
        all.push(Arc::downgrade(&session));
        session
    }

    /// Renews a session; `false` when it has ended, or no claim was ever attached to it.
    async fn keep_alive(&self, session: &Session) -> Result<bool> {
        let Some(line) = session.line.get() else {
            return Ok(false);
        };
        let third = session.confirmed().length / 3;
        let limit = if third.is_zero() {
            self.cluster.request_timeout
        } else {
            third.min(self.cluster.request_timeout)
        };
        let Renewed { sent, left } = self.keep_alive.renew(session.id, line, limit).await?;
        if left <= 0 {
            return Ok(false);
        }
        let mut confirmed = locked(&session.confirmed);
        if confirmed.at < sent {
            *confirmed = Confirmed {
                at: sent,
                length: length_of(left),
            };
        }
        Ok(true)
    }
}

impl Sessions {
    /// Marks all sessions as ended. The answer has those that were not.
    pub(super) fn end_all(&self) -> Vec<Arc<Session>> {
        locked(&self.system.all)
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|session| session.end())
            .collect()
    }

    /// A claim that names this session was sent, and may yet arrive. It must not find the session:
    /// nothing would delete its key, for as long as other claims keep the session alive.
    pub(super) fn doubt(&self, session: &Arc<Session>) {
        drop(session.doubt.set(Arc::clone(&self.system.cluster)));
        self.forget(|other| Arc::ptr_eq(other, session));
    }

    /// Opens a session that claims do not share.
    pub(super) async fn open(&self, length: Duration) -> Result<Arc<Session>> {
        self.system
            .open(Length {
                of: length,
                is_exact: false,
            })
            .await
    }

    /// The session with this number that a key is attached to, renewed for a claim of this lease.
    /// From now on it is ours, if it was another client's; `None` when it has ended.
    pub(super) async fn of_key(
        self: &Arc<Self>,
        key: &Arc<LockKey>,
        id: i64,
        lease: Duration,
    ) -> Result<Option<Arc<Session>>> {
        let is_it = |session: &Arc<Session>| session.id == id && !session.has_ended();
        let known = locked(&self.system.all)
            .iter()
            .filter_map(Weak::upgrade)
            .find(is_it);
        // Its length comes with its first renewal.
        let session = known.unwrap_or_else(|| {
            self.system
                .enrolled(Session::new(id, Moment::default(), Duration::ZERO))
        });
        session.attach(key);
        Ok(self.renew(&session, lease).await?.then_some(session))
    }

    /// Renews a session for claims of this lease or longer, unless that was just done; `false` when
    /// it has ended.
    pub(super) async fn renew(
        self: &Arc<Self>,
        session: &Arc<Session>,
        lease: Duration,
    ) -> Result<bool> {
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
                    *round = Some(Round {
                        began: now,
                        outcome: outcome.clone(),
                    });
                    let (sessions, session) = (Arc::clone(self), Arc::clone(session));
                    spawn(async move {
                        drop(tell.send(Some(sessions.system.keep_alive(&session).await)))
                    });
                    outcome
                }
            }
        };
        let outcome = outcome
            .wait_for(Option::is_some)
            .await
            .map(|outcome| outcome.clone());
        outcome
            .ok()
            .flatten()
            .unwrap_or_else(|| Err(Error::unavailable("the client has ended")))
    }

    /// Makes sure that a session lasts until then, by a renewal where it would not; `false` when it
    /// has ended. The key that moves to it must not end sooner than before: its holder counts on
    /// that.
    pub(super) async fn outlasts(
        &self,
        session: &Session,
        key: &Arc<LockKey>,
        until: Moment,
    ) -> Result<bool> {
        session.attach(key);
        Ok(!session.has_ended()
            && (session.end_of() >= until || self.system.keep_alive(session).await?))
    }

    /// Which of these sessions have ended, by the server's word.
    pub(super) async fn ended_of(
        &self,
        sessions: &[&Arc<Session>],
    ) -> Result<Vec<Arc<Session>>, Failed> {
        let mut ended = Vec::new();
        for session in sessions {
            if self.system.cluster.lease_left(session.id).await?.is_none() {
                ended.push(Arc::clone(session));
            }
        }
        Ok(ended)
    }
}
