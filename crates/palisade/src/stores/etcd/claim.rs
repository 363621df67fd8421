//! Asking for a name: one transaction where the name is free, whoever asks.
//!
//! ```text
//! if no key begins with the line's prefix      then put our key, on the session of the full length        → granted
//! else if our key is not there                 then put our key, on a short session, and read the line    → in line
//!                                              else read the line                                         → asked before
//! ```
//!
//! A claim that may not queue only reads in the second step.

use std::sync::Arc;
use std::time::Duration;

use super::client::cluster::{Again, Failed};
use super::client::proto::{RequestOp, TxnRequest};
use super::client::rollback::Broken;
use super::client::txn;
use super::entry::{self, Entry, Purpose};
use super::key_pool::LockKey;
use super::queue_rules::{Verdict, check_kind, enough_of, verdict};
use super::session::Session;
use super::shared::{Shared, gone};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease::{BootClock, Clock};
use crate::store::{Answer, Busy, Claim, Grant, Holder, Mode, Place};

/// How often a claim is made anew because its session was gone.
const ATTEMPTS: usize = 3;

impl Shared {
    pub(super) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Answer> {
        if let Some(value) = &claim.value {
            entry::check_value(value)?;
        }
        let seat = self.seat_for(claim)?;
        if self.stays(&seat).await {
            self.is_unsure(claim.id);
        }
        let (mut attempt, mut is_taken) = (1, false);
        let answer = loop {
            let full = self.full_session(claim.id, claim.lease, claim.detachable).await?;
            let wait = match (claim.queue, is_taken) {
                (false, _) => None,
                (true, true) => Some(self.wait_session(claim, &full).await?),
                // Most names are free: nothing is opened for a wait that may never come.
                (true, false) => self.ready_wait_session(claim, &full),
            };
            match self.ask_for(claim, &seat, &full, wait.as_ref()).await {
                Ok(None) => is_taken = true,
                Ok(Some(answer)) => break Ok(answer),
                Err(failed) if failed.lease_gone && attempt < ATTEMPTS => {
                    self.find_ended(&[&full, wait.as_ref().unwrap_or(&full)]).await?;
                    attempt += 1;
                }
                Err(failed) => break Err(failed),
            }
        };
        let answer = answer.map_err(Error::from);
        match &answer {
            Ok(Answer::Granted(_) | Answer::Queued(_)) => {
                // Not before: who asks about a claim that was turned away hears why it ended the last time.
                self.claims.lock().clear_end(claim.id);
                self.is_sure(claim.id);
            }
            Err(error) if *error.kind() == ErrorKind::Unavailable => self.is_unsure(claim.id),
            Ok(Answer::Busy(_) | Answer::Sealed) | Err(_) => {
                self.forget(claim.id);
                self.end_owned(claim.id);
                self.withdrawn(claim.id, &seat);
                match answer {
                    Ok(_) => self.leave(&claim.name, claim.id, &seat, true),
                    // It was refused, and is not asked about again.
                    Err(_) => self.claims.lock().seats.left(&[claim.id]),
                }
            }
        }
        answer
    }

