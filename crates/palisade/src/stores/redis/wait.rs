//! The inbox: the servers' pushes to this client.

use std::sync::Weak;

use super::backend::Backend;
use super::channels::Waiters;
use super::client::PushHandler;
use super::line::{self, Push};
use super::release::repeat_recent;
use super::settings::Format;
use super::{latch, redisson};
use crate::fence::Fence;
use crate::store::{ClaimId, ClaimRef};

pub(super) struct Inbox(Weak<Backend>);

impl Inbox {
    pub(super) fn of(backend: &Weak<Backend>) -> Inbox {
        Inbox(Weak::clone(backend))
    }
}

impl PushHandler for Inbox {
    fn message(&self, channel: &[u8], payload: &[u8]) {
        let Some(backend) = self.0.upgrade() else {
            return;
        };
        if channel.starts_with(b"__keyspace@") {
            backend.channels.key_changed(channel, payload, &backend);
        } else if backend.settings.format == Format::Redisson
            && channel.starts_with(redisson::CHANNELS)
        {
            redisson::announced(&backend, channel, payload);
        } else if channel.ends_with(latch::CHANNELS_END) {
            backend.channels.announced(channel, Waiters::All, &backend);
        } else {
            backend.pushed(payload);
        }
    }

    fn contact_lost(&self) {
        if let Some(backend) = self.0.upgrade()
            && let Some(client) = backend.handle.get()
        {
            client.contact_lost();
        }
    }

    fn contact_regained(&self) {
        let Some(backend) = self.0.upgrade() else {
            return;
        };
        if let Some(client) = backend.handle.get() {
            client.contact_regained();
        }
        repeat_recent(&backend);
    }
}

impl Backend {
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

    /// Whether a pushed grant needs no further check: replicas need not have it, and its fence is
    /// above all that were seen.
    fn is_safe(&self, claim: ClaimId, fence: Fence) -> bool {
        if self.client.needs_replicas() {
            return false;
        }
        let waited = self.waiting().remove(&claim);
        waited.is_some_and(|claim| self.rollback.accept(&claim.name, claim.mode, fence))
    }

    /// A claim has ended. With a fence it is a grant that has ended, perhaps long ago: the claim
    /// may wait again.
    pub(super) fn stopped_waiting(&self, ended: &ClaimRef) {
        if ended.fence.is_none() {
            self.waiting().remove(&ended.claim.id);
        }
    }
}
