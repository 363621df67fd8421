//! Keys of claims that have ended here, but not yet in the store.
//!
//! A session lives by its other claims. So a key whose deletion did not arrive would stay for as long as this client holds
//! anything, and keep everybody else out: it is deleted as soon as the store can be reached again.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::known::Seat;
use super::members::Again;
use super::proto::TxnRequest;
use super::shared::Shared;
use super::txn;
use crate::lease::{BootClock, Clock, Moment};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// How many keys are deleted in one transaction; servers take 128.
const DELETES: usize = 100;

/// Keys that are to be deleted, with the time before which it is too early.
#[derive(Default)]
pub(super) struct Leaving {
    keys: HashMap<Vec<u8>, Moment>,
    is_attended: bool,
}

impl Shared {
    fn leaving(&self) -> std::sync::MutexGuard<'_, Leaving> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes the key of a claim that has ended, after this time and until it is done. Nobody else ever has a key of this claim.
    pub(super) fn delete_later(self: &Arc<Self>, seat: &Arc<Seat>, after: Duration) {
        let mut leaving = self.leaving();
        leaving.keys.entry(seat.key.clone()).or_insert_with(|| BootClock.now() + after);
        if !std::mem::replace(&mut leaving.is_attended, true) {
            tokio::spawn(attend(Arc::downgrade(self)));
        }
    }

    /// Deletes those that are due; `false` when nothing is left to be deleted.
    async fn delete_due(&self) -> bool {
        loop {
            let now = BootClock.now();
            let (due, is_left): (Vec<Vec<u8>>, bool) = {
                let mut leaving = self.leaving();
                leaving.is_attended = !leaving.keys.is_empty();
                let due = leaving.keys.iter().filter(|(_, after)| **after <= now);
                (due.take(DELETES).map(|(key, _)| key.clone()).collect(), leaving.is_attended)
            };
            if due.is_empty() {
                return is_left;
            }
            let deletes = due.iter().map(|key| txn::delete(key)).collect();
            let deleting = TxnRequest { success: deletes, ..TxnRequest::default() };
            match self.txn(deleting, Again::Freely).await {
                Err(failed) if failed.error.retry_may_help() => return true,
                // What the store refuses it will refuse again.
                _ => self.leaving().keys.retain(|key, _| !due.contains(key)),
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
