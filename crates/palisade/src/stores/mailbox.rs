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

/// A push that is put back unless somebody has seen to it.
#[cfg(feature = "etcd")]
pub(super) struct PutsBack<'a> {
    mailbox: &'a Mailbox,
    woken: Option<Woken>,
}

#[cfg(feature = "etcd")]
impl<'a> PutsBack<'a> {
    pub(super) fn new(mailbox: &'a Mailbox, woken: Woken) -> PutsBack<'a> {
        PutsBack { mailbox, woken: Some(woken) }
    }

    pub(super) fn seen_to(mut self) {
        self.woken = None;
    }
}

#[cfg(feature = "etcd")]
impl Drop for PutsBack<'_> {
    fn drop(&mut self) {
        if let Some(woken) = self.woken.take() {
            self.mailbox.push(woken);
        }
    }
}
