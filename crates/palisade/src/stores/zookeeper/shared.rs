//! What all verbs of one client share: sessions, its own claims, and what the core must hear of.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::claiming::Stood;
use super::failure::Failed;
use super::known::{Claims, Holding, Known, Seat, Stage, Waiting};
use super::proto::{ANY, Code, Make, Request};
use super::session::{Hears, Sent, Session};
use super::sessions::{Sessions, in_client};
use super::settings::Settings;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ByClaim, Claim, ClaimId, Event, Gone, Woken};
use crate::stores::events::Events;
use crate::stores::mailbox::Mailbox;

/// Between two attempts of what must be done in the end.
const PAUSE: Duration = Duration::from_millis(100);
/// How many nodes of names are remembered as made.
const MADE: usize = 4096;

/// By session and path.
type Onlookers = HashMap<(i64, String), Vec<Weak<Notify>>>;

pub(super) struct Shared {
    pub(super) settings: Arc<Settings>,
    pub(super) sessions: Sessions,
    pub(super) events: Events,
    pub(super) claims: Claims,
    this: Weak<Shared>,
    /// Sessions that belong to one claim.
    owned: Mutex<ByClaim<Arc<Session>>>,
    /// Claims of which nobody knows whether they arrived, and on which session they would have.
    unsure: Mutex<ByClaim<Arc<Session>>>,
    /// A session for those who only look.
    looking: Arc<tokio::sync::Mutex<Option<Arc<Session>>>>,
    /// The nodes of names that were there when we last looked.
    made: Mutex<HashSet<String>>,
    /// Claims that were granted just now, and whether somebody will look after them.
    pub(super) fresh: Mutex<(Vec<ClaimId>, bool)>,
    /// Whom a watch on a path tells that has no claim in the store, by session.
    onlookers: Mutex<Onlookers>,
    /// When somebody looks next for claims that nobody renews; `None` when nobody does.
    pub(super) janitor: Mutex<Option<Moment>>,
    pub(super) sooner: Arc<Notify>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn fence_of(czxid: i64) -> Fence {
    u64::try_from(czxid).ok().and_then(Fence::new).unwrap_or(Fence::NONE)
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Arc<Shared> {
        let settings = Arc::new(settings);
        Arc::new_cyclic(|this| Shared {
            sessions: Sessions::new(&settings),
            settings,
            events: Events::default(),
            claims: Claims::default(),
            this: Weak::clone(this),
            owned: Mutex::default(),
            unsure: Mutex::default(),
            looking: Arc::default(),
            made: Mutex::default(),
            fresh: Mutex::default(),
            onlookers: Mutex::default(),
            janitor: Mutex::default(),
            sooner: Arc::default(),
        })
    }

    pub(super) fn hears(&self) -> Weak<dyn Hears> {
        let this: Weak<Shared> = Weak::clone(&self.this);
        this
    }

    // Sessions.

    /// The session that the nodes of a claim hang on.
    pub(super) async fn session_of(&self, claim: &Claim) -> Result<Arc<Session>> {
        if !claim.detachable {
            return self.sessions.of_length(claim.lease, claim.exact_lease, self.hears()).await;
        }
        if let Some(session) = locked(&self.owned).get(&claim.id).filter(|session| !session.is_gone()) {
            return Ok(Arc::clone(session));
        }
        let session = self.sessions.open(claim.lease, claim.exact_lease, self.hears()).await?;
        locked(&self.owned).insert(claim.id, Arc::clone(&session));
        Ok(session)
    }

    /// The same without waiting; `None` when it must be looked for, or opened first.
    pub(super) fn session_at_hand(&self, claim: &Claim) -> Option<Arc<Session>> {
        if claim.detachable { None } else { self.sessions.at_hand(claim.lease, claim.exact_lease) }
    }

    /// Keeps a session for one claim only.
    pub(super) fn own(&self, claim: ClaimId, session: &Arc<Session>) {
        locked(&self.owned).insert(claim, Arc::clone(session));
    }

    /// Lets go of the session that belongs to a claim.
    pub(super) fn disown(&self, claim: ClaimId) -> Option<Arc<Session>> {
        locked(&self.owned).remove(&claim)
    }

    /// A session for those who only look: any that there is, or one of its own.
    pub(super) async fn any_session(&self) -> Result<Arc<Session>> {
        let used =
            self.claims.lock().known.values().find(|known| !known.session.is_gone()).map(|known| Arc::clone(&known.session));
        if let Some(session) = used {
            return Ok(session);
        }
        let (looking, sessions, hears) = (Arc::clone(&self.looking), self.sessions.clone(), self.hears());
        in_client(async move {
            let mut looking = looking.lock().await;
            if let Some(session) = looking.as_ref().filter(|session| session.can_be_joined(BootClock.now())) {
                return Ok(Arc::clone(session));
            }
            let session = sessions.open(Duration::from_secs(10), false, hears).await?;
            *looking = Some(Arc::clone(&session));
            Ok(session)
        })
        .await
    }

    // Nodes.

    /// Sends what makes the nodes that a line needs, unless they were there before.
    pub(super) fn make_parents(&self, session: &Arc<Session>, parents: &[String], all: bool) -> Vec<Sent> {
        let make = |path: &String| session.send(Request::create(path, b"", self.settings.acl(), Make::Container));
        self.missing(parents, all).iter().map(make).collect()
    }

    /// Those of the nodes that a line needs that may not be there; all of them, and what is above them, if something was missing.
    pub(super) fn missing(&self, parents: &[String], all: bool) -> Vec<String> {
        let mut made = locked(&self.made);
        if made.len() >= MADE {
            made.clear();
        }
        let mut missing: Vec<String> = Vec::new();
        for parent in parents {
            let is_new = !made.contains(parent) && made.insert(parent.clone());
            if all {
                let ancestors = parent.match_indices('/').skip(1).filter_map(|(at, _)| parent.get(..at));
                missing.extend(ancestors.map(str::to_owned).filter(|ancestor| !parents.contains(ancestor)));
            }
            if is_new || all {
                missing.push(parent.clone());
            }
        }
        missing.dedup();
        missing
    }

    /// Deletes nodes, all at once; whether each was there.
    ///
    /// One that cannot be reached is tried again in the background, until it is gone or its session has ended.
    pub(super) async fn delete(&self, session: &Arc<Session>, paths: &[String]) -> Result<bool, Failed> {
        if let [path] = paths {
            let answer = Box::pin(session.delete(path.clone())).await;
            return self.deleted(session, [(answer, path)]);
        }
        let sent: Vec<Sent> = paths.iter().map(|path| session.send(Request::delete(path, ANY))).collect();
        let mut answers = Vec::with_capacity(paths.len());
        for (sent, path) in sent.into_iter().zip(paths) {
            answers.push((sent.answer().await.map(drop), path));
        }
        self.deleted(session, answers)
    }

    fn deleted<'a>(
        &self,
        session: &Arc<Session>,
        answers: impl IntoIterator<Item = (Result<(), Failed>, &'a String)>,
    ) -> Result<bool, Failed> {
        let (mut all, mut failure, mut left) = (true, None, Vec::new());
        for (answer, path) in answers {
            match answer {
                Ok(()) => {}
                Err(failed) if failed.is(Code::NoNode) => all = false,
                Err(Failed::Ended) => all = false,
                Err(failed @ Failed::Unsure(_)) => {
                    left.push(path.clone());
                    failure = Some(failed);
                }
                Err(failed) => failure = Some(failed),
            }
        }
        if !left.is_empty() {
            let (debt, session) = (session.debt(), Arc::downgrade(session));
            tokio::spawn(async move {
                delete_in_the_end(session, &left).await;
                drop(debt);
            });
        }
        failure.map_or(Ok(all), Err)
    }

    /// Tells somebody without a claim when a watch on this path fires.
    pub(super) fn look_on(&self, session: i64, path: &str, told: &Arc<Notify>) {
        let mut onlookers = locked(&self.onlookers);
        let there = onlookers.entry((session, path.to_owned())).or_default();
        there.retain(|onlooker| onlooker.strong_count() > 0);
        there.push(Arc::downgrade(told));
    }

    /// No watch was set after all.
    pub(super) fn look_away(&self, session: i64, path: &str) {
        let (at, mut onlookers) = ((session, path.to_owned()), locked(&self.onlookers));
        let Some(there) = onlookers.get_mut(&at) else { return };
        there.retain(|onlooker| onlooker.strong_count() > 0);
        if there.is_empty() {
            onlookers.remove(&at);
        }
    }

    fn tell_onlookers(&self, session: i64, path: Option<&str>) {
        let told = locked(&self.onlookers)
            .extract_if(|(of, at), _| *of == session && path.is_none_or(|path| path == at))
            .flat_map(|(_, onlookers)| onlookers)
            .collect::<Vec<_>>();
        told.iter().filter_map(Weak::upgrade).for_each(|onlooker| onlooker.notify_one());
    }

    // Claims.

    /// A claim was sent, and nobody knows whether it arrived.
    pub(super) fn is_unsure(&self, claim: ClaimId, session: &Arc<Session>) {
        locked(&self.unsure).insert(claim, Arc::clone(session));
    }

    /// Where a claim would be of which nobody knows whether it arrived.
    pub(super) fn unsure_on(&self, claim: ClaimId) -> Option<Arc<Session>> {
        locked(&self.unsure).get(&claim).cloned()
    }

    pub(super) fn is_sure(&self, claim: ClaimId) {
        locked(&self.unsure).remove(&claim);
    }

    /// Forgets a claim, and remembers why, in one step: whoever asks in between would take it for one that was never made.
    pub(super) fn bury(&self, claim: ClaimId, why: Gone) -> Option<Known> {
        let mut book = self.claims.lock();
        let known = book.known.remove(&claim)?;
        book.bury(claim, why, known.lease);
        Some(known)
    }

    /// A claim has ended without us: whoever has it is told.
    pub(super) fn ended_alone(&self, claim: ClaimId, why: Gone) -> Option<Known> {
        let known = self.bury(claim, why)?;
        self.events.push(Event::Gone { claim, why });
        if let Stage::Waiting(waiting) = &known.stage {
            waiting.mailbox.push(Woken::Ask);
        }
        Some(known)
    }

    /// Takes up a claim that holds.
    pub(super) fn holds(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<Seat>,
        session: &Arc<Session>,
        (nodes, fence): (Vec<String>, Fence),
    ) {
        self.note(claim, seat, session, Stage::Holding(Holding { nodes, fence, watched_on: 0 }), BootClock.now());
        self.watch_soon(claim.id);
    }

    /// Takes up a claim that waits.
    pub(super) fn waits(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<Seat>,
        session: &Arc<Session>,
        (child, made): (String, i64),
        sent: Moment,
    ) {
        let mailbox = match self.wakes(claim.id) {
            Some(WokenBy::Push(mailbox)) => mailbox,
            Some(WokenBy::Grant(_)) | None => Arc::default(),
        };
        let waiting = Waiting { child, made, mailbox, claim: Arc::new(claim.clone()), watches: None, is_first: false };
        self.note(claim, seat, session, Stage::Waiting(waiting), sent);
    }

    fn note(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat>, session: &Arc<Session>, stage: Stage, sent: Moment) {
        let mut known = Known {
            seat: Arc::clone(seat),
            session: Arc::clone(session),
            stage,
            lease: claim.lease,
            wait_lease: claim.wait_lease(),
            until: sent,
            turn: Arc::default(),
            debt: session.debt(),
        };
        known.renewed(sent);
        let until = {
            let mut book = self.claims.lock();
            if let Some(before) = book.known.get(&claim.id) {
                known.turn = Arc::clone(&before.turn);
                // A waiter that is granted keeps the time that it had, until its owner renews it: of many dead ones in a line each
                // would else hold for a whole lease.
                if let (Stage::Waiting(_), Stage::Holding(_)) = (&before.stage, &known.stage) {
                    known.until = before.until;
                }
            }
            let until = known.until;
            book.known.insert(claim.id, known);
            until
        };
        self.is_over_at(until);
    }

    /// The owner of a claim has asked for it, by a request of this time, and has its answer.
    pub(super) fn is_renewed(&self, claim: ClaimId, sent: Moment) {
        if let Some(known) = self.claims.lock().known.get_mut(&claim) {
            known.renewed(sent);
        }
    }

    /// What wakes a claim that stands in line; `None` when it does not any more.
    pub(super) fn wakes(&self, claim: ClaimId) -> Option<WokenBy> {
        Some(match &self.claims.lock().known.get(&claim)?.stage {
            Stage::Waiting(waiting) => WokenBy::Push(Arc::clone(&waiting.mailbox)),
            Stage::Holding(holding) => WokenBy::Grant(holding.fence),
        })
    }

    /// Looks where a claim stands that waits, and wakes its owner if that is worth it. In a task of its own: what it has asked for
    /// must be taken up, also when nobody waits any more.
    fn look_for(&self, waiting: &Waiting) {
        let (this, claim, mailbox) = (Weak::clone(&self.this), Arc::clone(&waiting.claim), Arc::clone(&waiting.mailbox));
        tokio::spawn(async move {
            let Some(shared) = this.upgrade() else { return };
            match shared.look(&claim).await {
                Ok(Stood::Granted(grant)) => mailbox.push(Woken::Granted(grant.fence)),
                Ok(Stood::Queued(_)) => {}
                Ok(Stood::Gone) | Err(_) => mailbox.push(Woken::Ask),
            }
        });
    }
}

/// What wakes a claim that stands in line.
pub(super) enum WokenBy {
    Push(Arc<Mailbox>),
    /// It holds already.
    Grant(Fence),
}

impl Hears for Shared {
    fn told(&self, session: &Arc<Session>, path: &str) {
        self.tell_onlookers(session.id(), Some(path));
        let mut book = self.claims.lock();
        let mut watched = Vec::new();
        for claim in book.fired(session.id(), path) {
            match book.known.get_mut(&claim).map(|known| &mut known.stage) {
                Some(Stage::Waiting(waiting)) => self.look_for(waiting),
                Some(Stage::Holding(holding)) if holding.nodes.iter().any(|node| node == path) => {
                    holding.watched_on = 0;
                    watched.push(claim);
                }
                _ => {}
            }
        }
        drop(book);
        for claim in watched {
            let this = Weak::clone(&self.this);
            tokio::spawn(async move {
                let Some(shared) = this.upgrade() else { return };
                if shared.watch_own(claim).await == Some(false) {
                    // Its session lives: so somebody ended just this claim.
                    shared.ended_alone(claim, Gone::Revoked).into_iter().for_each(Known::give_up_the_rest);
                }
            });
        }
    }

