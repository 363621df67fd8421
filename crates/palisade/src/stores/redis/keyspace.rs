//! Keyspace events: what a server tells of the end of a peer's lock, where it was told to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::link::Link;

/// The keys that somebody here waits for, by their channels.
#[derive(Default)]
pub(super) struct Keyspace(Mutex<HashMap<String, Watched>>);

struct Watched {
    changed: Arc<Notify>,
    link: Arc<Link>,
    watchers: usize,
}

/// One waiter's look at a key. The subscription ends with the last of them.
pub(super) struct Watch<'a> {
    keyspace: &'a Keyspace,
    channel: String,
    pub(super) changed: Arc<Notify>,
    /// Whether it had to be subscribed just now: the key may have changed before.
    pub(super) new: bool,
}

impl Keyspace {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key by the link to its server. `None` when that cannot be.
    pub(super) async fn watch(&self, channel: String, link: &Arc<Link>) -> Option<Watch<'_>> {
        if let Some(watched) = self.lock().get_mut(&channel)
            && !watched.link.is_broken()
        {
            watched.watchers += 1;
            let changed = Arc::clone(&watched.changed);
            return Some(Watch { keyspace: self, channel, changed, new: false });
        }
        link.subscribe(&channel).await.ok()?;
        let mut keys = self.lock();
        let watched = keys.entry(channel.clone()).or_insert_with(|| Watched {
            changed: Arc::default(),
            link: Arc::clone(link),
            watchers: 0,
        });
        watched.link = Arc::clone(link);
        watched.watchers += 1;
        let changed = Arc::clone(&watched.changed);
        drop(keys);
        Some(Watch { keyspace: self, channel, changed, new: true })
    }

    /// A message came: what ends a lock wakes everybody who waits for it.
    pub(super) fn heard(&self, channel: &[u8], event: &[u8]) {
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        if !matches!(event, b"del" | b"unlink" | b"expired" | b"evicted" | b"rename_from" | b"move_from") {
            return;
        }
        if let Some(watched) = self.lock().get(channel) {
            watched.changed.notify_waiters();
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut keys = self.keyspace.lock();
        let Some(watched) = keys.get_mut(&self.channel) else { return };
        watched.watchers -= 1;
        if watched.watchers == 0
            && let Some(watched) = keys.remove(&self.channel)
        {
            let channel = std::mem::take(&mut self.channel);
            drop(keys);
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { watched.link.unsubscribe(&channel).await });
            }
        }
    }
}
