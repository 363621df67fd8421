//! Asking for a name: one transaction where the name is free.
//!
//! ```text
//! if no key has the line's prefix      then put our key, on the session of the full length        → granted
//! else if our key is not there         then put our key, on a short session, and read the line    → in line
//!                                      else read the line                                         → asked before
//! ```
//!
//! A claim that may not queue only reads in the second step.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::claims::Slot;
use super::client::cluster::{Failed, Sent};
use super::client::leases::seconds;
use super::client::proto::{KeyValue, RequestOp, TxnRequest, TxnResponse};
use super::client::rollback::Rollback;
use super::client::txn;
use super::entry::{self, Entry, Purpose, Snapshot};
use super::key_pool::LockKey;
use super::queue_rules::{Verdict, check_kind, enough_of, verdict};
use super::sessions::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{BootClock, Clock};
use crate::store::{Answer, Busy, Claim, ClaimId, Grant, Mode, Place};
use crate::stores::kit::session::claim::Enter;
use crate::stores::kit::session::gone;
use crate::stores::kit::session::sessions::Length;

/// How often a claim is sent anew because its session was gone.
const ATTEMPTS: usize = 3;

/// One attempt: the claim, and what its key is or will be attached to.
struct Attempt<'a> {
    claim: &'a Arc<Claim>,
    key: &'a Arc<LockKey>,
    full: Arc<Session>,
    /// Set if the claim may queue, and this session is there.
    wait: Option<Arc<Session>>,
}

impl Attempt<'_> {
    fn slot(&self, revision: i64, session: &Arc<Session>) -> Slot {
        Slot::new(Arc::clone(self.key), revision, Arc::clone(session))
    }
}

