//! What a store tells its client without being asked, kept until the core takes it up.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::store::Event;

/// What one client must hear of, in order.
#[derive(Default)]
pub(super) struct Events {
    events: Mutex<VecDeque<Event>>,
    arrived: Notify,
}

impl Events {
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
