//! How the lines tell a client what it did not ask for.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::store::Event;

/// What one client must hear of.
#[derive(Default)]
pub(super) struct Inbox {
    events: Mutex<VecDeque<Event>>,
    arrived: Notify,
}

impl Inbox {
    pub(super) fn push(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        self.arrived.notify_waiters();
    }

    /// Waits for an event. Dropped half-way, the event stays for the next call.
    pub(super) async fn next(&self) -> Event {
        loop {
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if let Some(event) = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                return event;
            }
            arrived.await;
        }
    }
}