    /// The transaction. `None` when the name is taken and the claim is to queue, but has no session to wait on.
    async fn ask_for(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<LockKey>,
        full: &Arc<Session>,
        wait: Option<&Arc<Session>>,
    ) -> Result<Option<Answer>, Failed> {
        let LockKey { line, key, .. } = &**seat;
        let value = entry::value(claim);
        let otherwise = match (wait, claim.mode) {
            (Some(wait), _) => {
                let mut stand = vec![txn::put(key, value.clone(), wait.id)];
                stand.extend(read_to_end(claim, line));
                let compare = vec![txn::made_at(key, 0)];
                vec![txn::nested(TxnRequest { compare, success: stand, failure: vec![txn::read_line(line)] })]
            }
            // It asks again at once, with a session to wait on.
            (None, _) if claim.queue => Vec::new(),
            (None, Mode::Exclusive) => vec![txn::read(key), txn::read_first(line)],
            (None, Mode::Permits(_)) => vec![txn::read(key), txn::read_firsts(line, enough_of(claim.kind), 0)],
            (None, Mode::Shared) => vec![txn::read_line(line)],
        };
        let asking =
            TxnRequest { compare: vec![txn::is_empty(line)], success: vec![txn::put(key, value, full.id)], failure: otherwise };
        let before = self.cluster.seen.highest();
        let response = self.make(seat, asking).await?;
        let seen = txn::revision_of(&response);
        let stands = txn::nested_of(&response).is_some_and(|stand| stand.succeeded);
        if (response.succeeded || stands) && seen <= before {
            // A write makes a new revision: this one was given before.
            self.delete(key, seen, Again::Freely).await?;
            self.cluster.tell_broken();
            return Err(Broken::WentBack { from: before, to: seen - 1 }.error(&"the store").into());
        }
        if response.succeeded {
            return self.granted(claim, seat, seen, full).await.map(|grant| Some(Answer::Granted(grant)));
        }
        let read = Entry::read_all(txn::keys_of(response));
        let line = match read {
            Ok(line) => line,
            Err(error) => {
                if stands {
                    self.delete(key, seen, Again::Freely).await?;
                }
                return Err(error.into());
            }
        };
        match line.iter().position(|entry| entry.key == *key) {
            Some(at) => {
                let sessions = [full, wait.unwrap_or(full)];
                self.stands_at(claim, seat, (&line, at, seen), sessions).await.map(Some)
            }
            None if claim.queue => Ok(None),
            None => self.try_for(claim, seat, &line, full).await.map(Some),
        }
    }

    /// Our key is in the line.
    async fn stands_at(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<LockKey>,
        (line, at, seen): (&[Entry], usize, i64),
        [full, wait]: [&Arc<Session>; 2],
    ) -> Result<Answer, Failed> {
        let Some(own) = line.get(at) else { return Err(gone().into()) };
        let refused = if at > 0 { check_kind(line, own.kind).err() } else { None };
        let verdict = verdict(line, at);
        if refused.is_some() || verdict == Verdict::Sealed {
            self.delete(&own.key, own.revision, Again::Freely).await?;
        }
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        match verdict {
            Verdict::Sealed => Ok(Answer::Sealed),
            Verdict::Held => {
                // Permits that were waited for are written in any case: who stands behind looks then. Behind one that was made just now
                // stands nobody.
                let tells = matches!(own.mode, Mode::Permits(_)) && own.revision != seen;
                if (own.lease != full.id || tells) && span_of(claim).is_none() {
                    self.move_key(claim, seat, own.revision, full).await?;
                }
                self.granted(claim, seat, own.revision, full).await.map(Answer::Granted)
            }
            Verdict::Blocked(blocker) => {
                let session = match [full, wait].into_iter().find(|session| session.id == own.lease) {
                    Some(session) => Arc::clone(session),
                    None => self.session_of_key(own.lease, claim.wait_lease()).await?.ok_or_else(gone)?,
                };
                self.waits(claim, seat, own.revision, &session, blocker, (line, seen));
                Ok(Answer::Queued(place(&session, line)))
            }
        }
    }

    /// Our key is not in the line, and is not to stand there unless it holds at once.
    async fn try_for(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<LockKey>,
        line: &[Entry],
        full: &Arc<Session>,
    ) -> Result<Answer, Failed> {
        check_kind(line, claim.kind)?;
        if line.iter().any(|entry| entry.purpose == Purpose::Sealed) {
            return Ok(Answer::Sealed);
        }
        if claim.mode == Mode::Exclusive || !would_hold(claim, seat, line)? {
            return Ok(Answer::Busy(busy(line)));
        }
        let LockKey { line: prefix, key, .. } = &**seat;
        let mut stand = vec![txn::put(key, entry::value(claim), full.id)];
        stand.extend(read_to_end(claim, prefix));
        let asking = TxnRequest { compare: vec![txn::made_at(key, 0)], success: stand, failure: vec![txn::read_line(prefix)] };
        let response = self.make(seat, asking).await?;
        let line = Entry::read_all(txn::keys_of(response))?;
        let Some((at, own)) = line.iter().enumerate().find(|(_, entry)| entry.key == *key) else { return Err(gone().into()) };
        if check_kind(&line, claim.kind).is_ok() && verdict(&line, at) == Verdict::Held {
            return self.granted(claim, seat, own.revision, full).await.map(Answer::Granted);
        }
        // Somebody came between our look and our claim.
        self.delete(key, own.revision, Again::Freely).await?;
        Ok(Answer::Busy(busy(&line)))
    }

