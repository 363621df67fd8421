//! What is pushed to a waiting claim, kept until somebody asks.

use std::pin::pin;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::store::Woken;

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
