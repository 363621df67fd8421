//! What is pushed to waiting claims, kept until somebody asks.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::store::{ClaimId, Woken};

/// What is pushed to one waiting claim.
#[derive(Default)]
pub(super) struct Mailbox {
    pushed: Mutex<Option<Woken>>,
    arrived: Notify,
}

impl Mailbox {
    pub(super) fn push(&self, woken: Woken) {
        *self.pushed.lock().unwrap_or_else(PoisonError::into_inner) = Some(woken);
        self.arrived.notify_waiters();
    }

    /// Waits for a push. Dropped half-way, the push stays for the next call.
    pub(super) async fn next(&self) -> Woken {
        loop {
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if let Some(woken) = self.pushed.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return woken;
            }
            arrived.await;
        }
    }
}

/// The mailboxes of one client's waiting claims.
#[derive(Default)]
pub(super) struct Mailboxes(Mutex<HashMap<ClaimId, Arc<Mailbox>>>);

impl Mailboxes {
    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Mailbox>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an empty mailbox; before the claim is sent, so that no push can come before it.
    pub(super) fn open(&self, claim: ClaimId) {
        self.lock().insert(claim, Arc::default());
    }

    pub(super) fn close(&self, claim: ClaimId) {
        self.lock().remove(&claim);
    }

    pub(super) fn get(&self, claim: ClaimId) -> Option<Arc<Mailbox>> {
        self.lock().get(&claim).cloned()
    }

    /// Pushes to a claim that still waits.
    pub(super) fn push(&self, claim: ClaimId, woken: Woken) {
        if let Some(mailbox) = self.get(claim) {
            mailbox.push(woken);
        }
    }
}
