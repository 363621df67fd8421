//! Where a waiting claim stands, by as little of its line as decides it. A line may be long.

use super::backend::Backend;
use super::claims::Slot;
use super::client::cluster::Failed;
use super::client::proto::TxnRequest;
use super::client::txn;
use super::entry::{Entry, Purpose, Snapshot};
use super::lines::Lines;
use super::queue_rules::{Blocker, Verdict, enough_of, verdict};
use crate::error::Result;
use crate::store::{ClaimId, Kind, Mode};

/// How many keys are compared or read in one transaction; servers take 128 operations.
pub(super) const MANY: usize = 100;

/// What is known of a waiter before its line is read.
pub(super) struct Waiter {
    pub(super) slot: Slot,
    kind: Kind,
    mode: Mode,
    /// What it waited for when the line was last read; none where that is not known.
    blocker: Option<Blocker>,
    /// Whether its watch has reported since that it is worth looking.
    is_woken: bool,
}

/// Where a waiter stands.
pub(super) enum Position {
    Held,
    Blocked(Blocker, Snapshot),
    Sealed,
    /// Its key is not there any more.
    Missing,
}

impl Backend {
    /// A claim of ours, as a waiter.
    pub(super) fn waiter(&self, claim: ClaimId) -> Option<Waiter> {
        let claims = self.claims.lock();
        let own = claims.own.get(&claim)?;
        let waiting = own.waiting.as_ref();
        Some(Waiter {
            slot: own.slot.clone(),
            kind: own.kind,
            mode: own.mode,
            blocker: waiting.map(|waiting| waiting.blocker.clone()),
            is_woken: waiting.is_some_and(|waiting| waiting.is_woken),
        })
    }
}

impl Lines {
    /// Reads where a waiter stands.
    pub(super) async fn position(&self, waiter: &Waiter) -> Result<Position, Failed> {
        match waiter.mode {
            Mode::Exclusive => self.position_of_writer(waiter).await,
            Mode::Shared => self.position_of_reader(waiter).await,
            Mode::Permits(_) => self.position_for_permits(waiter).await,
        }
    }

    async fn position_of_writer(&self, waiter: &Waiter) -> Result<Position, Failed> {
        let Slot { key, revision, .. } = &waiter.slot;
        let is_first = TxnRequest {
            compare: vec![
                waiter.slot.is_there(),
                txn::none_before(&key.line, *revision),
            ],
            success: vec![txn::look(&key.bytes)],
            failure: vec![
                txn::read(&key.bytes),
                txn::read_first(&key.line),
                txn::read_before(&key.line, *revision),
            ],
        };
        // Mostly the key before it is still there. That is quickly compared: to find the first key
        // the server passes the whole line.
        let response = match &waiter.blocker {
            Some(Blocker::Key(before, created)) if !waiter.is_woken => {
                let waits = TxnRequest {
                    compare: vec![waiter.slot.is_there(), txn::created_at(before, *created)],
                    success: vec![txn::read_first(&key.line)],
                    failure: vec![txn::nested(is_first)],
                };
                let response = self.txn(waits).await?;
                if response.succeeded {
                    let line = Snapshot::of(response)?;
                    let is_sealed = line
                        .first()
                        .is_some_and(|first| first.purpose == Purpose::Sealed);
                    let blocker = Blocker::Key(before.clone(), *created);
                    return Ok(if is_sealed {
                        Position::Sealed
                    } else {
                        Position::Blocked(blocker, line)
                    });
                }
                txn::unnested(response)
            }
            _ => self.txn(is_first).await?,
        };
        if response.succeeded {
            Ok(Position::Held)
        } else {
            Ok(position_in(Snapshot::of(response)?, &waiter.slot))
        }
    }

    /// Reads the claims that may hold permits, the one before ours, and ours, however long the line
    /// is.
    async fn position_for_permits(&self, waiter: &Waiter) -> Result<Position, Failed> {
        let Slot { key, revision, .. } = &waiter.slot;
        let firsts = txn::read_firsts(&key.line, enough_of(waiter.kind), *revision);
        let before = txn::read_before(&key.line, *revision);
        let reads = vec![txn::read(&key.bytes), firsts, before];
        Ok(position_in(self.read(reads).await?, &waiter.slot))
    }

    /// Compares whether all writers before a reader are gone. They are known from its first look,
    /// and no key ever comes before it: so the line is not read again, unless one of them has
    /// become something else.
    async fn position_of_reader(&self, waiter: &Waiter) -> Result<Position, Failed> {
        let Slot { key, revision, .. } = &waiter.slot;
        let read = vec![txn::read_until(&key.line, *revision)];
        let writers = match &waiter.blocker {
            Some(Blocker::Writers(writers)) if writers.len() <= MANY => writers.as_slice(),
            _ => &[],
        };
        let Some((last, created)) = writers.last() else {
            return Ok(position_in(self.read(read).await?, &waiter.slot));
        };
        let last_is_there = TxnRequest {
            compare: vec![waiter.slot.is_there(), txn::created_at(last, *created)],
            success: vec![
                txn::read(&key.bytes),
                txn::read_first(&key.line),
                txn::read(last),
            ],
            failure: read,
        };
        let mut all_gone = vec![waiter.slot.is_there()];
        all_gone.extend(writers.iter().map(|(writer, _)| txn::created_at(writer, 0)));
        let failure = vec![txn::nested(last_is_there)];
        let response = self
            .txn(TxnRequest {
                compare: all_gone,
                success: vec![txn::read(&key.bytes)],
                failure,
            })
            .await?;
        let last_is_there = txn::nested_of(&response).is_some_and(|nested| nested.succeeded);
        let line = Snapshot::of(response)?;
        if !last_is_there {
            return Ok(position_in(line, &waiter.slot));
        }
        let is_writer =
            |entry: &Entry| entry.mode != Mode::Shared && entry.purpose != Purpose::Sealed;
        if line
            .entries
            .iter()
            .any(|entry| entry.key == *last && is_writer(entry))
        {
            return Ok(Position::Blocked(Blocker::Writers(writers.to_vec()), line));
        }
        Ok(position_in(self.read_line(&key.line).await?, &waiter.slot))
    }
}

/// Where a claim stands in this part of its line.
fn position_in(line: Snapshot, slot: &Slot) -> Position {
    let at = line.position(&slot.key.bytes).filter(|at| {
        line.entries
            .get(*at)
            .is_some_and(|own| own.revision == slot.revision)
    });
    match at.map(|at| verdict(&line.entries, at)) {
        None => Position::Missing,
        Some(Verdict::Held) => Position::Held,
        Some(Verdict::Sealed) => Position::Sealed,
        Some(Verdict::Blocked(blocker)) => Position::Blocked(blocker, line),
    }
}
