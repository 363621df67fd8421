//! Keys of claims that have ended here, but not yet in the store.
//!
//! A session lives by its other claims. So a key whose deletion did not arrive would stay for as long as this client holds
//! anything, and keep everybody else out: it is deleted as soon as the store can be reached again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::client::cluster::Again;
use super::client::proto::TxnRequest;
use super::client::txn;
use super::key_pool::LockKey;
use super::shared::Shared;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::ClaimId;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// How many keys are deleted in one transaction; servers take 128.
const DELETES: usize = 100;

/// Keys that are to be deleted.
#[derive(Default)]
pub(super) struct PendingDeletes {
    list: Mutex<List>,
    /// A deletion was answered.
    answered: Notify,
}

#[derive(Default)]
struct List {
    /// With the claim, and the time before which it is too early.
    keys: HashMap<Vec<u8>, (ClaimId, Moment)>,
    /// Those whose deletion is under way.
    going: HashSet<Vec<u8>>,
    is_attended: bool,
}

impl Shared {
    fn leaving(&self) -> MutexGuard<'_, List> {
        self.leaving.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a key off the list because its claim asks again, after a deletion that is under way; whether it was on it.
    pub(super) async fn stays(&self, seat: &LockKey) -> bool {
        loop {
            let mut answered = std::pin::pin!(self.leaving.answered.notified());
            answered.as_mut().enable();
            {
                let mut list = self.leaving();
                if !list.going.contains(&seat.key) {
                    return list.keys.remove(&seat.key).is_some();
                }
            }
            answered.await;
        }
    }

    /// Deletes the key of a claim that has ended, after this time and until it is done. Nobody else ever has a key of this claim:
    /// it is not used again.
    pub(super) fn delete_later(self: &Arc<Self>, claim: ClaimId, seat: &Arc<LockKey>, after: Duration) {
        seat.sent();
        let mut leaving = self.leaving();
        let due = BootClock.now() + after;
        // The later one: what was asked for then may arrive until then.
        leaving.keys.entry(seat.key.clone()).and_modify(|(_, at)| *at = (*at).max(due)).or_insert((claim, due));
        if !std::mem::replace(&mut leaving.is_attended, true) {
            self.cluster.lanes.spawn(attend(Arc::downgrade(self)));
        }
    }

    /// Deletes those that are due; `false` when nothing is left to be deleted.
    async fn delete_due(&self) -> bool {
        loop {
            let now = BootClock.now();
            let (due, is_left): (Vec<Vec<u8>>, bool) = {
                let mut leaving = self.leaving();
                leaving.is_attended = !leaving.keys.is_empty();
                let due = leaving.keys.iter().filter(|(_, (_, after))| *after <= now);
                let due: Vec<Vec<u8>> = due.take(DELETES).map(|(key, _)| key.clone()).collect();
                leaving.going.extend(due.iter().cloned());
                (due, leaving.is_attended)
            };
            if due.is_empty() {
                return is_left;
            }
            let deletes = due.iter().map(|key| txn::delete(key)).collect();
            let deleting = TxnRequest { success: deletes, ..TxnRequest::default() };
            let answer = self.txn(deleting, Again::Freely).await;
            let again = matches!(&answer, Err(failed) if failed.error.retry_may_help());
            let left: Vec<ClaimId> = {
                let mut leaving = self.leaving();
                leaving.going.clear();
                // What the store refuses it will refuse again.
                let left = if again { Vec::new() } else { due };
                // Unless it is to be deleted once more, later.
                let is_done = |key: &&Vec<u8>| leaving.keys.get(*key).is_some_and(|(_, at)| *at <= now);
                let done: Vec<Vec<u8>> = left.iter().filter(is_done).cloned().collect();
                done.iter().filter_map(|key| leaving.keys.remove(key)).map(|(claim, _)| claim).collect()
            };
            self.claims.lock().seats.left(&left);
            self.leaving.answered.notify_waiters();
            if again {
                return true;
            }
        }
    }
}

async fn attend(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(PAUSE.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        let Some(shared) = shared.upgrade() else { return };
        if !shared.delete_due().await {
            return;
        }
    }
}
