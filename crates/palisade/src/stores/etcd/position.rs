//! What readers and those who want permits ask while they wait. A line may be long: they read what decides, and not the line.

use std::sync::Arc;

use super::claim::place;
use super::client::cluster::{Again, Failed};
use super::client::proto::TxnRequest;
use super::client::txn;
use super::entry::{Entry, Purpose};
use super::key_pool::LockKey;
use super::queue_rules::{Blocker, enough_of};
use super::renew::LOOKS;
use super::session::Session;
use super::shared::Shared;
use crate::store::{ClaimId, ClaimRef, Mode, Standing};

impl Shared {
    /// What a claim waits for, by its last look.
    pub(super) fn blocker_of(&self, claim: ClaimId) -> Option<Blocker> {
        let book = self.claims.lock();
        book.known.get(&claim)?.waiting.as_ref().map(|waiting| waiting.blocker.clone())
    }

    /// Asks whether permits are free: by those who may hold them, the one before it and its own, however long the line is.
    pub(super) async fn ask_permits(
        self: &Arc<Self>,
        claim: &ClaimRef,
        seat: &Arc<LockKey>,
        revision: i64,
        sessions: (&Arc<Session>, &Arc<Session>),
    ) -> Result<Standing, Failed> {
        let LockKey { line, key, .. } = &**seat;
        let firsts = txn::read_firsts(line, enough_of(claim.claim.kind), revision);
        let reading =
            TxnRequest { success: vec![txn::read(key), firsts, txn::read_before(line, revision)], ..TxnRequest::default() };
        let response = self.txn(reading, Again::Freely).await?;
        let seen = txn::revision_of(&response);
        let entries = Entry::read_all(txn::keys_of(response))?;
        self.judged(claim, seat, revision, sessions, (&entries, seen)).await
    }

    /// Asks whether all writers before a reader are gone. It knows them from its first look, and nobody ever comes before it: so
    /// the line is not read again, unless one of them has become something else.
    pub(super) async fn ask_writers(
        self: &Arc<Self>,
        claim: &ClaimRef,
        seat: &Arc<LockKey>,
        revision: i64,
        (session, full): (&Arc<Session>, &Arc<Session>),
    ) -> Result<Standing, Failed> {
        let LockKey { line, key, .. } = &**seat;
        let read = vec![txn::read_until(line, revision)];
        let mut asking = TxnRequest { success: read.clone(), ..TxnRequest::default() };
        let writers = match self.blocker_of(claim.claim.id) {
            Some(Blocker::Writers(writers)) if writers.len() <= LOOKS => writers,
            _ => Vec::new(),
        };
        if let Some((last, made)) = writers.last() {
            let still = TxnRequest {
                compare: vec![txn::made_at(key, revision), txn::made_at(last, *made)],
                success: vec![txn::read(key), txn::read_first(line), txn::read(last)],
                failure: read,
            };
            let mut all_gone = vec![txn::made_at(key, revision)];
            all_gone.extend(writers.iter().map(|(writer, _)| txn::made_at(writer, 0)));
            asking = TxnRequest { compare: all_gone, success: vec![txn::read(key)], failure: vec![txn::nested(still)] };
        }
        let response = self.txn(asking, Again::Freely).await?;
        let seen = txn::revision_of(&response);
        let is_there = txn::nested_of(&response).is_some_and(|still| still.succeeded);
        let entries = Entry::read_all(txn::keys_of(response))?;
        if !is_there {
            return self.judged(claim, seat, revision, (session, full), (&entries, seen)).await;
        }
        let is_writer = |entry: &Entry| entry.mode != Mode::Shared && entry.purpose != Purpose::Sealed;
        if writers.last().is_some_and(|(last, _)| entries.iter().any(|entry| entry.key == *last && is_writer(entry))) {
            self.still_waits(&claim.claim, seat, revision, session, Blocker::Writers(writers), (&entries, seen));
            return Ok(Standing::Waiting(place(session, &entries)));
        }
        let (entries, seen) = self.read_line(line).await?;
        self.judged(claim, seat, revision, (session, full), (&entries, seen)).await
    }
}
