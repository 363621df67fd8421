//! Keyspace events: a server that is configured so tells of the end of a peer's lock.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::super::client::Server;
use crate::store::ClaimId;

/// How often subscriptions without waiters are ended: after one to two such periods.
const SWEEP: Duration = Duration::from_millis(500);

/// The keys that claims of this client wait for, by their channels.
#[derive(Default)]
pub(in crate::stores::redis) struct Keyspace {
    keys: Mutex<HashMap<String, Watched>>,
    /// Whether a task ends subscriptions without waiters.
    sweeping: AtomicBool,
}

struct Watched {
    server: Arc<Server>,
    changed: Arc<Notify>,
    /// How often the server told that the key is free.
    changes: u64,
    /// The value of `changes` when each busy claim was last sent: a change since then is not to be waited for.
    asked: HashMap<ClaimId, u64>,
    watchers: usize,
    /// Whether no claim has waited since the last sweep.
    idle: bool,
}

impl Keyspace {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the server told that the key is free, if it is watched: to be read before a claim is sent.
    pub(in crate::stores::redis) fn changes(&self, channel: &str) -> Option<u64> {
        self.lock().get(channel).filter(|watched| !watched.server.is_closed()).map(|watched| watched.changes)
    }

    /// A claim was sent when the count was this, and found the key taken.
    pub(in crate::stores::redis) fn busy(&self, channel: &str, claim: ClaimId, changes: u64) {
        if let Some(watched) = self.lock().get_mut(channel) {
            watched.asked.insert(claim, changes);
        }
    }

    /// Waits until the key may be free. Returns at once when it had to be subscribed, since it may have changed before; `None`
    /// when it cannot be watched.
    pub(in crate::stores::redis) async fn freed(
        self: &Arc<Self>,
        channel: &str,
        server: &Arc<Server>,
        claim: ClaimId,
    ) -> Option<()> {
        let known = self.lock().get(channel).is_some_and(|watched| !watched.server.is_closed());
        if !known {
            server.subscribe(channel).await.ok()?;
            let mut keys = self.lock();
            let fresh = Watched {
                server: Arc::clone(server),
                changed: Arc::default(),
                changes: 0,
                asked: HashMap::new(),
                watchers: 0,
                idle: false,
            };
            let watched = keys.entry(channel.to_owned()).or_insert(fresh);
            watched.server = Arc::clone(server);
            watched.idle = false;
            drop(keys);
            self.sweep_from_now_on();
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
                _ = server.ended() => return None,
            }
        }
    }

    /// A message came: one that ends a lock wakes all that wait for it.
    pub(in crate::stores::redis) fn changed(&self, channel: &[u8], event: &[u8]) {
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

    /// Starts the task that sweeps, unless it runs. It ends when no key is watched.
    fn sweep_from_now_on(self: &Arc<Self>) {
        if self.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let keyspace = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(keyspace) = keyspace.upgrade() else { return };
                keyspace.sweep().await;
                let keys = keyspace.lock();
                if keys.is_empty() {
                    // Under the lock: a subscription made later starts another task.
                    keyspace.sweeping.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    /// Ends the subscriptions that no claim has waited for since the last sweep.
    pub(in crate::stores::redis) async fn sweep(&self) {
        let mut leaving = Vec::new();
        self.lock().retain(|channel, watched| {
            if watched.server.is_closed() {
                return false;
            }
            if watched.watchers > 0 || !std::mem::replace(&mut watched.idle, true) {
                return true;
            }
            let (server, channel) = (Arc::clone(&watched.server), channel.clone());
            let mut leave = Box::pin(async move { server.unsubscribe(&channel).await });
            // Sent under the lock: a new subscription is sent after it.
            let _ = leave.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            leaving.push(leave);
            false
        });
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
            // Until it is busy again nothing is kept of it.
            watched.asked.remove(&self.claim);
        }
    }
}
