//! What all verbs of one client share: members, sessions, watches, its own claims, and what the core must hear of.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::batch::Verb;
use super::claims::{Claims, Known, Waiting};
use super::client::cluster::{Again, Cluster, Failed, Sent};
use super::client::lanes::{Place, ended};
use super::client::proto::{DeleteRangeRequest, Request, TXN, TxnRequest, TxnResponse};
use super::client::txn;
use super::client::watch::{Contact, Told, Watcher};
use super::entry::Entry;
use super::key_pool::LockKey;
use super::pending_deletes::PendingDeletes;
use super::queue_rules::Blocker;
use super::session::{Session, Sessions};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{Claim, ClaimId, Event, Gone, Woken};
use crate::stores::events::Events;
use crate::stores::mailbox::Mailbox;

pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) cluster: Arc<Cluster>,
    pub(super) sessions: Sessions,
    pub(super) watcher: Arc<Watcher>,
    pub(super) events: Arc<Events>,
    pub(super) claims: Claims,
    /// Sessions that belong to one claim.
    owned: Mutex<HashMap<ClaimId, Arc<Session>>>,
    /// Claims of which nobody knows whether they arrived.
    unsure: Mutex<HashSet<ClaimId>>,
    /// Claims that were made or granted just now, since when, and whether somebody will look after them.
    pub(super) fresh: Mutex<(Vec<(ClaimId, Moment)>, bool)>,
    /// Keys that must be deleted as soon as the store can be reached.
    pub(super) leaving: PendingDeletes,
    /// Until when names must stay closed whose release was not answered: whoever asks again must not open them.
    closing: Mutex<HashMap<ClaimId, Moment>>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Result<Arc<Shared>> {
        let cluster = Arc::new(Cluster::new(&settings.endpoints)?);
        let events = Arc::new(Events::default());
        let told = Arc::clone(&events);
        let watcher = Watcher::new(&cluster, move |contact| {
            told.push(match contact {
                Contact::Lost => Event::CutOff,
                Contact::Restored => Event::Restored,
            });
        });
        let sessions = Sessions::new(&cluster);
        let shared = Arc::new(Shared {
            settings,
            cluster,
            sessions,
            watcher,
            events,
            claims: Claims::default(),
            owned: Mutex::default(),
            unsure: Mutex::default(),
            fresh: Mutex::default(),
            leaving: PendingDeletes::default(),
            closing: Mutex::default(),
        });
        let weak = Arc::downgrade(&shared);
        shared.cluster.on_broken(move || {
            if let Some(shared) = weak.upgrade() {
                shared.all_ended();
            }
        });
        Ok(shared)
    }

    /// The cluster does not know what it has confirmed: all claims are lost. Their sessions are ended, so that no key that has
    /// come back is kept alive by us.
    fn all_ended(self: &Arc<Self>) {
        self.claims.lock().seats.clear();
        let sessions = self.sessions.end_all();
        for session in &sessions {
            self.session_ended(session);
        }
        if !sessions.is_empty() {
            let shared = Arc::clone(self);
            self.cluster.lanes.spawn(async move {
                for session in sessions {
                    drop(shared.sessions.revoke(&session).await);
                }
            });
        }
    }

    pub(super) async fn txn(&self, txn: TxnRequest, again: Again) -> Result<TxnResponse, Failed> {
        self.cluster.ask(TXN, txn, again).await
    }

    /// A transaction that makes the key of a seat, if it is not there. One that is sent twice, or of which nobody hears, may do so
    /// at any time.
    pub(super) async fn make(&self, seat: &LockKey, txn: TxnRequest) -> Result<TxnResponse, Failed> {
        seat.sent();
        let (response, sent) = self.together(seat, Request::Txn(txn), Again::Freely).await?;
        if sent == Sent::Once {
            seat.arrived();
        }
        Ok(response)
    }

    /// Deletes the key of a claim that we know; whether that was there, and made at this revision.
    ///
    /// Nobody else ever made this very key: its end is random, and what this client has made by it before was surely gone before
    /// this claim began. So what is deleted is this claim, or nothing; it needs no comparison, which would make it a transaction
    /// and cost the server more. The exception is a restored snapshot that nobody has noticed yet, in which an earlier claim of ours
    /// is back by the same key. It is not ours to keep either; but then this claim was lost, and the answer says so.
    pub(super) async fn delete_own(&self, seat: &LockKey, revision: i64) -> Result<bool, Failed> {
        seat.sent();
        let deleting = DeleteRangeRequest { key: seat.key.clone(), prev_kv: true };
        // Never twice: it is not bound to this claim, and the next one may stand there by then.
        let (response, _) = self.together(seat, Request::Delete(deleting), Again::Never).await?;
        seat.arrived();
        Ok(txn::has_deleted(&response, revision))
    }

    /// Sends what a claim or a release asks, with others if some are on their way.
    async fn together(&self, seat: &LockKey, request: Request, again: Again) -> Result<(TxnResponse, Sent), Failed> {
        let verb = Verb { line: seat.line.clone(), request, again };
        let answer = match self.cluster.lanes.place()? {
            Place::Here(lane) => lane.gather(&self.cluster).ask(verb).await,
            Place::Client => {
                let (cluster, lane) = (Arc::clone(&self.cluster), self.cluster.lanes.clients()?);
                Box::pin(self.cluster.lanes.in_client(async move { Ok(lane.gather(&cluster).ask(verb).await) })).await?
            }
        };
        answer.unwrap_or_else(|| Err(ended().into()))
    }

    /// Reads a whole line, and at which revision.
    pub(super) async fn read_line(&self, line: &[u8]) -> Result<(Vec<Entry>, i64), Failed> {
        let reading = TxnRequest { success: vec![txn::read_line(line)], ..TxnRequest::default() };
        let response = self.txn(reading, Again::Freely).await?;
        let seen = txn::revision_of(&response);
        Ok((Entry::read_all(txn::keys_of(response))?, seen))
    }

    /// Deletes a key, if it is still the one of this revision; whether it was.
    pub(super) async fn delete(&self, key: &[u8], revision: i64, again: Again) -> Result<bool, Failed> {
        let deleting =
            TxnRequest { compare: vec![txn::made_at(key, revision)], success: vec![txn::delete(key)], failure: Vec::new() };
        Ok(self.txn(deleting, again).await?.succeeded)
    }

    // Sessions.

    /// The session that a holder's key hangs on.
    pub(super) async fn full_session(self: &Arc<Self>, claim: ClaimId, lease: Duration, own: bool) -> Result<Arc<Session>> {
        if !own {
            if let Some(session) = self.sessions.ready(lease) {
                return Ok(session);
            }
            // Others wait for the one that opens it.
            let shared = Arc::clone(self);
            let opening = async move { shared.sessions.of_length(lease, |session| shared.claims.lock().uses(session)).await };
            return Box::pin(self.cluster.lanes.in_client(opening)).await;
        }
        if let Some(session) = self.owned_by(claim) {
            return Ok(session);
        }
        let session = self.sessions.open(lease).await?;
        locked(&self.owned).insert(claim, Arc::clone(&session));
        Ok(session)
    }

    /// The session that a waiter's key hangs on: a short one, so that dead waiters cost little.
    pub(super) async fn wait_session(self: &Arc<Self>, claim: &Claim, full: &Arc<Session>) -> Result<Arc<Session>> {
        if claim.wait_lease() == claim.lease {
            return Ok(Arc::clone(full));
        }
        self.full_session(claim.id, claim.wait_lease(), false).await
    }

    /// The same, if there is one that needs nothing to be asked.
    pub(super) fn ready_wait_session(&self, claim: &Claim, full: &Arc<Session>) -> Option<Arc<Session>> {
        if claim.wait_lease() == claim.lease {
            return Some(Arc::clone(full));
        }
        self.sessions.ready(claim.wait_lease())
    }

    /// As [`Sessions::outlasts`], from anywhere: the keep-alives are the client's.
    pub(super) async fn outlasts(self: &Arc<Self>, session: &Arc<Session>, until: Moment) -> Result<bool> {
        let (shared, session) = (Arc::clone(self), Arc::clone(session));
        self.cluster.lanes.in_client(async move { shared.sessions.outlasts(&session, until).await }).await
    }

    /// As [`Sessions::of_key`], from anywhere.
    pub(super) async fn session_of_key(self: &Arc<Self>, id: i64, lease: Duration) -> Result<Option<Arc<Session>>> {
        let shared = Arc::clone(self);
        self.cluster.lanes.in_client(async move { shared.sessions.of_key(id, lease).await }).await
    }

    /// Keeps a session for one claim only.
    pub(super) fn own(&self, claim: ClaimId, session: &Arc<Session>) {
        locked(&self.owned).insert(claim, Arc::clone(session));
    }

    /// The session that belongs to a claim, if it has not ended.
    pub(super) fn owned_by(&self, claim: ClaimId) -> Option<Arc<Session>> {
        locked(&self.owned).get(&claim).filter(|session| !session.is_gone()).cloned()
    }

    /// Lets go of the session that belongs to a claim.
    pub(super) fn disown(&self, claim: ClaimId) -> Option<Arc<Session>> {
        locked(&self.owned).remove(&claim)
    }

    /// Ends the session that belongs to a claim, where there is one.
    pub(super) fn end_owned(self: &Arc<Self>, claim: ClaimId) {
        if let Some(session) = self.disown(claim) {
            let shared = Arc::clone(self);
            // If it cannot be told, it ends by itself.
            self.cluster.lanes.spawn(async move { drop(shared.sessions.revoke(&session).await) });
        }
    }

    /// The server says that a lease is gone which one of these sessions is: finds out which.
    pub(super) async fn find_ended(&self, sessions: &[&Arc<Session>]) -> Result<()> {
        for session in sessions {
            if self.sessions.left(session.id).await?.is_none() {
                self.session_ended(session);
            }
        }
        Ok(())
    }

    /// A session has ended, and with it all its claims.
    pub(super) fn session_ended(&self, session: &Session) {
        session.end();
        let claims = self.claims.lock().of_session(session);
        for claim in claims {
            self.ended(claim, Gone::SessionEnded);
        }
    }

    // Claims.

    /// Forgets a claim, with its watches.
    pub(super) fn forget(&self, claim: ClaimId) -> Option<Known> {
        let known = self.claims.lock().known.remove(&claim)?;
        known.watches().for_each(|watch| self.watcher.close(watch));
        Some(known)
    }

    /// Forgets a claim, and remembers why, in one step: whoever asks in between would take it for one that was never made.
    pub(super) fn record_end(&self, claim: ClaimId, why: Gone) -> Option<Known> {
        let known = {
            let mut book = self.claims.lock();
            let known = book.known.remove(&claim)?;
            book.record_end(claim, why, known.lease);
            // Its key is gone. Not for sure by our own hand: it is not used again.
            book.seats.left(&[claim]);
            known
        };
        known.watches().for_each(|watch| self.watcher.close(watch));
        Some(known)
    }

    /// A claim has ended without us: whoever has it is told.
    pub(super) fn ended(&self, claim: ClaimId, why: Gone) {
        let Some(known) = self.record_end(claim, why) else { return };
        self.events.push(Event::Gone { claim, why });
        if let Some(waiting) = known.waiting {
            waiting.mailbox.push(Woken::Ask);
        }
    }

    /// Takes up that a claim which waited, or held on another session, holds. One that was given back meanwhile stays forgotten.
    pub(super) fn still_holds(self: &Arc<Self>, claim: &Claim, seat: &Arc<LockKey>, revision: i64, session: &Arc<Session>) {
        if self.claims.lock().knows(claim.id, revision) {
            self.holds(claim, seat, revision, session);
        }
    }

    /// Takes up a claim that holds.
    pub(super) fn holds(self: &Arc<Self>, claim: &Claim, seat: &Arc<LockKey>, revision: i64, session: &Arc<Session>) {
        let mut known = Known {
            seat: Arc::clone(seat),
            revision,
            session: Arc::clone(session),
            kind: claim.kind,
            mode: claim.mode,
            lease: claim.lease,
            until: BootClock.now(),
            closed_until: claim.min_hold.map(|span| BootClock.now() + span),
            is_span: !claim.detachable && self.owned_by(claim.id).is_some_and(|own| Arc::ptr_eq(&own, session)),
            waiting: None,
            is_short: false,
            own_watch: None,
            opened: false,
            verified: false,
        };
        known.confirmed();
        let mut book = self.claims.lock();
        if let Some(before) = book.known.remove(&claim.id) {
            // It waited before, or was asked for again: its own watch stays.
            (known.own_watch, known.opened, known.verified) = (before.own_watch, before.opened, before.verified);
            // What is on record counts, and not what it is asked about as.
            (known.kind, known.mode) = (before.kind, before.mode);
            known.closed_until = before.closed_until.filter(|_| before.waiting.is_none()).or(known.closed_until);
            if let Some(Waiting { watch: Some(watch), blocker, .. }) = before.waiting {
                match blocker.watched() {
                    // It may stand behind the same one the next time.
                    Some(_) => self.watcher.rest(&seat.line, watch),
                    None => self.watcher.close(watch),
                }
            }
        }
        let watched = known.own_watch.is_some();
        book.known.insert(claim.id, known);
        drop(book);
        if !watched {
            self.watch_soon(claim.id);
        }
    }

    /// Takes up that a claim waits still, and watches what it waits for now. An answer that comes late changes nothing: the claim may
    /// have been given back, or hold by now.
    pub(super) fn still_waits(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<LockKey>,
        revision: i64,
        session: &Arc<Session>,
        blocker: Blocker,
        seen: (&[Entry], i64),
    ) {
        let waits = {
            let book = self.claims.lock();
            book.known.get(&claim.id).is_some_and(|known| known.revision == revision && known.waiting.is_some())
        };
        if waits {
            self.waits(claim, seat, revision, session, blocker, seen);
        }
    }

    /// Takes up that a claim waits, and watches what it waits for.
    pub(super) fn waits(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<LockKey>,
        revision: i64,
        session: &Arc<Session>,
        blocker: Blocker,
        (line, seen): (&[Entry], i64),
    ) {
        let mut book = self.claims.lock();
        let known = book.known.entry(claim.id).or_insert_with(|| Known {
            seat: Arc::clone(seat),
            revision,
            session: Arc::clone(session),
            kind: claim.kind,
            mode: claim.mode,
            lease: claim.wait_lease(),
            until: BootClock.now(),
            closed_until: None,
            is_span: false,
            waiting: None,
            is_short: false,
            own_watch: None,
            opened: false,
            verified: false,
        });
        known.revision = revision;
        known.session = Arc::clone(session);
        known.confirmed();
        let is_new = known.waiting.is_none() && known.own_watch.is_none();
        let mut waiting = match known.waiting.take() {
            Some(waiting) => waiting,
            None => Waiting {
                mailbox: Arc::default(),
                blocker: blocker.clone(),
                watch: None,
                seen,
                is_near: true,
                told: false,
                heard: 0,
            },
        };
        waiting.seen = seen;
        waiting.is_near = match &blocker {
            Blocker::Key(..) | Blocker::Writers(_) => line.first().is_none_or(|first| Some(&first.key) == blocker.watched()),
            Blocker::Permits { .. } => true,
        };
        waiting.told = false;
        let same = waiting.watch.is_some() && waits_alike(&waiting.blocker, &blocker);
        waiting.blocker = blocker;
        if same && waiting.heard > seen {
            // What was told while we looked is not in what we saw, and is not told again.
            waiting.mailbox.push(Woken::Ask);
        }
        if !same {
            if let Some(old) = waiting.watch.take() {
                self.watcher.close(old);
            }
            let (shared, id) = (Arc::downgrade(self), claim.id);
            let tell = move |told: Told<'_>| {
                if let Some(shared) = shared.upgrade() {
                    shared.on_blocker(id, told);
                }
            };
            let (watch, since) = match waiting.blocker.watched() {
                Some(key) => self.watcher.open_or_reuse(&seat.line, key, tell),
                None => (self.watcher.open(seat.line.clone(), txn::prefix_end(&seat.line), tell), None),
            };
            waiting.watch = Some(watch);
            waiting.heard = since.map_or(0, |since| since.told);
            // It was open before: what it has told already is not told again, and what was before it only a look can tell.
            if since.is_some_and(|since| since.told.max(since.opened) > seen) {
                waiting.mailbox.push(Woken::Ask);
            }
        }
        known.waiting = Some(waiting);
        drop(book);
        if is_new {
            self.watch_soon(claim.id);
        }
    }

    pub(super) fn mailbox(&self, claim: ClaimId) -> Option<Arc<Mailbox>> {
        let book = self.claims.lock();
        book.known.get(&claim)?.waiting.as_ref().map(|waiting| Arc::clone(&waiting.mailbox))
    }

    /// A claim was sent, and nobody knows whether it arrived.
    pub(super) fn is_unsure(&self, claim: ClaimId) {
        locked(&self.unsure).insert(claim);
    }

    pub(super) fn is_sure(&self, claim: ClaimId) {
        locked(&self.unsure).remove(&claim);
    }

    /// A claim that was not answered has been withdrawn, and may arrive even now: a server that was paused goes on where it
    /// stopped. Its session lives by other claims, so nothing else would ever end it.
    pub(super) fn withdrawn(self: &Arc<Self>, claim: ClaimId, seat: &Arc<LockKey>) {
        if !locked(&self.unsure).remove(&claim) {
            return;
        }
        self.delete_later(claim, seat, self.cluster.request_timeout * 2);
    }

    // Names that stay closed.

    /// Remembers until when a name must stay closed, while its release is not answered.
    pub(super) fn closing(&self, claim: ClaimId, until: Moment) {
        let now = BootClock.now();
        let mut closing = locked(&self.closing);
        closing.retain(|_, until| *until > now);
        closing.insert(claim, until);
    }

    /// For how long a name must stay closed whose release was tried before.
    pub(super) fn closed_for(&self, claim: ClaimId) -> Option<Duration> {
        let now = BootClock.now();
        locked(&self.closing).get(&claim).map(|until| until.since(now))
    }

    pub(super) fn closed(&self, claim: ClaimId) {
        locked(&self.closing).remove(&claim);
    }
}

/// Whether a watch for one serves the other as well.
fn waits_alike(one: &Blocker, other: &Blocker) -> bool {
    one.watched() == other.watched()
}

pub(super) fn gone() -> Error {
    Error::unavailable("the claim was gone before the store could say where it stands")
}
