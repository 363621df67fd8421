//! The channels that claims wait on for a peer's lock: those of keyspace events, on a server that
//! announces the end of each key, and those on which Redisson announces a release.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::backend::Backend;
use super::client::Server;
use crate::store::ClaimId;

/// How often subscriptions without waiters are ended: after one to two such periods.
const SWEEP: Duration = Duration::from_millis(500);

/// The channels on which claims of this client wait.
#[derive(Default)]
pub(super) struct Channels {
    watched: Mutex<HashMap<String, Watched>>,
    /// Whether a task ends subscriptions without waiters.
    sweeping: AtomicBool,
    /// How many announcements there were. No count of a channel is one of an earlier subscription.
    announcements: AtomicU64,
}

struct Watched {
    server: Arc<Server>,
    /// The number of its last announcement, or of its beginning.
    changes: u64,
    /// The claims that ask again at the next change.
    waiting: HashSet<ClaimId>,
    /// Told of each announcement, while any task listens.
    listeners: Weak<Notify>,
    /// Whether no claim waited at the last sweep.
    idle: bool,
}

/// Which waiters of this client an announcement wakes.
#[derive(Clone, Copy)]
pub(super) enum Waiters {
    /// One alone can hold then. If its caller leaves in that very moment, the others ask by the
    /// clock.
    One,
    All,
}

impl Channels {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> u64 {
        self.announcements.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of the channel's last announcement, if it is watched: to be read before a claim
    /// is sent.
    pub(super) fn changes(&self, channel: &str) -> Option<u64> {
        self.lock()
            .get(channel)
            .filter(|watched| !watched.server.is_closed())
            .map(|watched| watched.changes)
    }

    /// A claim was sent when this was the last announcement, and found the name taken: it is asked
    /// for again at the next one.
    pub(super) fn busy(
        &self,
        channel: &str,
        server: &Arc<Server>,
        claim: ClaimId,
        changes: Option<u64>,
        backend: &Arc<Backend>,
    ) {
        let mut keys = self.lock();
        match keys.get_mut(channel) {
            Some(watched) if watched.is_on(server) => {
                watched.idle = false;
                if changes.is_some_and(|changes| changes == watched.changes) {
                    watched.waiting.insert(claim);
                } else {
                    drop(keys);
                    backend.ask_again([claim]);
                }
            }
            _ => {
                // The claims that waited on another server, before the key moved.
                let mut waiting = keys
                    .remove(channel)
                    .map_or_else(HashSet::new, Watched::moved);
                waiting.insert(claim);
                keys.insert(
                    channel.to_owned(),
                    Watched {
                        server: Arc::clone(server),
                        changes: self.count(),
                        waiting,
                        listeners: Weak::new(),
                        idle: false,
                    },
                );
                drop(keys);
                tokio::spawn(subscribe(
                    channel.to_owned(),
                    Arc::clone(server),
                    Arc::clone(backend),
                ));
            }
        }
    }

    /// Announcements of a channel, for as long as the caller keeps the value. The first comes when
    /// the channel is watched, if it was not.
    pub(super) fn listen(
        &self,
        channel: &str,
        server: &Arc<Server>,
        backend: &Arc<Backend>,
    ) -> Arc<Notify> {
        let mut keys = self.lock();
        if let Some(watched) = keys.get_mut(channel)
            && watched.is_on(server)
        {
            let listeners = watched.listeners.upgrade().unwrap_or_default();
            watched.listeners = Arc::downgrade(&listeners);
            return listeners;
        }
        let listeners = Arc::default();
        keys.insert(
            channel.to_owned(),
            Watched {
                server: Arc::clone(server),
                changes: self.count(),
                waiting: HashSet::new(),
                listeners: Arc::downgrade(&listeners),
                idle: false,
            },
        );
        drop(keys);
        let (server, backend) = (Arc::clone(server), Arc::clone(backend));
        tokio::spawn(subscribe(channel.to_owned(), server, backend));
        listeners
    }

    /// Takes a keyspace event: one about the end of a key wakes all claims that wait for it.
    pub(super) fn key_changed(&self, channel: &[u8], event: &[u8], backend: &Backend) {
        if matches!(
            event,
            b"del" | b"expired" | b"evicted" | b"rename_from" | b"move_from"
        ) {
            self.announced(channel, Waiters::All, backend);
        }
    }

    /// Takes an announcement.
    pub(super) fn announced(&self, channel: &[u8], waiters: Waiters, backend: &Backend) {
        if let Ok(channel) = std::str::from_utf8(channel) {
            self.wake(channel, waiters, backend);
        }
    }

