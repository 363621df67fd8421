//! Renewals: one keep-alive for each session, however many claims hang on it, and a look at the line for those who wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::claim::place;
use super::client::cluster::{Again, Failed};
use super::client::proto::{Response, TxnRequest};
use super::client::txn;
use super::entry::{Entry, Purpose};
use super::key_pool::LockKey;
use super::queue_rules::{Blocker, Verdict, verdict};
use super::session::{Renewed, Session};
use super::shared::{Shared, gone};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{Claim, ClaimId, ClaimRef, Gone, Grant, Mode, Standing};

/// How many keys are looked at in one transaction; servers take 128.
pub(super) const LOOKS: usize = 100;
/// A claim that nobody has renewed is ended by us only so long after its time: its holder has been told by then.
const GRACE: Duration = Duration::from_millis(100);
/// How often a waiter's grant is tried anew because its session was gone.
const ATTEMPTS: usize = 3;

/// What is known of a claim before anything is asked.
enum Before {
    /// It has ended.
    Gone(Gone),
    /// It holds, and its key is watched.
    Sure(Grant),
    /// It holds, unless its key was deleted unseen. The last says whether its watch is open now.
    Unsure(Arc<LockKey>, i64, bool),
    /// It holds with the session of a waiter.
    Raise,
    /// It waits, or is not known here.
    Ask,
}

/// What a waiter that was woken sees.
pub(super) enum Looked {
    /// It holds.
    First(Fence),
    /// It waits, for somebody else now.
    Waits,
    /// A renewal must find out.
    Unsure,
}

