//! A claim that is being asked for: what the store says of it before its answer has come.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::fence::Fence;
use crate::lease::wake;

/// What the store has said of a claim that has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was granted while it waited.
    Granted(Fence),
    /// Something has changed: the store is to be asked.
    Changed,
}

/// A claim from before it is sent until it is tracked or given up.
#[derive(Default)]
pub(crate) struct Pending {
    told: Mutex<Option<Told>>,
    changed: Notify,
    settled: Notify,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Option<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was said so far: the claim is about to be sent anew.
    pub(crate) fn reset(&self) {
        *self.lock() = None;
    }

    pub(super) fn tell(&self, told: Told) {
        *self.lock() = Some(told);
        wake(|| self.changed.notify_one());
    }

    /// Completes when the store has said something since the last [`reset`](Pending::reset).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point; nothing is missed by it.
    pub(crate) async fn told(&self) {
        while self.lock().is_none() {
            self.changed.notified().await;
        }
    }

    /// Ends it, and says what was said last.
    pub(super) fn settle(&self) -> Option<Told> {
        self.settled.notify_waiters();
        self.lock().take()
    }

    /// Completes when it ends. It may have ended before: look in the registry after this is enabled.
    pub(super) fn settled(&self) -> tokio::sync::futures::Notified<'_> {
        self.settled.notified()
    }
}
