//! Sessions: etcd's leases. A client has one for each length of lease, opened at first use and shared by its claims of that
//! length; and one of its own for a claim that must be able to outlive the client.
//!
//! A session lives only by the renewals of its claims. Nothing here keeps it alive by itself: a claim that nobody renews must end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::client::cluster::{Again, Cluster, Failed};
use super::client::keep_alive::KeepAlive;
use super::client::proto::{
    LEASE_GRANT, LEASE_REVOKE, LEASE_TIME_TO_LIVE, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::Lease;

/// A lease of etcd's.
pub(super) struct Session {
    pub(super) id: i64,
    confirmed: Mutex<Confirmed>,
    gone: AtomicBool,
    /// How the last renewal ended, and how many there were. Locked while one is under way.
    renewals: tokio::sync::Mutex<Option<Result<bool>>>,
    ended_renewals: AtomicU64,
    /// When the renewal that is under way began.
    renewal_began: Mutex<Option<Moment>>,
}

/// Claims are renewed in batches. Those that come within so long of each other are of one round.
const ONE_ROUND: Duration = Duration::from_millis(100);

/// What the server last said.
#[derive(Clone, Copy)]
struct Confirmed {
    /// When it was asked.
    at: Moment,
    /// The length that it granted.
    length: Duration,
}

impl Session {
    pub(super) fn new(id: i64, at: Moment, seconds: i64) -> Arc<Session> {
        let confirmed = Confirmed { at, length: length_of(seconds) };
        Arc::new(Session {
            id,
            confirmed: Mutex::new(confirmed),
            gone: AtomicBool::new(false),
            renewals: tokio::sync::Mutex::new(None),
            ended_renewals: AtomicU64::new(0),
            renewal_began: Mutex::new(None),
        })
    }

    fn confirmed(&self) -> MutexGuard<'_, Confirmed> {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its lease: as long as was granted, from when the confirmation was asked for.
    pub(super) fn lease(&self) -> Lease {
        let confirmed = *self.confirmed();
        Lease { length: confirmed.length, counted_from: Some(confirmed.at) }
    }

    pub(super) fn confirmed_at(&self) -> Moment {
        self.confirmed().at
    }

    /// How much of it is left, as a part of the whole.
    fn share_left(&self, now: Moment) -> f64 {
        let Confirmed { at, length } = *self.confirmed();
        (at + length).since(now).as_secs_f64() / length.as_secs_f64().max(0.001)
    }

    /// Whether it was confirmed so recently that asking again would bring nothing, to claims whose lease is so long. The session
    /// itself may be much longer.
    fn is_fresh(&self, lease: Duration, now: Moment) -> bool {
        now.since(self.confirmed_at()) < lease / 10
    }

    /// When it ends, if it is not renewed.
    pub(super) fn end_of(&self) -> Moment {
        let Confirmed { at, length } = *self.confirmed();
        at + length
    }

    /// Whether enough is left of it for a new claim. Its claims are renewed every third: so nobody has renewed it otherwise.
    fn can_be_joined(&self, now: Moment) -> bool {
        self.share_left(now) > 0.6
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Marks it as ended; whether this is news.
    pub(super) fn end(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }
}

fn length_of(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// In the unit of etcd, which has whole seconds only: never shorter than asked.
fn seconds(length: Duration) -> u64 {
    length.as_secs() + u64::from(length.subsec_nanos() > 0)
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewed {
    /// The server has confirmed it.
    Confirmed,
    /// It was confirmed just before, and nothing was asked.
    Fresh,
    /// It has ended.
    Gone,
}

impl Renewed {
    fn by_server(lives: bool) -> Renewed {
        if lives { Renewed::Confirmed } else { Renewed::Gone }
    }
}

/// The current session of one length. Locked while one is opened, so that not every claim opens its own.
type Current = Arc<tokio::sync::Mutex<Option<Arc<Session>>>>;

pub(super) struct Sessions {
    cluster: Arc<Cluster>,
    keep_alives: Arc<KeepAlive>,
    by_length: Mutex<HashMap<u64, Current>>,
    /// All that anybody uses.
    all: Mutex<Vec<Weak<Session>>>,
}

impl Sessions {
    pub(super) fn new(cluster: &Arc<Cluster>) -> Sessions {
        let keep_alives = KeepAlive::new(cluster);
        Sessions { cluster: Arc::clone(cluster), keep_alives, by_length: Mutex::default(), all: Mutex::default() }
    }

    fn enrolled(&self, session: Arc<Session>) -> Arc<Session> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|session| session.strong_count() > 0);
        all.push(Arc::downgrade(&session));
        session
    }

    /// Marks all sessions as ended. The answer has those of which this is news.
    pub(super) fn end_all(&self) -> Vec<Arc<Session>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).filter(|session| session.end()).collect()
    }

    fn current(&self, length: Duration) -> Current {
        let mut by_length = self.by_length.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_length.entry(seconds(length)).or_default())
    }

    /// The session for claims of this length. `in_use` says whether a session has claims.
    ///
    /// One of which little is left and that has claims is on its way out: whoever joined it and renewed it would keep the
    /// claims alive that nobody renews. So another is opened beside it.
    pub(super) async fn of_length(&self, length: Duration, in_use: impl Fn(&Session) -> bool) -> Result<Arc<Session>> {
        let finding = async {
            let current = self.current(length);
            let mut current = current.lock().await;
            if let Some(session) = current.as_ref().filter(|session| !session.is_gone()) {
                if session.can_be_joined(BootClock.now()) {
                    return Ok(Arc::clone(session));
                }
                if !in_use(session) && self.keep_alive(session).await? {
                    return Ok(Arc::clone(session));
                }
            }
            let session = self.open(length).await?;
            *current = Some(Arc::clone(&session));
            Ok(session)
        };
        let too_long = |_| Error::unavailable("the store has not opened a session in time");
        tokio::time::timeout(self.cluster.request_timeout, finding).await.map_err(too_long)?
    }

    /// The session for claims of this length, if it can be joined as it is.
    pub(super) fn ready(&self, length: Duration) -> Option<Arc<Session>> {
        let current = self.current(length);
        let current = current.try_lock().ok()?;
        let session = current.as_ref()?;
        (!session.is_gone() && session.can_be_joined(BootClock.now())).then(|| Arc::clone(session))
    }

    /// A session of its own.
    pub(super) async fn open(&self, length: Duration) -> Result<Arc<Session>> {
        let question = LeaseGrantRequest { ttl: i64::try_from(seconds(length)).unwrap_or(i64::MAX) };
        let sent = BootClock.now();
        // One that is granted twice ends by itself.
        let answer: LeaseGrantResponse = self.cluster.ask(LEASE_GRANT, question, Again::Freely).await?;
        Ok(self.enrolled(Session::new(answer.id, sent, answer.ttl)))
    }

    fn ours(&self, id: i64) -> Option<Arc<Session>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).find(|session| session.id == id && !session.is_gone())
    }

    /// The session that a key hangs on, renewed for a claim of this lease: one of ours, or one that is ours from now on; `None`
    /// when it has ended.
    pub(super) async fn of_key(&self, id: i64, lease: Duration) -> Result<Option<Arc<Session>>> {
        // How long it is comes with its first renewal.
        let session = self.ours(id).unwrap_or_else(|| self.enrolled(Session::new(id, Moment::default(), 0)));
        Ok((self.renew(&session, lease).await? != Renewed::Gone).then_some(session))
    }

    /// Renews a session for claims whose lease is so long or longer, unless that was just done.
    pub(super) async fn renew(&self, session: &Session, lease: Duration) -> Result<Renewed> {
        if session.is_gone() {
            return Ok(Renewed::Gone);
        }
        if session.is_fresh(lease, BootClock.now()) {
            return Ok(Renewed::Fresh);
        }
        // One that hangs must not cost those their chance who try again.
        let began = *session.renewal_began.lock().unwrap_or_else(PoisonError::into_inner);
        if began.is_some_and(|began| BootClock.now().since(began) > ONE_ROUND) {
            return self.keep_alive(session).await.map(Renewed::by_server);
        }
        // Whoever finds a renewal of its own round under way takes its answer.
        let ended_before = session.ended_renewals.load(Ordering::Acquire);
        let mut last = session.renewals.lock().await;
        if let Some(answer) = last.as_ref().filter(|_| session.ended_renewals.load(Ordering::Acquire) != ended_before) {
            return answer.clone().map(|lives| if lives { Renewed::Fresh } else { Renewed::Gone });
        }
        if session.is_fresh(lease, BootClock.now()) {
            return Ok(Renewed::Fresh);
        }
        let under_way = |began| *session.renewal_began.lock().unwrap_or_else(PoisonError::into_inner) = began;
        under_way(Some(BootClock.now()));
        let answer = self.keep_alive(session).await;
        under_way(None);
        *last = Some(answer.clone());
        session.ended_renewals.fetch_add(1, Ordering::AcqRel);
        answer.map(Renewed::by_server)
    }

    /// Renews a session unless it lasts until then anyway; `false` when it has ended. A key that is moved to it must not come to
    /// hang on less than it hung on before: whoever holds it counts on that still.
    pub(super) async fn outlasts(&self, session: &Session, until: Moment) -> Result<bool> {
        Ok(!session.is_gone() && (session.end_of() >= until || self.keep_alive(session).await?))
    }

    async fn keep_alive(&self, session: &Session) -> Result<bool> {
        let sent = BootClock.now();
        let third = session.confirmed().length / 3;
        let limit = if third.is_zero() { self.cluster.request_timeout } else { third.min(self.cluster.request_timeout) };
        let left = self.keep_alives.beat(session.id, limit).await?;
        if left <= 0 {
            return Ok(false);
        }
        let mut confirmed = session.confirmed();
        if confirmed.at < sent {
            *confirmed = Confirmed { at: sent, length: length_of(left) };
        }
        Ok(true)
    }

    /// How long a lease still runs; `None` when it has ended.
    pub(super) async fn left(&self, lease: i64) -> Result<Option<Duration>, Failed> {
        let question = LeaseTimeToLiveRequest { id: lease };
        let asked = self.cluster.ask(LEASE_TIME_TO_LIVE, question, Again::Freely).await;
        match asked {
            Ok(LeaseTimeToLiveResponse { ttl, .. }) => Ok((ttl >= 0).then(|| length_of(ttl))),
            Err(failed) if failed.lease_gone => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// Ends a session, and with it everything that hangs on it.
    pub(super) async fn revoke(&self, session: &Session) -> Result<(), Failed> {
        session.end();
        let revoked: Result<LeaseRevokeResponse, Failed> =
            self.cluster.ask(LEASE_REVOKE, LeaseRevokeRequest { id: session.id }, Again::Freely).await;
        match revoked {
            Err(failed) if !failed.lease_gone => Err(failed),
            _ => Ok(()),
        }
    }
}