impl Shared {
    pub(super) async fn renew(self: &Arc<Self>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        // What is held is believed by the word of a watch. So that must be alive.
        self.watcher.ask_for_life();
        let began = tokio::time::Instant::now();
        let mut failed = self.renew_sessions(claims).await;
        let mut answers: Vec<Option<Result<Standing>>> = claims.iter().map(|_| None).collect();
        let mut asking = Vec::new();
        let mut unsure = Vec::new();
        for (at, claim) in claims.iter().enumerate() {
            if let Some(error) = failed.remove(&claim.claim.id) {
                put(&mut answers, at, Err(error));
                continue;
            }
            match self.before(claim) {
                Before::Gone(why) => put(&mut answers, at, Ok(Standing::Gone(why))),
                Before::Sure(grant) => put(&mut answers, at, Ok(Standing::Held(grant))),
                Before::Unsure(seat, revision, opened) => unsure.push((at, claim.claim.id, seat, revision, opened)),
                Before::Raise => {
                    let (shared, claim) = (Arc::clone(self), claim.clone());
                    asking.push((at, tokio::spawn(async move { shared.raise(&claim).await })));
                }
                Before::Ask => {
                    let (shared, claim) = (Arc::clone(self), claim.clone());
                    asking.push((at, tokio::spawn(async move { shared.ask_where(&claim).await })));
                }
            }
        }
        for batch in unsure.chunks(LOOKS) {
            let asked = BootClock.now();
            match self.look_at(batch).await {
                Ok(there) => {
                    for ((at, claim, ..), there) in batch.iter().zip(there) {
                        put(&mut answers, *at, Ok(self.looked(*claim, there, asked)));
                    }
                }
                Err(failed) => batch.iter().for_each(|(at, ..)| put(&mut answers, *at, Err(failed.error.clone()))),
            }
        }
        // Those who wait must not withhold from those who hold what was confirmed to them. Whatever takes longer goes on by itself.
        let limit = began + claims.iter().map(|claim| claim.claim.wait_lease() / 3).min().unwrap_or_default();
        for (at, answer) in asking {
            let answer = tokio::time::timeout_at(limit, answer).await;
            match answer {
                Ok(Ok(answer)) => put(&mut answers, at, answer),
                Ok(Err(_)) => {}
                Err(_) => put(&mut answers, at, Err(self.cluster.silent(self.cluster.current()))),
            }
        }
        let unanswered = || Err(Error::protocol("a renewal broke off in the middle; this is a bug in the store"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Renews the sessions of these claims. The answer has the claims whose session could not be asked.
    async fn renew_sessions(self: &Arc<Self>, claims: &[ClaimRef]) -> HashMap<ClaimId, Error> {
        let mut sessions: HashMap<i64, (Arc<Session>, Duration, Vec<ClaimId>)> = HashMap::new();
        for claim in claims {
            if let Some(known) = self.claims.lock().known.get(&claim.claim.id)
                && !known.is_span
            {
                let (_, lease, claims) =
                    sessions.entry(known.session.id).or_insert_with(|| (Arc::clone(&known.session), known.lease, Vec::new()));
                *lease = known.lease.min(*lease);
                claims.push(claim.claim.id);
            }
        }
        let mut renewing = JoinSet::new();
        for (session, lease, claims) in sessions.into_values() {
            let shared = Arc::clone(self);
            renewing.spawn(async move {
                let renewed = shared.sessions.renew(&session, lease).await;
                match renewed {
                    Ok(Renewed::Gone) => shared.session_ended(&session),
                    Ok(renewed) => {
                        shared.claims.lock().confirmed(&claims);
                        if renewed == Renewed::Confirmed {
                            shared.end_unrenewed(&session);
                        }
                    }
                    Err(_) => {}
                }
                (claims, renewed.err())
            });
        }
        let mut failed = HashMap::new();
        while let Some(renewed) = renewing.join_next().await {
            if let Ok((claims, Some(error))) = renewed {
                failed.extend(claims.into_iter().map(|claim| (claim, error.clone())));
            }
        }
        failed
    }

    /// Ends the claims of a session that nobody has renewed in their time: the session lives on by the others, so that the
    /// server does not do it.
    fn end_unrenewed(self: &Arc<Self>, session: &Session) {
        let over = self.claims.lock().over(session, BootClock.now().before(GRACE));
        for (claim, seat, revision) in over {
            self.ended(claim, Gone::Expired);
            let shared = Arc::clone(self);
            tokio::spawn(async move {
                if shared.delete(&seat.key, revision, Again::Freely).await.is_err() {
                    shared.delete_later(claim, &seat, Duration::ZERO);
                }
            });
        }
    }

    fn before(&self, claim: &ClaimRef) -> Before {
        let book = self.claims.lock();
        let id = claim.claim.id;
        if let Some(why) = book.end_reason(id) {
            return Before::Gone(why);
        }
        let Some(known) = book.known.get(&id) else { return Before::Ask };
        let fence = fence_of(known.revision);
        if claim.fence.is_some_and(|asked| asked != fence) {
            return Before::Gone(Gone::Expired);
        }
        match (&known.waiting, known.verified) {
            (Some(_), _) => Before::Ask,
            (None, _) if known.is_short || known.needs_more(BootClock.now()) => Before::Raise,
            (None, true) if !known.is_span => Before::Sure(Grant { fence, lease: known.session.lease() }),
            (None, _) => Before::Unsure(Arc::clone(&known.seat), known.revision, known.opened),
        }
    }

    /// Looks which of these keys are still there.
    async fn look_at(&self, batch: &[(usize, ClaimId, Arc<LockKey>, i64, bool)]) -> Result<Vec<bool>, Failed> {
        let looks = batch.iter().map(|(_, _, seat, ..)| txn::look(&seat.key)).collect();
        let response = self.txn(TxnRequest { success: looks, ..TxnRequest::default() }, Again::Freely).await?;
        let mut found = response.responses.into_iter().map(|op| match op.response {
            Some(Response::Range(range)) => range.kvs.first().map(|kv| kv.create_revision),
            _ => None,
        });
        let mut there = Vec::with_capacity(batch.len());
        for (_, claim, _, revision, opened) in batch {
            let is_there = found.next().flatten() == Some(*revision);
            there.push(is_there);
            if let Some(known) = self.claims.lock().known.get_mut(claim)
                && is_there
            {
                // Only if the watch was open before we looked, and has been since.
                known.verified = *opened && known.opened;
            }
        }
        Ok(there)
    }

    /// Looks whether those still hold whose watch was opened just now. Whoever does not is told.
    pub(super) async fn look_again(self: &Arc<Self>, claims: &[ClaimId]) {
        let batch: Vec<_> = {
            let book = self.claims.lock();
            let known = claims.iter().filter_map(|claim| Some((*claim, book.known.get(claim)?)));
            known.map(|(claim, known)| (0, claim, Arc::clone(&known.seat), known.revision, known.opened)).collect()
        };
        for batch in batch.chunks(LOOKS) {
            // If the store cannot be asked now, the next opening of the watch asks again.
            let Ok(there) = self.look_at(batch).await else { return };
            for ((_, claim, _, revision, _), _) in batch.iter().zip(there).filter(|(_, there)| !there) {
                let session = self.claims.lock().known.get(claim).map(|known| Arc::clone(&known.session));
                if let Some(session) = session {
                    super::watch_events::classify_loss(Arc::downgrade(self), *claim, *revision, session).await;
                }
            }
        }
    }

    fn looked(&self, claim: ClaimId, there: bool, asked: Moment) -> Standing {
        if !there {
            // Its session lives: so somebody ended just this claim.
            return Standing::Gone(self.why_gone(claim, Gone::Revoked));
        }
        let mut book = self.claims.lock();
        match book.known.get_mut(&claim) {
            Some(known) => {
                if known.is_span {
                    known.until = asked + known.lease;
                }
                Standing::Held(Grant { fence: fence_of(known.revision), lease: known.lease_from(asked) })
            }
            None => Standing::Gone(book.end_reason(claim).unwrap_or(Gone::Expired)),
        }
    }

    /// A claim has ended, and whoever asks about it hears it now. What is buried already stays as it is.
    fn why_gone(&self, claim: ClaimId, why: Gone) -> Gone {
        self.record_end(claim, why);
        self.claims.lock().end_reason(claim).unwrap_or(Gone::Expired)
    }

    /// Asks the store where a claim stands that waits, or that is not known here.
    async fn ask_where(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let mut attempt = 1;
        loop {
            let waits = {
                let book = self.claims.lock();
                book.known.get(&claim.claim.id).map(|known| {
                    let told = known.waiting.as_ref().is_some_and(|waiting| waiting.told);
                    (Arc::clone(&known.seat), known.revision, Arc::clone(&known.session), known.mode, told)
                })
            };
            let Some((seat, revision, session, mode, told)) = waits else { return self.find(claim).await };
            let full = self.full_session(claim.claim.id, claim.claim.lease, claim.claim.detachable).await?;
            let standing = match mode {
                Mode::Exclusive => self.ask_first(claim, &seat, revision, (&session, &full), told).await,
                Mode::Shared => self.ask_writers(claim, &seat, revision, (&session, &full)).await,
                Mode::Permits(_) => self.ask_permits(claim, &seat, revision, (&session, &full)).await,
            };
            match standing {
                Err(failed) if failed.lease_gone && attempt < ATTEMPTS => self.find_ended(&[&session, &full]).await?,
                standing => return Ok(standing?),
            }
            attempt += 1;
        }
    }

    /// Moves the key of a claim that was granted while it waited to the session of its full length.
    async fn raise(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let id = claim.claim.id;
        let mut attempt = 1;
        loop {
            let known = {
                let book = self.claims.lock();
                book.known.get(&id).map(|known| {
                    (Arc::clone(&known.seat), known.revision, Arc::clone(&known.session), known.until, known.is_span)
                })
            };
            let Some((seat, revision, session, until, is_span)) = known else { return self.find(claim).await };
            let full = self.full_session(id, claim.claim.lease, claim.claim.detachable).await?;
            if !self.outlasts(&full, until).await? {
                self.session_ended(&full);
                if attempt == ATTEMPTS {
                    return Err(gone());
                }
                attempt += 1;
                continue;
            }
            let moving = TxnRequest {
                compare: vec![txn::made_at(&seat.key, revision)],
                success: vec![txn::move_to(&seat.key, full.id)],
                failure: Vec::new(),
            };
            match self.txn(moving, Again::Freely).await {
                Ok(response) if response.succeeded => {
                    self.still_holds(&claim.claim, &seat, revision, &full);
                    if is_span {
                        self.end_owned(id);
                    }
                    return Ok(Standing::Held(Grant { fence: fence_of(revision), lease: full.lease() }));
                }
                Ok(_) => {
                    self.find_ended(&[&session]).await?;
                    return Ok(Standing::Gone(self.why_gone(id, Gone::Revoked)));
                }
                Err(failed) if failed.lease_gone && attempt < ATTEMPTS => self.find_ended(&[&full]).await?,
                // It holds on what it has: that was renewed just now.
                Err(failed) if !is_span && !failed.lease_gone && failed.error.retry_may_help() => {
                    return Ok(Standing::Held(Grant { fence: fence_of(revision), lease: session.lease() }));
                }
                Err(failed) => return Err(failed.into()),
            }
            attempt += 1;
        }
    }

    /// Looks whether a claim that was told so is first now. It then holds at once, with the lease that it has as a waiter:
    /// nothing is written, so that a hand-off costs the server one commit and not two.
    pub(super) async fn look_if_first(self: &Arc<Self>, claim: &Claim) -> Result<Looked, Failed> {
        let known = {
            let book = self.claims.lock();
            let known = book.known.get(&claim.id).filter(|known| known.waiting.is_some() && known.mode == Mode::Exclusive);
            known.map(|known| (Arc::clone(&known.seat), known.revision, Arc::clone(&known.session)))
        };
        // A minimum hold needs a session of its own first.
        let Some((seat, revision, session)) = known.filter(|_| claim.min_hold.is_none()) else { return Ok(Looked::Unsure) };
        let asking = TxnRequest {
            compare: vec![txn::made_at(&seat.key, revision), txn::none_before(&seat.line, revision)],
            success: vec![txn::look(&seat.key)],
            failure: vec![txn::read(&seat.key), txn::read_first(&seat.line), txn::read_before(&seat.line, revision)],
        };
        let response = self.txn(asking, Again::Freely).await?;
        if session.is_gone() {
            return Ok(Looked::Unsure);
        }
        if !response.succeeded {
            let seen = txn::revision_of(&response);
            let line = Entry::read_all(txn::keys_of(response))?;
            let own = line.iter().position(|entry| entry.key == seat.key && entry.revision == revision);
            return Ok(match own.map(|at| verdict(&line, at)) {
                Some(Verdict::Blocked(blocker)) => {
                    self.still_waits(claim, &seat, revision, &session, blocker, (&line, seen));
                    Looked::Waits
                }
                _ => Looked::Unsure,
            });
        }
        self.still_holds(claim, &seat, revision, &session);
        if let Some(known) = self.claims.lock().known.get_mut(&claim.id) {
            known.is_short = claim.wait_lease() < claim.lease || claim.detachable;
        }
        Ok(Looked::First(fence_of(revision)))
    }

    /// Asks whether an exclusive claim is first. If it was told that it may be, the same step moves its key to the full session;
    /// otherwise nothing is written, which is cheaper for the server.
    async fn ask_first(
        self: &Arc<Self>,
        claim: &ClaimRef,
        seat: &Arc<LockKey>,
        revision: i64,
        (session, full): (&Arc<Session>, &Arc<Session>),
        told: bool,
    ) -> Result<Standing, Failed> {
        let LockKey { line, key, .. } = &**seat;
        let moves = session.id != full.id;
        let asking = |write: bool| TxnRequest {
            compare: vec![txn::made_at(key, revision), txn::none_before(line, revision)],
            success: if write && moves { vec![txn::move_to(key, full.id)] } else { vec![txn::look(key)] },
            failure: vec![txn::read(key), txn::read_first(line), txn::read_before(line, revision)],
        };
        if told && moves {
            self.may_move_to(&claim.claim, full).await?;
        }
        // Mostly the one before it is still there, and that is quickly said: to look who is first the server passes the whole line.
        let before = self.blocker_of(claim.claim.id).filter(|_| !told);
        let mut response = match before {
            Some(Blocker::Key(earlier, made)) => {
                let waiting = TxnRequest {
                    compare: vec![txn::made_at(key, revision), txn::made_at(&earlier, made)],
                    success: vec![txn::read_first(line)],
                    failure: vec![txn::nested(asking(false))],
                };
                let response = self.txn(waiting, Again::Freely).await?;
                if !response.succeeded {
                    txn::unnested(response)
                } else {
                    let seen = txn::revision_of(&response);
                    let entries = Entry::read_all(txn::keys_of(response))?;
                    if entries.iter().all(|first| first.purpose != Purpose::Sealed) {
                        let blocker = Blocker::Key(earlier, made);
                        self.still_waits(&claim.claim, seat, revision, session, blocker, (&entries, seen));
                        return Ok(Standing::Waiting(place(session, &entries)));
                    }
                    self.txn(asking(false), Again::Freely).await?
                }
            }
            _ => self.txn(asking(told), Again::Freely).await?,
        };
        if response.succeeded && moves && !told {
            self.may_move_to(&claim.claim, full).await?;
            response = self.txn(asking(true), Again::Freely).await?;
        }
        if response.succeeded {
            return Ok(Standing::Held(self.still_granted(claim, seat, revision, full).await?));
        }
        let seen = txn::revision_of(&response);
        let entries = Entry::read_all(txn::keys_of(response))?;
        self.judged(claim, seat, revision, (session, full), (&entries, seen)).await
    }

    /// Takes up what the line says of a claim that waits.
    pub(super) async fn judged(
        self: &Arc<Self>,
        claim: &ClaimRef,
        seat: &Arc<LockKey>,
        revision: i64,
        (session, full): (&Arc<Session>, &Arc<Session>),
        (line, seen): (&[Entry], i64),
    ) -> Result<Standing, Failed> {
        let id = claim.claim.id;
        let own = line.iter().position(|entry| entry.key == seat.key && entry.revision == revision);
        let Some(at) = own else {
            // Not only this claim is gone, if its session is.
            self.find_ended(&[session]).await?;
            return Ok(Standing::Gone(self.why_gone(id, Gone::Revoked)));
        };
        match verdict(line, at) {
            Verdict::Sealed => {
                self.forget(id);
                self.delete(&seat.key, revision, Again::Freely).await?;
                Ok(Standing::Gone(Gone::Sealed))
            }
            Verdict::Held => {
                // Permits are written even where nothing changes: who stands behind looks then.
                if line.get(at).is_some_and(|own| own.lease != full.id || matches!(own.mode, Mode::Permits(_))) {
                    self.move_key(&claim.claim, seat, revision, full).await?;
                }
                Ok(Standing::Held(self.still_granted(claim, seat, revision, full).await?))
            }
            Verdict::Blocked(blocker) => {
                self.still_waits(&claim.claim, seat, revision, session, blocker, (line, seen));
                Ok(Standing::Waiting(place(session, line)))
            }
        }
    }

    /// A claim that waited holds, unless it was given back meanwhile: then there is nothing to grant.
    async fn still_granted(
        self: &Arc<Self>,
        claim: &ClaimRef,
        seat: &Arc<LockKey>,
        revision: i64,
        full: &Arc<Session>,
    ) -> Result<Grant, Failed> {
        if !self.claims.lock().knows(claim.claim.id, revision) {
            return Err(gone().into());
        }
        self.granted(&claim.claim, seat, revision, full).await
    }

    /// Finds a claim that is not known here: somebody else's grant that is to be ours from now on.
    async fn find(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let seat = self.seat(&claim.claim.name, claim.claim.id);
        let (line, seen) = self.read_line(&seat.line).await?;
        let Some((at, own)) = line.iter().enumerate().find(|(_, entry)| entry.key == seat.key) else {
            return Ok(Standing::Gone(Gone::Expired));
        };
        if claim.fence.is_some_and(|fence| fence != own.fence()) || own.purpose != Purpose::Claim {
            return Ok(Standing::Gone(Gone::Expired));
        }
        let Some(session) = self.session_of_key(own.lease, claim.claim.lease).await? else {
            return Ok(Standing::Gone(Gone::Expired));
        };
        // It may have been released while we looked, and its key be another claim's by now.
        let is_left = || !self.claims.lock().seats.of(claim.claim.id).is_some_and(|now| Arc::ptr_eq(&now, &seat));
        if seat.is_private() && is_left() {
            return Ok(Standing::Gone(Gone::Expired));
        }
        match verdict(&line, at) {
            Verdict::Held => {
                // Not ours to end: perhaps others hang on it.
                self.holds(&claim.claim, &seat, own.revision, &session);
                Ok(Standing::Held(Grant { fence: own.fence(), lease: session.lease() }))
            }
            Verdict::Blocked(blocker) => {
                self.waits(&claim.claim, &seat, own.revision, &session, blocker, (&line, seen));
                Ok(Standing::Waiting(place(&session, &line)))
            }
            Verdict::Sealed => Ok(Standing::Gone(Gone::Sealed)),
        }
    }
}

fn put(answers: &mut [Option<Result<Standing>>], at: usize, answer: Result<Standing>) {
    if let Some(place) = answers.get_mut(at) {
        *place = Some(answer);
    }
}

pub(super) fn fence_of(revision: i64) -> Fence {
    u64::try_from(revision).ok().and_then(Fence::new).unwrap_or(Fence::NONE)
}
