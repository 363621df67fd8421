//! The one watch stream of a client, with all its watches.
//!
//! A watch is opened at the present, and its owner reads again once it is open: a watch that is
//! opened in the past is served by a loop of the server that runs every 100 ms. For the same reason
//! a broken stream is not resumed: all its watches are opened anew, and their owners are told to
//! read again. So neither compaction nor another member can hide anything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use super::cluster::Cluster;
use super::idle_watches::{IdleWatches, Reported};
use super::proto::{
    KeyValue, WATCH, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse, WatchVerb,
};
use super::spawn;
use crate::error::ErrorKind;
use crate::lease::{BootClock, Clock, Moment};
use crate::stores::backoff::Backoff;

/// Between two attempts to open the stream.
const PAUSE: (Duration, Duration) = (Duration::from_millis(40), Duration::from_secs(1));

/// How long the stream may leave a progress request unanswered. The pings of the connection come
/// too seldom for short leases.
const SILENT: Duration = Duration::from_secs(2);

/// After a login that changed nothing, a denial is believed for so long.
const BELIEVED: Duration = Duration::from_secs(30);

/// What a watch reports.
#[derive(Clone, Debug)]
pub(crate) enum WatchEvent {
    /// It sees everything after this revision; for the first time, or again after it had broken.
    Opened(i64),
    /// It sees nothing until it is opened again.
    Closed,
    /// A key was deleted.
    Deleted(KeyValue),
    /// A key was written.
    Changed(KeyValue),
    /// Everything up to some revision has been reported. A transaction is never split by it.
    Settled,
    /// The server denies the right to watch: nothing more is reported.
    Denied,
}

pub(super) type Handler = Arc<dyn Fn(WatchEvent) + Send + Sync>;

/// What becomes of the stream.
pub(crate) enum Contact {
    Lost,
    Restored,
}

pub(crate) struct Watches {
    cluster: Arc<Cluster>,
    state: Mutex<State>,
    on_contact: Box<dyn Fn(Contact) + Send + Sync>,
    hung: Arc<Notify>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) watches: HashMap<i64, Watch>,
    /// Those among them that have no owner just now.
    pub(super) idle: IdleWatches,
    /// Never used twice, not even on another stream.
    last_id: i64,
    pub(super) out: Option<mpsc::UnboundedSender<WatchRequest>>,
    pub(super) running: bool,
    /// Since when the stream owes an answer to a progress request.
    asked: Option<Moment>,
    /// When a denial last made us log in again.
    logged_in: Option<Moment>,
}

pub(super) struct Watch {
    pub(super) key: Vec<u8>,
    range_end: Vec<u8>,
    pub(super) handler: Handler,
    /// What it has reported; none until it is open.
    pub(super) reported: Option<Reported>,
}

impl Watch {
    fn create(&self, id: i64) -> WatchRequest {
        let create = WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            watch_id: id,
        };
        WatchRequest {
            verb: Some(WatchVerb::Create(create)),
        }
    }
}

impl State {
    /// Closes a watch, if it is still there.
    pub(super) fn close(&mut self, id: i64) {
        if self.watches.remove(&id).is_some()
            && let Some(out) = &self.out
        {
            let cancel = WatchVerb::Cancel(WatchCancelRequest { watch_id: id });
            let _ = out.send(WatchRequest { verb: Some(cancel) });
        }
    }
}