    /// The server has ended a subscription by itself: the slot of the channel has moved.
    pub(super) fn ended(&self, channel: &[u8], backend: &Backend) {
        let Ok(channel) = std::str::from_utf8(channel) else {
            return;
        };
        let Some(ended) = self.lock().remove(channel) else {
            return;
        };
        tokio::spawn(leave(Arc::clone(&ended.server), channel.to_owned(), false));
        backend.ask_again(ended.moved());
    }

    fn wake(&self, channel: &str, waiters: Waiters, backend: &Backend) {
        let mut keys = self.lock();
        let Some(watched) = keys.get_mut(channel) else {
            return;
        };
        watched.changes = self.count();
        if let Some(listeners) = watched.listeners.upgrade() {
            listeners.notify_waiters();
        }
        let woken = match waiters {
            Waiters::All => std::mem::take(&mut watched.waiting),
            Waiters::One => {
                let is_wanted = |claim: &&ClaimId| backend.wants(**claim);
                let woken = watched.waiting.iter().find(is_wanted).copied();
                woken.iter().for_each(|claim| {
                    watched.waiting.remove(claim);
                });
                woken.into_iter().collect()
            }
        };
        drop(keys);
        backend.ask_again(woken);
    }

    /// How many claims wait for a channel; `None` when it is not watched.
    #[cfg(test)]
    pub(super) fn waiting(&self, channel: &str) -> Option<usize> {
        self.lock()
            .get(channel)
            .map(|watched| watched.waiting.len())
    }

    /// Ends the subscriptions that no claim has waited for since the last sweep.
    pub(super) async fn sweep(&self, backend: &Backend) {
        let mut leaving = Vec::new();
        self.lock().retain(|channel, watched| {
            if watched.server.is_closed() {
                return false;
            }
            watched.waiting.retain(|claim| backend.wants(*claim));
            let is_used = !watched.waiting.is_empty() || watched.listeners.strong_count() > 0;
            if is_used || !std::mem::replace(&mut watched.idle, true) {
                return true;
            }
            let (server, channel) = (Arc::clone(&watched.server), channel.clone());
            let sharded = backend.is_sharded();
            let mut leave = Box::pin(leave(server, channel, sharded));
            // Sent under the lock: a new subscription is sent after it.
            let _ = leave.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            leaving.push(leave);
            false
        });
        for leave in leaving {
            leave.await;
        }
    }

    /// Starts the task that sweeps, unless it runs. It ends when no key is watched.
    fn sweep_from_now_on(&self, backend: &Arc<Backend>) {
        if self.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let backend = Arc::downgrade(backend);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(backend) = backend.upgrade() else {
                    return;
                };
                backend.channels.sweep(&backend).await;
                let keys = backend.channels.lock();
                if keys.is_empty() {
                    // Under the lock: a subscription made later starts another task.
                    backend.channels.sweeping.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }
}

/// Subscribes to a channel. What it announces may have happened before that, so all claims that wait
/// on it ask again.
async fn subscribe(channel: String, server: Arc<Server>, backend: Arc<Backend>) {
    let mut subscribed = server.subscribe(&channel).await;
    if subscribed.is_ok() && backend.is_sharded() {
        // Which of both a peer publishes on, its version does not tell. A server before 7.0 has the
        // plain one alone.
        match server.subscribe_sharded(&channel).await {
            Err(error) if server.is_closed() => subscribed = Err(error),
            Err(error) => tracing::debug!(%error, "a channel cannot be watched in its shard"),
            Ok(()) => {}
        }
    }
    match subscribed {
        Ok(()) => backend.channels.sweep_from_now_on(&backend),
        Err(error) => {
            tracing::debug!(%error, "a channel cannot be watched");
            // Another server may have the channel by now.
            let mut keys = backend.channels.lock();
            if keys
                .get(&channel)
                .is_some_and(|watched| Arc::ptr_eq(&watched.server, &server))
            {
                keys.remove(&channel);
            }
        }
    }
    backend.channels.wake(&channel, Waiters::All, &backend);
}

impl Watched {
    fn is_on(&self, server: &Server) -> bool {
        !self.server.is_closed() && self.server.address == server.address
    }

    /// The claims that wait. They ask where the key is now.
    fn moved(self) -> HashSet<ClaimId> {
        self.waiting
    }
}

/// Ends a subscription. Both requests are sent when this is first polled.
async fn leave(server: Arc<Server>, channel: String, sharded: bool) {
    if sharded {
        let _ = tokio::join!(
            server.unsubscribe(&channel),
            server.unsubscribe_sharded(&channel)
        );
    } else {
        let _ = server.unsubscribe(&channel).await;
    }
}

impl Backend {
    fn ask_again(&self, claims: impl IntoIterator<Item = ClaimId>) {
        if let Some(client) = self.handle.get() {
            claims.into_iter().for_each(|claim| client.ask_again(claim));
        }
    }
}