impl Enter for Backend {
    async fn enter(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Answer, Failed> {
        if let Some(value) = &claim.value {
            entry::check_value(value)?;
        }
        let key = self.keys.for_claim(&self.lines.names, claim)?;
        self.deletes.cancel(&key).await;
        self.attempt(claim, &key).await
    }

    fn turned_away(self: &Arc<Self>, claim: &Claim, answer: &Result<Answer, Failed>) -> bool {
        let Some(key) = self.keys.of(claim.id) else {
            return true;
        };
        let error = answer.as_ref().err().map(|failed| &failed.error);
        let was_not_sent = error.is_none_or(Error::nothing_was_sent);
        if error.is_some_and(|error| error.kind() == ErrorKind::Unavailable)
            && !(was_not_sent && key.is_settled())
        {
            return false;
        }
        self.forget(claim.id);
        self.give_back_key(claim.id, &key, was_not_sent);
        true
    }
}

impl Backend {
    /// A claim has ended, by the word of the store. Its key is used again if it is certainly gone.
    /// A copy of the claim that is still in flight would stay for as long as its session: then the
    /// key is deleted once more.
    pub(super) fn give_back_key(
        self: &Arc<Self>,
        claim: ClaimId,
        key: &Arc<LockKey>,
        is_gone: bool,
    ) {
        if key.is_settled() {
            self.keys.give_back(claim, key, is_gone);
        } else {
            self.delete_later(claim, key, None, self.lines.cluster.request_timeout * 2);
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        key: &Arc<LockKey>,
    ) -> Result<Answer, Failed> {
        let (mut attempts, mut is_taken) = (1, false);
        loop {
            let full = self.full_session(claim).await?;
            let wait = match (claim.queue, is_taken) {
                (false, _) => None,
                (true, true) => Some(self.wait_session(claim, &full).await?),
                // Most names are free: no session is opened for a wait that may never come.
                (true, false) => self.ready_wait_session(claim, &full),
            };
            let attempt = Attempt {
                claim,
                key,
                full,
                wait,
            };
            match self.ask(&attempt).await {
                Ok(None) => is_taken = true,
                Ok(Some(answer)) => return Ok(answer),
                Err(failed) if failed.lease_gone && attempts < ATTEMPTS => {
                    self.find_ended(&[
                        &attempt.full,
                        attempt.wait.as_ref().unwrap_or(&attempt.full),
                    ])
                    .await?;
                    attempts += 1;
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Sends a transaction that creates the key of a claim, if it is not there. If a copy of it may
    /// yet arrive, its sessions are given up.
    async fn create(&self, attempt: &Attempt<'_>, txn: TxnRequest) -> Result<TxnResponse, Failed> {
        let (claim, key) = (attempt.claim, attempt.key);
        let (full, wait) = (&attempt.full, attempt.wait.as_ref());
        key.write_begins();
        let outcome = self.send(key, txn, Some(claim.id)).await;
        let is_resolved = match &outcome {
            Ok((_, sent)) => *sent == Sent::Once,
            Err(failed) => failed.error.nothing_was_sent(),
        };
        if is_resolved {
            key.write_resolved();
        }
        let has_failed = outcome
            .as_ref()
            .is_err_and(|failed| failed.refused && failed.sent == Sent::Once);
        if !is_resolved && !has_failed {
            // One that belongs to this claim ends with it.
            let is_shared = |session: &&Arc<Session>| {
                self.sessions
                    .owned_by(claim.id)
                    .is_none_or(|own| own.id != session.id)
            };
            for session in [Some(full), wait].into_iter().flatten().filter(is_shared) {
                self.sessions.doubt(session);
                key.doubts(session);
            }
        }
        outcome.map(|(response, _)| response)
    }

    /// The transaction. `None` when the name is taken and the claim may queue, but has no session
    /// to wait on.
    async fn ask(self: &Arc<Self>, attempt: &Attempt<'_>) -> Result<Option<Answer>, Failed> {
        let (claim, key) = (attempt.claim, attempt.key);
        let (full, wait) = (&attempt.full, attempt.wait.as_ref());
        let value = entry::value(claim);
        let otherwise = match (wait, claim.mode) {
            (Some(wait), _) => {
                let stand = stand_in_line(claim, key, wait, value.clone());
                vec![txn::nested(stand)]
            }
            // It is sent again at once, with a session to wait on.
            (None, _) if claim.queue => Vec::new(),
            (None, Mode::Exclusive) => vec![txn::read(&key.bytes), txn::read_first(&key.line)],
            (None, Mode::Permits(_)) => vec![
                txn::read(&key.bytes),
                txn::read_firsts(&key.line, enough_of(claim.kind), 0),
            ],
            (None, Mode::Shared) => vec![txn::read_line(&key.line)],
        };
        let claiming = TxnRequest {
            compare: vec![txn::is_empty(&key.line)],
            success: vec![txn::put(&key.bytes, value, full.id)],
            failure: otherwise,
        };
        let before = self.lines.cluster.seen.highest();
        let response = self.create(attempt, claiming).await?;
        let revision = txn::revision_of(&response);
        let is_granted = response.succeeded;
        let is_created =
            is_granted || txn::nested_of(&response).is_some_and(|stand| stand.succeeded);
        if is_created && revision <= before {
            // A write has a new revision: this one was given before.
            self.lines.delete(&key.bytes, revision).await?;
            self.lines.cluster.report_rollback();
            return Err(Rollback::WentBack {
                from: before,
                to: revision - 1,
            }
            .error(&"the store")
            .into());
        }
        if is_granted {
            return self
                .grant(claim, attempt.slot(revision, full))
                .await
                .map(|grant| Some(Answer::Granted(grant)));
        }
        let line = match Snapshot::of(response) {
            Ok(line) => line,
            Err(error) => {
                if is_created {
                    self.lines.delete(&key.bytes, revision).await?;
                }
                return Err(error.into());
            }
        };
        match line.position(&key.bytes) {
            Some(at) => self.answer_in_line(attempt, &line, at).await.map(Some),
            None if claim.queue => Ok(None),
            None => self.try_behind(attempt, &line).await.map(Some),
        }
    }

    /// Our key is in the line.
    async fn answer_in_line(
        self: &Arc<Self>,
        attempt: &Attempt<'_>,
        line: &Snapshot,
        at: usize,
    ) -> Result<Answer, Failed> {
        let (claim, key) = (attempt.claim, attempt.key);
        let (full, wait) = (&attempt.full, attempt.wait.as_ref());
        let Some(own) = line.entries.get(at) else {
            return Err(gone().into());
        };
        let refused = if at > 0 {
            check_kind(&claim.name, &line.entries, own.kind).err()
        } else {
            None
        };
        let verdict = verdict(&line.entries, at);
        if refused.is_some() || verdict == Verdict::Sealed {
            self.lines.delete(&own.key, own.revision).await?;
        }
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        match verdict {
            Verdict::Sealed => Ok(Answer::Sealed),
            Verdict::Held => {
                let slot = attempt.slot(own.revision, full);
                // Permits that were waited for are written in any case: the waiter behind looks
                // then. A key that was created just now has no waiter behind it.
                let tells = matches!(own.mode, Mode::Permits(_)) && own.revision != line.revision;
                if (own.lease != full.id || tells) && span_of(claim).is_none() {
                    self.move_to_lasting(claim, &slot, full).await?;
                }
                self.grant(claim, slot).await.map(Answer::Granted)
            }
            Verdict::Blocked(blocker) => {
                let session = match [Some(full), wait]
                    .into_iter()
                    .flatten()
                    .find(|session| session.id == own.lease)
                {
                    Some(session) => Arc::clone(session),
                    None => self
                        .sessions
                        .of_key(key, own.lease, claim.wait_lease())
                        .await?
                        .ok_or_else(gone)?,
                };
                let place = place(&session, line);
                self.wait(claim, &attempt.slot(own.revision, &session), blocker, line);
                Ok(Answer::Queued(place))
            }
        }
    }

    /// Our key is not in the line, and may only be if it holds at once.
    async fn try_behind(
        self: &Arc<Self>,
        attempt: &Attempt<'_>,
        line: &Snapshot,
    ) -> Result<Answer, Failed> {
        let (claim, key, full) = (attempt.claim, attempt.key, &attempt.full);
        check_kind(&claim.name, &line.entries, claim.kind)?;
        if line
            .entries
            .iter()
            .any(|entry| entry.purpose == Purpose::Sealed)
        {
            return Ok(Answer::Sealed);
        }
        if claim.mode == Mode::Exclusive || !would_hold(claim, key, line)? {
            return Ok(Answer::Busy(busy(line)));
        }
        let response = self
            .create(
                attempt,
                stand_in_line(claim, key, full, entry::value(claim)),
            )
            .await?;
        let line = Snapshot::of(response)?;
        let Some((at, own)) = line
            .entries
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.key == key.bytes)
        else {
            return Err(gone().into());
        };
        if check_kind(&claim.name, &line.entries, claim.kind).is_ok()
            && verdict(&line.entries, at) == Verdict::Held
        {
            return self
                .grant(claim, attempt.slot(own.revision, full))
                .await
                .map(Answer::Granted);
        }
        // Another claim came between our read and our claim.
        self.lines.delete(&key.bytes, own.revision).await?;
        Ok(Answer::Busy(busy(&line)))
    }

    /// Attaches a waiter's key to a session, which lasts for as long as the waiter counts on its
    /// own.
    pub(super) async fn move_to_lasting(
        &self,
        claim: &Claim,
        slot: &Slot,
        to: &Arc<Session>,
    ) -> Result<(), Failed> {
        if !self
            .sessions
            .outlasts(to, &slot.key, BootClock.now() + claim.wait_lease())
            .await?
        {
            return Err(Failed {
                lease_gone: true,
                ..Failed::from(gone())
            });
        }
        self.lines.move_key(slot, to).await
    }

    /// Our key holds. A minimum hold that is longer than the lease needs a session of its own of
    /// that length: it must last when it is not renewed any more, and no longer.
    pub(super) async fn grant(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        mut slot: Slot,
    ) -> Result<Grant, Failed> {
        if let Some(span) = span_of(claim) {
            let session = match self.sessions.owned_by(claim.id) {
                // Sent again: its key is attached to it, or about to be.
                Some(own) => own,
                None => self.sessions.open(span).await?,
            };
            self.sessions.own(claim.id, &session);
            self.move_to_lasting(claim, &slot, &session).await?;
            slot.session = session;
        }
        let grant = slot.grant();
        self.hold(claim, slot, false);
        Ok(grant)
    }

    /// The session for the key of a holder.
    pub(super) async fn full_session(self: &Arc<Self>, claim: &Claim) -> Result<Arc<Session>> {
        let length = session_length(claim.lease);
        self.sessions.of_claim(claim, length).await
    }

    /// The session for the key of a waiter: a short one, so that dead waiters cost little.
    pub(super) async fn wait_session(
        self: &Arc<Self>,
        claim: &Claim,
        full: &Arc<Session>,
    ) -> Result<Arc<Session>> {
        if claim.wait_lease() == claim.lease {
            return Ok(Arc::clone(full));
        }
        let length = session_length(claim.wait_lease());
        match self.sessions.ready(length) {
            Some(session) => Ok(session),
            None => Box::pin(self.sessions.of_length(length)).await,
        }
    }

    /// The same, if there is one.
    fn ready_wait_session(&self, claim: &Claim, full: &Arc<Session>) -> Option<Arc<Session>> {
        if claim.wait_lease() == claim.lease {
            return Some(Arc::clone(full));
        }
        self.sessions.ready(session_length(claim.wait_lease()))
    }
}

/// Puts the key of a claim at the end of its line, and reads as much of the line as says where it
/// stands; the whole line, if the key is there already. A reader reads it all, once: any entry may
/// be a writer.
fn stand_in_line(claim: &Claim, key: &LockKey, session: &Session, value: Vec<u8>) -> TxnRequest {
    let read: Vec<RequestOp> = match claim.mode {
        Mode::Exclusive => vec![txn::read_first(&key.line), txn::read_last_two(&key.line)],
        Mode::Permits(_) => vec![
            txn::read_firsts(&key.line, enough_of(claim.kind), 0),
            txn::read_last_two(&key.line),
        ],
        Mode::Shared => vec![txn::read_line(&key.line)],
    };
    TxnRequest {
        compare: vec![txn::created_at(&key.bytes, 0)],
        success: [vec![txn::put(&key.bytes, value, session.id)], read].concat(),
        failure: vec![txn::read_line(&key.line)],
    }
}

/// The length of the session for a lease, in the whole seconds of etcd: leases of one length share
/// a session.
fn session_length(lease: Duration) -> Length {
    Length {
        of: Duration::from_secs(seconds(lease)),
        is_exact: false,
    }
}

/// The minimum hold of a claim, where the lease does not cover it.
pub(super) fn span_of(claim: &Claim) -> Option<Duration> {
    claim
        .min_hold
        .filter(|span| *span > claim.lease && !claim.detachable)
}

/// Whether a claim would hold at the end of the line.
fn would_hold(claim: &Claim, key: &LockKey, line: &Snapshot) -> Result<bool> {
    let own = KeyValue {
        key: key.bytes.clone(),
        create_revision: i64::MAX,
        value: entry::value(claim),
        ..Default::default()
    };
    let mut entries = line.entries.clone();
    entries.push(Entry::read(own)?);
    Ok(verdict(&entries, entries.len() - 1) == Verdict::Held)
}

fn busy(line: &Snapshot) -> Busy {
    Busy {
        holder: line.holder(),
        closed: line
            .first()
            .is_some_and(|first| first.purpose == Purpose::Closed),
        ..Busy::default()
    }
}

/// Where a waiter stands. How many stand before it is not known: that would mean to read them all.
pub(super) fn place(session: &Session, line: &Snapshot) -> Place {
    Place {
        ahead: None,
        ask_in: None,
        lease: session.lease(),
        holder: line.holder(),
    }
}
