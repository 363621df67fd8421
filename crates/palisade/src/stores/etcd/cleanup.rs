//! Keys of claims that have ended here, but not yet in the store.
//!
//! A session lives by its other claims. So a key whose deletion did not arrive would stay for as
//! long as this client holds anything, and keep everyone else out: it is deleted as soon as the
//! store can be reached again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::backend::Backend;
use super::client::proto::RequestOp;
use super::client::{spawn, txn};
use super::key_pool::LockKey;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::ClaimId;
use crate::stores::kit::session::cleanup::{Attempt, until_done};

/// How many keys are deleted in one transaction; servers take 128 operations.
const DELETES: usize = 100;

#[derive(Default)]
pub(super) struct PendingDeletes {
    list: Mutex<List>,
    /// A deletion was answered.
    answered: Notify,
}

#[derive(Default)]
struct List {
    keys: HashMap<Vec<u8>, PendingDelete>,
    /// Keys whose deletion is in flight.
    in_flight: HashSet<Vec<u8>>,
    is_running: bool,
}

#[derive(Clone)]
struct PendingDelete {
    claim: ClaimId,
    /// The revision that created the key; unknown for a claim that was never answered. Its key is
    /// not used by any other claim.
    revision: Option<i64>,
    /// Before this time it is too early: the claim may yet arrive.
    due: Moment,
}

impl PendingDelete {
    fn request(&self, key: &[u8]) -> RequestOp {
        match self.revision {
            Some(revision) => txn::nested(txn::only_if(
                txn::created_at(key, revision),
                txn::delete(key),
            )),
            None => txn::delete(key),
        }
    }
}

impl PendingDeletes {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a key off the list because its claim is sent again; after a deletion that is in
    /// flight.
    pub(super) async fn cancel(&self, key: &LockKey) {
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            answered.as_mut().enable();
            {
                let mut list = self.lock();
                if !list.in_flight.contains(&key.bytes) {
                    list.keys.remove(&key.bytes);
                    return;
                }
            }
            answered.await;
        }
    }
}

impl Backend {
    /// Deletes the key of a claim that has ended, after this time and until it is done.
    pub(super) fn delete_later(
        self: &Arc<Self>,
        claim: ClaimId,
        key: &Arc<LockKey>,
        revision: Option<i64>,
        after: Duration,
    ) {
        // The key is not used again.
        key.write_begins();
        let due = BootClock.now() + after;
        let mut list = self.deletes.lock();
        let pending = list.keys.entry(key.bytes.clone()).or_insert(PendingDelete {
            claim,
            revision,
            due,
        });
        // The later time, and the weaker condition: an earlier request for either may arrive until
        // then.
        pending.due = pending.due.max(due);
        pending.revision = pending.revision.filter(|known| Some(*known) == revision);
        if !std::mem::replace(&mut list.is_running, true) {
            let weak = Arc::downgrade(self);
            spawn(until_done(move || delete_due(weak.clone())));
        }
    }

    /// Deletes the keys that are due; `false` when no others are left.
    async fn delete_due(&self) -> bool {
        loop {
            let now = BootClock.now();
            let (due, is_left) = {
                let mut list = self.deletes.lock();
                list.is_running = !list.keys.is_empty();
                let due = list
                    .keys
                    .iter()
                    .filter(|(_, pending)| pending.due <= now)
                    .take(DELETES);
                let due: Vec<(Vec<u8>, PendingDelete)> = due
                    .map(|(key, pending)| (key.clone(), pending.clone()))
                    .collect();
                list.in_flight
                    .extend(due.iter().map(|(key, _)| key.clone()));
                (due, list.is_running)
            };
            if due.is_empty() {
                return is_left;
            }
            let deletes = due
                .iter()
                .map(|(key, pending)| pending.request(key))
                .collect();
            let outcome = self.lines.txn(txn::always(deletes)).await;
            // A request that the store refuses is refused again.
            let retry = matches!(&outcome, Err(failed) if failed.error.retry_may_help());
            let mut done = Vec::new();
            {
                let mut list = self.deletes.lock();
                list.in_flight.clear();
                for (key, _) in due.iter().filter(|_| !retry) {
                    // Unless it is to be deleted once more, later.
                    if list.keys.get(key).is_some_and(|pending| pending.due <= now) {
                        done.extend(list.keys.remove(key).map(|pending| pending.claim));
                    }
                }
            }
            self.keys.discard(&done);
            self.deletes.answered.notify_waiters();
            if retry {
                return true;
            }
        }
    }
}

async fn delete_due(backend: Weak<Backend>) -> Attempt {
    match backend.upgrade() {
        Some(backend) if backend.delete_due().await => Attempt::Again,
        _ => Attempt::Done,
    }
}
