//! Keyspace events: what a server tells of the end of a peer's lock, where it was told to.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::sync::Notify;

use super::super::client::link::Link;
use crate::store::ClaimId;

/// The keys that somebody here waits for, by their channels.
#[derive(Default)]
pub(in crate::stores::redis) struct Keyspace(Mutex<HashMap<String, Watched>>);

struct Watched {
    link: Arc<Link>,
    changed: Arc<Notify>,
    /// How often the key was told to be free.
    changes: u64,
    /// What `changes` was when each busy claim was last sent: what came since is not to be waited for.
    asked: HashMap<ClaimId, u64>,
    watchers: usize,
    /// Whether nobody has watched since the last sweep.
    idle: bool,
}

impl Keyspace {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the key was told to be free, if it is watched: to be taken before a claim is sent.
    pub(in crate::stores::redis) fn changes(&self, channel: &str) -> Option<u64> {
        self.lock().get(channel).filter(|watched| !watched.link.is_broken()).map(|watched| watched.changes)
    }

    /// A claim was sent when the count was this, and found the key taken.
    pub(in crate::stores::redis) fn busy(&self, channel: &str, claim: ClaimId, changes: u64) {
        if let Some(watched) = self.lock().get_mut(channel) {
            watched.asked.insert(claim, changes);
        }
    }

    /// Waits until the key may be free. Returns at once when it had to be subscribed, since it may have changed before; `None`
    /// when it cannot be watched.
    pub(in crate::stores::redis) async fn freed(&self, channel: &str, link: &Arc<Link>, claim: ClaimId) -> Option<()> {
        let known = self.lock().get(channel).is_some_and(|watched| !watched.link.is_broken());
        if !known {
            link.subscribe(channel).await.ok()?;
            let mut keys = self.lock();
            let fresh = Watched {
                link: Arc::clone(link),
                changed: Arc::default(),
                changes: 0,
                asked: HashMap::new(),
                watchers: 0,
                idle: false,
            };
            let watched = keys.entry(channel.to_owned()).or_insert(fresh);
            watched.link = Arc::clone(link);
            watched.idle = false;
            return Some(());
        }
        let _watching = Watching::begin(self, channel, claim)?;
        loop {
            let changed = self.lock().get(channel).map(|watched| Arc::clone(&watched.changed))?;
            let mut changed = pin!(changed.notified());
            changed.as_mut().enable();
            {
                let keys = self.lock();
                let watched = keys.get(channel)?;
                if watched.asked.get(&claim).is_none_or(|asked| *asked != watched.changes) {
                    return Some(());
                }
            }
            tokio::select! {
                () = changed => {}
                () = link.ended() => return None,
            }
        }
    }

    /// A message came: what ends a lock wakes everybody who waits for it.
    pub(in crate::stores::redis) fn heard(&self, channel: &[u8], event: &[u8]) {
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        if !matches!(event, b"del" | b"expired" | b"evicted" | b"rename_from" | b"move_from") {
            return;
        }
        if let Some(watched) = self.lock().get_mut(channel) {
            watched.changes += 1;
            watched.changed.notify_waiters();
        }
    }

    /// Of how many claims something is kept for a channel; `None` when it is not watched.
    #[cfg(test)]
    pub(in crate::stores::redis) fn kept(&self, channel: &str) -> Option<usize> {
        self.lock().get(channel).map(|watched| watched.asked.len())
    }

    /// Ends the subscriptions on this link that nobody has used for a while.
    pub(in crate::stores::redis) async fn sweep(&self, link: &Arc<Link>) {
        let mut leaving = Vec::new();
        {
            let mut keys = self.lock();
            keys.retain(|channel, watched| {
                if !Arc::ptr_eq(&watched.link, link) || watched.watchers > 0 {
                    return !watched.link.is_broken();
                }
                if !std::mem::replace(&mut watched.idle, true) {
                    return true;
                }
                let (link, channel) = (Arc::clone(link), channel.clone());
                let mut leave = Box::pin(async move { link.unsubscribe(&channel).await });
                // Under the lock: whoever subscribes again does so behind it.
                let _ = leave.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                leaving.push(leave);
                false
            });
        }
        for leave in leaving {
            let _ = leave.await;
        }
    }
}

/// Counts a waiter for as long as it waits.
struct Watching<'a> {
    keyspace: &'a Keyspace,
    channel: &'a str,
    claim: ClaimId,
}

impl<'a> Watching<'a> {
    fn begin(keyspace: &'a Keyspace, channel: &'a str, claim: ClaimId) -> Option<Watching<'a>> {
        let mut keys = keyspace.lock();
        let watched = keys.get_mut(channel)?;
        watched.watchers += 1;
        watched.idle = false;
        Some(Watching { keyspace, channel, claim })
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        if let Some(watched) = self.keyspace.lock().get_mut(self.channel) {
            watched.watchers = watched.watchers.saturating_sub(1);
            // Until it is busy again it is not waited for.
            watched.asked.remove(&self.claim);
        }
    }
}
