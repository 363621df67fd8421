//! The one watch stream of a client, with all its watches.
//!
//! A watch is opened at the present, and whoever opened it reads again once it is: a watch that is opened in the past is served by
//! a loop of the server's that runs every 100 ms. For the same reason a stream that broke is not resumed: all its watches are
//! opened anew, and whoever has one is told to read again. So neither compaction nor another member can hide anything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use super::cluster::Cluster;
use super::idle_watches::{IdleWatches, Since};
use super::proto::{
    KeyValue, WATCH, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, WatchVerb,
};
use crate::error::ErrorKind;
use crate::lease::{BootClock, Clock, Moment};

/// Between two attempts to open the stream.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long the stream may leave a question unanswered. Others look for themselves then: they do not wait for the connection's own
/// pings, which come more seldom than a short lease ends.
const SILENT: Duration = Duration::from_secs(2);

/// After a login that changed nothing, a denial is believed for so long.
const BELIEVED: Duration = Duration::from_secs(30);

/// What a watch tells.
pub(crate) enum Told<'a> {
    /// It sees everything after this revision; for the first time, or again after it had broken.
    Opened(i64),
    /// It sees nothing until it is opened again.
    Closed,
    /// A key was deleted.
    Deleted(&'a KeyValue),
    /// A key was written.
    Changed(&'a KeyValue),
    /// All that happened up to some revision has been told: what one transaction did is never torn apart by it.
    Settled,
    /// The server denies the right to watch: nothing more is told.
    Denied,
}

pub(crate) type Sink = Arc<dyn Fn(Told<'_>) + Send + Sync>;

/// What becomes of the stream, for whoever must hear of it.
pub(crate) enum Contact {
    Lost,
    Restored,
}

pub(crate) struct Watcher {
    pub(crate) cluster: Arc<Cluster>,
    state: Mutex<State>,
    contact: Box<dyn Fn(Contact) + Send + Sync>,
    hung: Arc<Notify>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) watches: HashMap<i64, Watch>,
    /// Those among them that nobody needs just now.
    pub(crate) resting: IdleWatches,
    /// Never used twice, not even on another stream.
    last_id: i64,
    pub(crate) out: Option<mpsc::UnboundedSender<WatchRequest>>,
    pub(crate) running: bool,
    /// Since when a sign of life is awaited.
    asked: Option<Moment>,
    /// When a denial last made us log in again.
    logged_in: Option<Moment>,
}

pub(crate) struct Watch {
    pub(crate) key: Vec<u8>,
    range_end: Vec<u8>,
    pub(crate) sink: Sink,
    /// What it has seen; none until it is open.
    pub(crate) since: Option<Since>,
}

impl Watch {
    fn create(&self, id: i64) -> WatchRequest {
        let create = WatchCreateRequest { key: self.key.clone(), range_end: self.range_end.clone(), watch_id: id };
        WatchRequest { verb: Some(WatchVerb::Create(create)) }
    }
}

impl State {
    /// Closes a watch, if it is still there.
    pub(crate) fn close(&mut self, id: i64) {
        if self.watches.remove(&id).is_some()
            && let Some(out) = &self.out
        {
            let _ = out.send(cancel(id));
        }
    }
}

fn cancel(id: i64) -> WatchRequest {
    WatchRequest { verb: Some(WatchVerb::Cancel(WatchCancelRequest { watch_id: id })) }
}

impl Watcher {
    pub(crate) fn new(cluster: &Arc<Cluster>, contact: impl Fn(Contact) + Send + Sync + 'static) -> Arc<Watcher> {
        let contact = Box::new(contact);
        Arc::new(Watcher { cluster: Arc::clone(cluster), state: Mutex::default(), contact, hung: Arc::default() })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key, or all keys up to the end of a range, until it is closed.
    pub(crate) fn open(
        self: &Arc<Self>,
        key: Vec<u8>,
        range_end: Vec<u8>,
        sink: impl Fn(Told<'_>) + Send + Sync + 'static,
    ) -> i64 {
        let watch = Watch { key, range_end, sink: Arc::new(sink), since: None };
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        if let Some(out) = &state.out {
            // If it cannot be sent, the stream is just being opened anew, with all watches.
            let _ = out.send(watch.create(id));
        }
        state.watches.insert(id, watch);
        if !std::mem::replace(&mut state.running, true) {
            self.cluster.lanes.spawn(run(Arc::downgrade(self), Arc::clone(&self.cluster)));
        }
        id
    }

    pub(crate) fn close(&self, id: i64) {
        self.lock().close(id);
    }

    /// Asks the stream for a sign of life. One that has left the last such question unanswered is given up, and whoever relies on
    /// its watches hears it before this returns.
    pub(crate) fn ask_for_life(&self) {
        let now = BootClock.now();
        let is_hung = {
            let mut state = self.lock();
            match (state.asked, &state.out) {
                (Some(asked), Some(_)) => now.since(asked) >= SILENT,
                (None, Some(out)) => {
                    let _ = out.send(WatchRequest { verb: Some(WatchVerb::Progress(WatchProgressRequest {})) });
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

    /// Begins a stream: what is to be sent, all watches first.
    pub(crate) fn begin(&self) -> mpsc::UnboundedReceiver<WatchRequest> {
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

    /// Whoever is to hear of a message. What it says of its watch is taken up first, in the same step.
    fn sink(&self, message: &WatchResponse) -> Option<Sink> {
        let mut state = self.lock();
        let watch = state.watches.get_mut(&message.watch_id)?;
        watch.note(message);
        Some(Arc::clone(&watch.sink))
    }

    pub(crate) fn close_all(&self) {
        let sinks: Vec<Sink> = {
            let mut state = self.lock();
            state.out = None;
            state.drop_idle();
            state.watches.values().map(|watch| Arc::clone(&watch.sink)).collect()
        };
        sinks.iter().for_each(|sink| sink(Told::Closed));
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

    /// Takes a message; `false` when the stream must be opened anew.
    pub(crate) fn take(&self, message: &WatchResponse) -> bool {
        self.lock().asked = None;
        if message.canceled && message.cancel_reason.contains("permission denied") {
            // A login that has run out is told in the same words.
            if self.cluster.logs_in() && self.may_log_in() {
                return false;
            }
            // Those who wait ask by the clock instead.
            tracing::warn!("the server denies the right to watch the keys of a lock; see docs/stores/etcd.md");
            let watch = self.lock().watches.remove(&message.watch_id);
            if let Some(watch) = watch {
                (watch.sink)(Told::Denied);
            }
            return true;
        }
        // One that was closed meanwhile has none; a number below zero is no watch's: the server refuses it as a whole.
        let Some(sink) = self.sink(message) else { return !(message.canceled && message.watch_id < 0) };
        if message.canceled {
            tracing::debug!(reason = %message.cancel_reason, "the server ended a watch");
            return false;
        }
        if message.created {
            sink(Told::Opened(message.header.as_ref().map_or(0, |header| header.revision)));
        }
        for event in &message.events {
            match &event.kv {
                Some(kv) if event.is_deletion() => sink(Told::Deleted(kv)),
                Some(kv) => sink(Told::Changed(kv)),
                None => {}
            }
        }
        if !message.events.is_empty() {
            sink(Told::Settled);
        }
        true
    }
}

/// Keeps the stream open for as long as there is something to watch.
async fn run(watcher: Weak<Watcher>, cluster: Arc<Cluster>) {
    let (mut failures, mut was_open) = (0_u32, false);
    let Some(hung) = watcher.upgrade().map(|watcher| Arc::clone(&watcher.hung)) else { return };
    loop {
        let Some(requests) = watcher.upgrade().and_then(|watcher| watcher.is_needed().then(|| watcher.begin())) else { return };
        let place = cluster.current();
        let error = match cluster.open::<_, WatchResponse>(place, WATCH, requests).await {
            Err(error) => error,
            Ok(mut messages) => {
                // Also where it could not be opened at first: whoever holds does not know what happened before.
                if (std::mem::replace(&mut was_open, true) || failures > 0)
                    && let Some(watcher) = watcher.upgrade()
                {
                    (watcher.contact)(Contact::Restored);
                }
                loop {
                    let next = tokio::select! {
                        next = messages.message() => next,
                        () = hung.notified() => {
                            cluster.turn_from(place);
                            break cluster.silent(place);
                        }
                    };
                    let Some(watcher) = watcher.upgrade() else { return };
                    match next {
                        Ok(Some(message)) if watcher.take(&message) => failures = 0,
                        // Perhaps our login is not taken any more.
                        Ok(Some(message)) => {
                            break cluster.stream_ended(place, &tonic::Status::unauthenticated(message.cancel_reason));
                        }
                        Ok(None) => break cluster.stream_ended(place, &tonic::Status::unavailable("the stream has ended")),
                        Err(status) => break cluster.stream_ended(place, &status),
                    }
                }
            }
        };
        let Some(strong) = watcher.upgrade() else { return };
        strong.close_all();
        failures += 1;
        if failures == 2 && *error.kind() == ErrorKind::Unavailable {
            (strong.contact)(Contact::Lost);
        }
        drop(strong);
        tracing::debug!(%error, "the watch stream has ended");
        let ceiling = PAUSE.0.saturating_mul(1 << failures.min(8)).min(PAUSE.1);
        tokio::time::sleep(ceiling.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}
