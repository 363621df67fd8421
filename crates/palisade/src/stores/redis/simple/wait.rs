//! Waits for a peer's lock by keyspace events: a server that is configured for them announces the
//! end of each key.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use super::super::backend::Backend;
use super::super::client::Server;
use crate::store::ClaimId;

/// How often subscriptions without waiters are ended: after one to two such periods.
const SWEEP: Duration = Duration::from_millis(500);

/// The keys that claims of this client wait for, by their channels.
#[derive(Default)]
pub(in crate::stores::redis) struct KeyspaceEvents {
    keys: Mutex<HashMap<String, Watched>>,
    /// Whether a task ends subscriptions without waiters.
    sweeping: AtomicBool,
}

struct Watched {
    server: Arc<Server>,
    /// How often the server announced that the key is free.
    changes: u64,
    /// The claims that ask again at the next change.
    waiting: HashSet<ClaimId>,
    /// Whether no claim waited at the last sweep.
    idle: bool,
}

impl KeyspaceEvents {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the server announced that the key is free, if it is watched: to be read before a
    /// claim is sent.
    pub(in crate::stores::redis) fn changes(&self, channel: &str) -> Option<u64> {
        self.lock()
            .get(channel)
            .filter(|watched| !watched.server.is_closed())
            .map(|watched| watched.changes)
    }

    /// A claim was sent when the count was this, and found the key taken: it is asked for again
    /// when the key is free.
    pub(in crate::stores::redis) fn busy(
        &self,
        channel: &str,
        server: &Arc<Server>,
        claim: ClaimId,
        changes: Option<u64>,
        backend: &Arc<Backend>,
    ) {
        let mut keys = self.lock();
        match keys.get_mut(channel) {
            Some(watched) if !watched.server.is_closed() => {
                watched.idle = false;
                if changes.is_some_and(|changes| changes == watched.changes) {
                    watched.waiting.insert(claim);
                } else {
                    drop(keys);
                    backend.ask_again([claim]);
                }
            }
            _ => {
                let waiting = HashSet::from([claim]);
                keys.insert(
                    channel.to_owned(),
                    Watched {
                        server: Arc::clone(server),
                        changes: 0,
                        waiting,
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

    /// Takes a message: one about the end of a key wakes all claims that wait for it.
    pub(in crate::stores::redis) fn changed(
        &self,
        channel: &[u8],
        event: &[u8],
        backend: &Backend,
    ) {
        let Ok(channel) = std::str::from_utf8(channel) else {
            return;
        };
        if matches!(
            event,
            b"del" | b"expired" | b"evicted" | b"rename_from" | b"move_from"
        ) {
            self.wake(channel, backend);
        }
    }

    fn wake(&self, channel: &str, backend: &Backend) {
        let woken = self.lock().get_mut(channel).map(|watched| {
            watched.changes += 1;
            std::mem::take(&mut watched.waiting)
        });
        backend.ask_again(woken.unwrap_or_default());
    }

    /// How many claims wait for a channel; `None` when it is not watched.
    #[cfg(test)]
    pub(in crate::stores::redis) fn waiting(&self, channel: &str) -> Option<usize> {
        self.lock()
            .get(channel)
            .map(|watched| watched.waiting.len())
    }

    /// Ends the subscriptions that no claim has waited for since the last sweep.
    pub(in crate::stores::redis) async fn sweep(&self, backend: &Backend) {
        let mut leaving = Vec::new();
        self.lock().retain(|channel, watched| {
            if watched.server.is_closed() {
                return false;
            }
            watched.waiting.retain(|claim| backend.wants(*claim));
            if !watched.waiting.is_empty() || !std::mem::replace(&mut watched.idle, true) {
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
                backend.keyspace_events.sweep(&backend).await;
                let keys = backend.keyspace_events.lock();
                if keys.is_empty() {
                    // Under the lock: a subscription made later starts another task.
                    backend
                        .keyspace_events
                        .sweeping
                        .store(false, Ordering::Release);
                    return;
                }
            }
        });
    }
}

/// Subscribes to a key. It may have been freed before that, so all claims that wait for it ask
/// again.
async fn subscribe(channel: String, server: Arc<Server>, backend: Arc<Backend>) {
    match server.subscribe(&channel).await {
        Ok(()) => backend.keyspace_events.sweep_from_now_on(&backend),
        Err(error) => {
            tracing::debug!(%error, "a key cannot be watched");
            backend.keyspace_events.lock().remove(&channel);
        }
    }
    backend.keyspace_events.wake(&channel, &backend);
}

impl Backend {
    fn ask_again(&self, claims: impl IntoIterator<Item = ClaimId>) {
        if let Some(client) = self.handle.get() {
            claims.into_iter().for_each(|claim| client.ask_again(claim));
        }
    }
}