    /// Makes sure that a session outlasts what a waiter counts on, before its key is moved there.
    pub(super) async fn may_move_to(self: &Arc<Self>, claim: &Claim, session: &Arc<Session>) -> Result<(), Failed> {
        let lasts = self.outlasts(session, BootClock.now() + claim.wait_lease()).await?;
        if lasts { Ok(()) } else { Err(Failed { lease_gone: true, ..Failed::from(gone()) }) }
    }

    /// Hangs a key of ours on another session.
    pub(super) async fn move_key(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &LockKey,
        revision: i64,
        session: &Arc<Session>,
    ) -> Result<(), Failed> {
        self.may_move_to(claim, session).await?;
        let moving = TxnRequest {
            compare: vec![txn::made_at(&seat.key, revision)],
            success: vec![txn::move_to(&seat.key, session.id)],
            failure: Vec::new(),
        };
        if self.txn(moving, Again::Freely).await?.succeeded { Ok(()) } else { Err(gone().into()) }
    }

    /// Our key holds. A minimum hold that is longer than the lease needs a session of its own, as long as it is: it must last when
    /// nobody renews it any more, and no longer.
    pub(super) async fn granted(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<LockKey>,
        revision: i64,
        session: &Arc<Session>,
    ) -> Result<Grant, Failed> {
        let fence = u64::try_from(revision).ok().and_then(Fence::new).ok_or_else(|| Error::protocol("a revision below zero"))?;
        let mut session = Arc::clone(session);
        if let Some(span) = span_of(claim) {
            session = match self.owned_by(claim.id) {
                // Asked for again: it is on it, or on its way there.
                Some(own) => own,
                None => self.sessions.open(span).await?,
            };
            self.own(claim.id, &session);
            self.move_key(claim, seat, revision, &session).await?;
        }
        self.holds(claim, seat, revision, &session);
        Ok(Grant { fence, lease: session.lease() })
    }
}

/// As much of a line as says where a claim stands that has just been put at its end. A reader reads it all, once: any of them may
/// be a writer.
fn read_to_end(claim: &Claim, line: &[u8]) -> Vec<RequestOp> {
    match claim.mode {
        Mode::Exclusive => vec![txn::read_first(line), txn::read_last_two(line)],
        Mode::Permits(_) => vec![txn::read_firsts(line, enough_of(claim.kind), 0), txn::read_last_two(line)],
        Mode::Shared => vec![txn::read_line(line)],
    }
}

/// The minimum hold of a claim, where the lease does not cover it.
fn span_of(claim: &Claim) -> Option<Duration> {
    claim.min_hold.filter(|span| *span > claim.lease && !claim.detachable)
}

/// Whether a claim would hold if it stood at the end of the line.
fn would_hold(claim: &Claim, seat: &LockKey, line: &[Entry]) -> Result<bool> {
    let own = super::client::proto::KeyValue {
        key: seat.key.clone(),
        create_revision: i64::MAX,
        value: entry::value(claim),
        ..Default::default()
    };
    let mut line = line.to_vec();
    line.push(Entry::read(own)?);
    Ok(verdict(&line, line.len() - 1) == Verdict::Held)
}

fn first_holder(line: &[Entry]) -> Option<Holder> {
    line.first().filter(|entry| entry.purpose == Purpose::Claim).map(Entry::holder)
}

fn busy(line: &[Entry]) -> Busy {
    Busy { holder: first_holder(line), ..Busy::default() }
}

/// Where a waiter stands. How many stand before it is not known: that would mean to read them all.
pub(super) fn place(session: &Session, line: &[Entry]) -> Place {
    Place { ahead: None, ask_in: None, lease: session.lease(), holder: first_holder(line) }
}