impl Watches {
    pub(crate) fn new(
        cluster: &Arc<Cluster>,
        on_contact: impl Fn(Contact) + Send + Sync + 'static,
    ) -> Arc<Watches> {
        let on_contact = Box::new(on_contact);
        Arc::new(Watches {
            cluster: Arc::clone(cluster),
            state: Mutex::default(),
            on_contact,
            hung: Arc::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key, or all keys up to the end of a range, until it is closed.
    pub(crate) fn open(
        self: &Arc<Self>,
        key: Vec<u8>,
        range_end: Vec<u8>,
        handler: impl Fn(WatchEvent) + Send + Sync + 'static,
    ) -> i64 {
        let watch = Watch {
            key,
            range_end,
            handler: Arc::new(handler),
            reported: None,
        };
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        if let Some(out) = &state.out {
            // If it cannot be sent, the stream is being opened anew, with all watches.
            let _ = out.send(watch.create(id));
        }
        state.watches.insert(id, watch);
        if !std::mem::replace(&mut state.running, true) {
            spawn(run(Arc::downgrade(self), Arc::clone(&self.cluster)));
        }
        id
    }

    pub(crate) fn close(&self, id: i64) {
        self.lock().close(id);
    }

    /// Asks the stream for a sign of life. A stream that has not answered the last such request is
    /// given up, and the handlers of its watches hear so before this returns.
    pub(crate) fn check_alive(&self) {
        let now = BootClock.now();
        let is_hung = {
            let mut state = self.lock();
            match (state.asked, &state.out) {
                (Some(asked), Some(_)) => now.since(asked) >= SILENT,
                (None, Some(out)) => {
                    let _ = out.send(WatchRequest {
                        verb: Some(WatchVerb::Progress(WatchProgressRequest {})),
                    });
                    state.asked = Some(now);
                    false
                }
                (_, None) => false,
            }
        };
        if is_hung {
            self.close_all();
            self.hung.notify_one();
        }
    }

    /// Begins a stream. The answer is what it sends: all watches first.
    pub(super) fn begin(&self) -> mpsc::UnboundedReceiver<WatchRequest> {
        let (out, requests) = mpsc::unbounded_channel();
        let mut state = self.lock();
        state.asked = None;
        state.drop_idle();
        for (id, watch) in &state.watches {
            let _ = out.send(watch.create(*id));
        }
        state.out = Some(out);
        requests
    }

    /// Whether there is anything to watch. If not, the next watch begins a stream.
    fn is_needed(&self) -> bool {
        let mut state = self.lock();
        if state.watches.is_empty() {
            state.running = false;
            state.out = None;
        }
        state.running
    }

    /// The handler of a message. Its watch notes the message first, in the same step.
    fn handler(&self, message: &WatchResponse) -> Option<Handler> {
        let mut state = self.lock();
        let watch = state.watches.get_mut(&message.watch_id)?;
        watch.note(message);
        Some(Arc::clone(&watch.handler))
    }

    pub(super) fn close_all(&self) {
        let handlers: Vec<Handler> = {
            let mut state = self.lock();
            state.out = None;
            state.drop_idle();
            state
                .watches
                .values()
                .map(|watch| Arc::clone(&watch.handler))
                .collect()
        };
        handlers
            .iter()
            .for_each(|handler| handler(WatchEvent::Closed));
    }

    fn may_log_in(&self) -> bool {
        let now = BootClock.now();
        let mut state = self.lock();
        if state.logged_in.is_some_and(|at| now.since(at) < BELIEVED) {
            return false;
        }
        state.logged_in = Some(now);
        true
    }

    /// Handles a message; `false` when the stream must be opened anew.
    pub(super) fn receive(&self, message: &WatchResponse) -> bool {
        self.lock().asked = None;
        if message.canceled && message.cancel_reason.contains("permission denied") {
            // An expired login is reported in the same words.
            if self.cluster.logs_in() && self.may_log_in() {
                return false;
            }
            // Waiters ask by the clock instead.
            tracing::warn!(
                "the server denies the right to watch the keys of a lock; see docs/stores/etcd.md"
            );
            let watch = self.lock().watches.remove(&message.watch_id);
            if let Some(watch) = watch {
                (watch.handler)(WatchEvent::Denied);
            }
            return true;
        }
        // A watch that was closed meanwhile has no handler. A number below zero means that the
        // server refuses the stream.
        let Some(handler) = self.handler(message) else {
            return !(message.canceled && message.watch_id < 0);
        };
        if message.canceled {
            tracing::debug!(reason = %message.cancel_reason, "the server ended a watch");
            return false;
        }
        if message.created {
            handler(WatchEvent::Opened(
                message.header.as_ref().map_or(0, |header| header.revision),
            ));
        }
        for event in &message.events {
            match event.kv.clone() {
                Some(kv) if event.is_deletion() => handler(WatchEvent::Deleted(kv)),
                Some(kv) => handler(WatchEvent::Changed(kv)),
                None => {}
            }
        }
        if !message.events.is_empty() {
            handler(WatchEvent::Settled);
        }
        true
    }
}

/// Keeps the stream open while there is something to watch.
async fn run(watches: Weak<Watches>, cluster: Arc<Cluster>) {
    let (mut failures, mut was_open) = (0_u32, false);
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    let Some(hung) = watches.upgrade().map(|watches| Arc::clone(&watches.hung)) else {
        return;
    };
    loop {
        let Some(requests) = watches
            .upgrade()
            .and_then(|watches| watches.is_needed().then(|| watches.begin()))
        else {
            return;
        };
        let member = cluster.current();
        let error = match cluster
            .open::<_, WatchResponse>(member, WATCH, requests)
            .await
        {
            Err(error) => error,
            Ok(mut messages) => {
                // Also where it could not be opened at first: holders do not know what happened
                // before.
                if (std::mem::replace(&mut was_open, true) || failures > 0)
                    && let Some(watches) = watches.upgrade()
                {
                    (watches.on_contact)(Contact::Restored);
                }
                loop {
                    let next = tokio::select! {
                        next = messages.message() => next,
                        () = hung.notified() => {
                            cluster.turn_from(member);
                            break cluster.silent(member);
                        }
                    };
                    let Some(watches) = watches.upgrade() else {
                        return;
                    };
                    match next {
                        Ok(Some(message)) if watches.receive(&message) => {
                            failures = 0;
                            backoff = Backoff::new(PAUSE.0, PAUSE.1);
                        }
                        // The server may not accept our login any more.
                        Ok(Some(message)) => {
                            break cluster.stream_ended(
                                member,
                                &tonic::Status::unauthenticated(message.cancel_reason),
                            );
                        }
                        Ok(None) => {
                            break cluster.stream_ended(
                                member,
                                &tonic::Status::unavailable("the stream has ended"),
                            );
                        }
                        Err(status) => break cluster.stream_ended(member, &status),
                    }
                }
            }
        };
        let Some(strong) = watches.upgrade() else {
            return;
        };
        strong.close_all();
        failures += 1;
        if failures == 2 && error.kind() == ErrorKind::Unavailable {
            (strong.on_contact)(Contact::Lost);
        }
        drop(strong);
        tracing::debug!(%error, "the watch stream has ended");
        backoff.pause().await;
    }
}
