//! The inbox: what the servers push to this client, and the claims that wait for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::client::{Client, Purpose, PushHandler};
use super::line::{self, Push};
use super::release_replay::ReleaseReplay;
use super::simple::Keyspace;
use super::{Locks, renew};
use crate::store::{ByClaim, Claim, ClaimId, ClaimRef, Event, Grant, Lease, Standing, Woken};
use crate::stores::events::Events;
use crate::stores::mailbox::Mailbox;

#[derive(Default)]
pub(super) struct Inbox {
    /// The claims in line, or on their way there. A mailbox is made when a push comes or a claim waits: nearly every claim is
    /// granted at once.
    waiting: Mutex<ByClaim<Option<Arc<Mailbox>>>>,
    events: Events,
    pub(super) release_replay: ReleaseReplay,
    /// For the format `simple`.
    pub(super) keyspace: Arc<Keyspace>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, ByClaim<Option<Arc<Mailbox>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on pushes to a claim are kept.
    pub(super) fn expect(&self, claim: ClaimId) {
        self.lock().insert(claim, None);
    }

    /// A claim does not wait, or not any more.
    pub(super) fn forget(&self, claim: ClaimId) {
        self.lock().remove(&claim);
    }

    /// A claim has ended. With a fence it is a grant that has ended, perhaps long ago: the claim may wait again.
    pub(super) fn ended(&self, ended: &ClaimRef) {
        if ended.fence.is_none() {
            self.forget(ended.claim.id);
        }
    }

    fn mailbox(&self, claim: ClaimId) -> Option<Arc<Mailbox>> {
        self.lock().get_mut(&claim).map(|mailbox| Arc::clone(mailbox.get_or_insert_default()))
    }

    pub(super) async fn next_event(&self) -> Event {
        self.events.next().await
    }

    fn pushed(&self, payload: &[u8]) {
        let Some((claim, push)) = line::push(payload) else {
            tracing::warn!("a message that cannot be read came to the inbox");
            return;
        };
        let woken = match push {
            Push::Granted(fence) => Woken::Granted(fence),
            Push::Gone(why) => {
                self.events.push(Event::Gone { claim, why });
                Woken::Ask
            }
        };
        if let Some(mailbox) = self.mailbox(claim) {
            mailbox.push(woken);
        }
    }
}

impl PushHandler for Inbox {
    fn message(&self, channel: &[u8], payload: &[u8]) {
        if channel.starts_with(b"__keyspace@") {
            self.keyspace.changed(channel, payload);
        } else {
            self.pushed(payload);
        }
    }

    fn contact_lost(&self) {
        self.events.push(Event::CutOff);
    }

    fn contact_regained(&self, client: &Arc<Client>) {
        self.events.push(Event::Restored);
        let (client, releases) = (Arc::clone(client), self.release_replay.to_repeat());
        tokio::spawn(async move { client.call_all(releases, Purpose::Requests, false).await });
    }
}

/// Waits for a push to a claim in line. Dropped half-way, a push that came is found by a renewal.
pub(super) async fn wake(locks: &Arc<Locks>, claim: &Claim) -> Woken {
    let Some(mailbox) = locks.inbox.mailbox(claim.id) else { return Woken::Ask };
    let Woken::Granted(fence) = mailbox.next().await else { return Woken::Ask };
    let grant = Grant { fence, lease: Lease::of(claim.wait_lease()) };
    match renew::handed_over(locks, claim, grant).await {
        Ok(Standing::Held(_)) => {
            locks.inbox.forget(claim.id);
            Woken::Granted(fence)
        }
        Ok(_) => Woken::Ask,
        Err(error) => {
            tracing::debug!(%error, name = %claim.name, "a grant that was handed over is not safe");
            Woken::Ask
        }
    }
}
