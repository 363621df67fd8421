//! A claim in flight, and the pushes about it that arrive before its answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::fence::Fence;
use crate::lease::wake;

/// A push about a claim that has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was granted while it waited.
    Granted(Fence),
    /// Something has changed: the store must be asked.
    Changed,
}

/// A claim from before it is sent until it is tracked or given up.
#[derive(Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    changed: Notify,
    settled: Notify,
}

#[derive(Default)]
struct State {
    told: Option<Told>,
    /// Nothing that is said from now on would be heard here.
    is_settled: bool,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets earlier pushes: the claim is about to be sent anew.
    pub(crate) fn reset(&self) {
        self.lock().told = None;
    }

    /// `false` when it has ended meanwhile: the claim is tracked by now, or given up.
    pub(super) fn tell(&self, told: Told) -> bool {
        let mut state = self.lock();
        if state.is_settled {
            return false;
        }
        state.told = Some(told);
        drop(state);
        wake(|| self.changed.notify_one());
        true
    }

    /// Completes when a push has arrived since the last [`reset`](Pending::reset).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point; nothing is missed by it.
    pub(crate) async fn told(&self) {
        while self.lock().told.is_none() {
            self.changed.notified().await;
        }
    }

    /// Ends it, and returns the last push.
    pub(super) fn settle(&self) -> Option<Told> {
        let mut state = self.lock();
        state.is_settled = true;
        let told = state.told.take();
        drop(state);
        self.settled.notify_waiters();
        told
    }

    /// Completes when it ends. It may have ended before: check the registry after this is enabled.
    pub(super) fn settled(&self) -> tokio::sync::futures::Notified<'_> {
        self.settled.notified()
    }
}