    fn cut_off(&self, session: &Arc<Session>) {
        self.tell_onlookers(session.id(), None);
        self.claims.lock().unwatch(session.id());
        self.events.push(Event::CutOff);
    }

    fn restored(&self, session: &Arc<Session>) {
        // What was watched may have happened meanwhile.
        {
            let mut book = self.claims.lock();
            for claim in book.of_session(session) {
                match book.known.get_mut(&claim).map(|known| &mut known.stage) {
                    Some(Stage::Waiting(waiting)) => self.look_for(waiting),
                    Some(Stage::Holding(holding)) => holding.watched_on = 0,
                    None => {}
                }
            }
        }
        self.events.push(Event::Restored);
    }

    fn ended(&self, session: &Arc<Session>) {
        self.tell_onlookers(session.id(), None);
        let claims = {
            let mut book = self.claims.lock();
            book.unwatch(session.id());
            book.of_session(session)
        };
        for claim in claims {
            self.ended_alone(claim, Gone::SessionEnded);
        }
        locked(&self.owned).retain(|_, owned| !Arc::ptr_eq(owned, session));
    }

    fn left(&self, session: i64) {
        self.tell_onlookers(session, None);
        self.claims.lock().unwatch(session);
    }

    fn in_use(&self, session: &Session) -> bool {
        self.claims.lock().uses(session) || locked(&self.unsure).values().any(|unsure| std::ptr::eq(&**unsure, session))
    }
}

/// Deletes nodes, however long it takes: until they are gone, or their session is.
pub(super) async fn delete_in_the_end(session: Weak<Session>, paths: &[String]) {
    let _debt = session.upgrade().map(|session| session.debt());
    for path in paths {
        loop {
            let Some(session) = session.upgrade().filter(|session| !session.is_gone()) else { return };
            match session.ask(Request::delete(path, ANY)).await {
                Err(Failed::Unsure(_)) => {}
                Ok(_) | Err(_) => break,
            }
            drop(session);
            tokio::time::sleep(PAUSE).await;
        }
    }
}
