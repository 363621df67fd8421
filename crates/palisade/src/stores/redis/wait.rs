//! The inbox: the servers' pushes to this client.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Locks;
use super::client::{Client, Purpose, PushHandler};
use super::line::{self, Push};
use crate::fence::Fence;
use crate::store::{ClaimId, ClaimRef};

/// How long the releases of the last minute may take when they are sent again.
const REPLAY_LIMIT: Duration = Duration::from_secs(30);

pub(super) struct Inbox(Weak<Locks>);

impl Inbox {
    pub(super) fn of(locks: &Weak<Locks>) -> Inbox {
        Inbox(Weak::clone(locks))
    }
}

impl PushHandler for Inbox {
    fn message(&self, channel: &[u8], payload: &[u8]) {
        let Some(locks) = self.0.upgrade() else {
            return;
        };
        if channel.starts_with(b"__keyspace@") {
            locks.keyspace.changed(channel, payload, &locks);
        } else {
            locks.pushed(payload);
        }
    }

    fn contact_lost(&self) {
        if let Some(locks) = self.0.upgrade()
            && let Some(client) = locks.handle.get()
        {
            client.contact_lost();
        }
    }

    fn contact_regained(&self, client: &Arc<Client>) {
        let Some(locks) = self.0.upgrade() else {
            return;
        };
        if let Some(client) = locks.handle.get() {
            client.contact_regained();
        }
        let releases = locks
            .release_replay
            .to_repeat()
            .into_iter()
            .map(|release| (release, REPLAY_LIMIT))
            .collect();
        let client = Arc::clone(client);
        tokio::spawn(async move { client.call_all(releases, Purpose::Requests, false).await });
    }
}

impl Locks {
    fn pushed(&self, payload: &[u8]) {
        let Some((claim, push)) = line::push(payload) else {
            tracing::warn!("a message that cannot be read came to the inbox");
            return;
        };
        let Some(client) = self.handle.get() else {
            return;
        };
        match push {
            Push::Granted(fence) if self.is_safe(claim, fence) => client.granted(claim, fence),
            // A renewal checks it.
            Push::Granted(_) => client.ask_again(claim),
            Push::Gone(why) => {
                self.waiting().remove(&claim);
                client.gone(claim, why);
            }
        }
    }

    /// Whether a pushed grant needs no further check: replicas need not have it, and its fence is above all that were seen.
    fn is_safe(&self, claim: ClaimId, fence: Fence) -> bool {
        if self.client.needs_replicas() {
            return false;
        }
        let waited = self.waiting().remove(&claim);
        waited.is_some_and(|claim| self.rollback.accept(&claim.name, claim.mode, fence))
    }

    /// A claim has ended. With a fence it is a grant that has ended, perhaps long ago: the claim may wait again.
    pub(super) fn stopped_waiting(&self, ended: &ClaimRef) {
        if ended.fence.is_none() {
            self.waiting().remove(&ended.claim.id);
        }
    }
}
