//! The mailboxes of a client whose pushes come from another process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mailbox::Mailbox;
use crate::store::{ClaimId, Woken};

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
