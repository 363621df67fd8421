//! Watches that nobody needs just now, and that stay open for a while.
//!
//! Where several take turns at a name, each mostly stands behind the same one again, whose key is the same again. A watch of it that is
//! open already costs no message, and it has seen all that happened since before the claim.
//!
//! It is also the faster one. A server that writes while it opens a watch takes it for one of the past, and tells it nothing until
//! a loop of its own comes by that runs every 100 ms: of the watches that are opened while others write, about one in a hundred.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::proto::WatchResponse;
use super::watch::{State, Told, Watch, Watcher};
use crate::lease::{BootClock, Clock, Moment};

/// For how long a watch stays open that nobody needs; at the most twice as long.
const REST: Duration = Duration::from_secs(1);
/// Of so many lines a watch is kept, and one of each: its events come whether anybody waits for them or not.
const LINES: usize = 64;

/// By line: which watch it is, and since when nobody needs it.
#[derive(Default)]
pub(crate) struct IdleWatches {
    by_line: HashMap<Vec<u8>, (i64, Moment)>,
    is_looked_after: bool,
}

/// What a watch has seen that was open before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// It has seen everything after this revision.
    pub(crate) opened: i64,
    /// When that was what it has told last, be it a deletion or another value; 0 if there was nothing.
    pub(crate) told: i64,
}

impl Watch {
    /// Takes up what a message says of it, before anybody else hears it.
    pub(crate) fn note(&mut self, message: &WatchResponse) {
        if message.created {
            let opened = message.header.as_ref().map_or(0, |header| header.revision);
            self.since = Some(Since { opened, told: 0 });
        }
        let Some(since) = &mut self.since else { return };
        for kv in message.events.iter().filter_map(|event| event.kv.as_ref()) {
            since.told = since.told.max(kv.mod_revision);
        }
    }
}

impl State {
    /// The stream has ended, and with it all that was seen: nobody opens again what nobody needs.
    pub(crate) fn drop_idle(&mut self) {
        for (id, _) in std::mem::take(&mut self.resting.by_line).into_values() {
            self.watches.remove(&id);
        }
        self.watches.values_mut().for_each(|watch| watch.since = None);
    }
}

impl Watcher {
    /// Watches a key of a line, by a watch that rests if there is one; and what that has seen. Without that it tells when it is open, as
    /// any other.
    pub(crate) fn open_or_reuse(
        self: &Arc<Self>,
        line: &[u8],
        key: &[u8],
        sink: impl Fn(Told<'_>) + Send + Sync + 'static,
    ) -> (i64, Option<Since>) {
        {
            let mut guard = self.lock();
            let state = &mut *guard;
            if let Some((id, _)) = state.resting.by_line.get(line).copied()
                && let Some(watch) = state.watches.get_mut(&id).filter(|watch| watch.key == key)
            {
                // From here on: what comes is told, and what came is in what it has seen.
                watch.sink = Arc::new(sink);
                state.resting.by_line.remove(line);
                return (id, watch.since);
            }
        }
        (self.open(key.to_vec(), Vec::new(), sink), None)
    }

    /// Lets a watch of one key rest. Another one of the same line is closed.
    pub(crate) fn rest(self: &Arc<Self>, line: &[u8], id: i64) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let earlier = state.resting.by_line.remove(line);
        let may_rest = state.out.is_some() && state.resting.by_line.len() < LINES;
        match state.watches.get_mut(&id).filter(|_| may_rest) {
            Some(watch) => {
                watch.sink = Arc::new(|_| {});
                state.resting.by_line.insert(line.to_vec(), (id, BootClock.now()));
                if !std::mem::replace(&mut state.resting.is_looked_after, true) {
                    self.cluster.lanes.spawn(look_after(Arc::downgrade(self)));
                }
            }
            None => state.close(id),
        }
        if let Some((earlier, _)) = earlier {
            state.close(earlier);
        }
    }

    /// Closes those that have rested for so long; whether others rest still.
    fn close_rested(&self, rest: Duration) -> bool {
        let mut guard = self.lock();
        let (state, now) = (&mut *guard, BootClock.now());
        let (over, resting): (HashMap<_, _>, HashMap<_, _>) =
            std::mem::take(&mut state.resting.by_line).into_iter().partition(|(_, (_, since))| now.since(*since) >= rest);
        over.into_values().for_each(|(id, _)| state.close(id));
        state.resting = IdleWatches { is_looked_after: !resting.is_empty(), by_line: resting };
        state.resting.is_looked_after
    }
}

/// Closes those that rest, in time.
async fn look_after(watcher: Weak<Watcher>) {
    loop {
        tokio::time::sleep(REST).await;
        let Some(watcher) = watcher.upgrade() else { return };
        if !watcher.close_rested(REST) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::mpsc::UnboundedReceiver;

    use super::super::cluster::Cluster;
    use super::super::endpoints::Endpoints;
    use super::super::proto::{EventKind, Header, KeyValue, WatchEvent, WatchRequest, WatchVerb};
    use super::*;

    /// A watcher whose stream is open, and what it sends.
    fn watcher() -> (Arc<Watcher>, UnboundedReceiver<WatchRequest>) {
        let url: crate::url::StoreUrl = "etcd://127.0.0.1:1/lock".parse().unwrap();
        let cluster = Arc::new(Cluster::new(&Endpoints::read(&url).unwrap()).unwrap());
        let watcher = Watcher::new(&cluster, |_| {});
        watcher.lock().running = true;
        let requests = watcher.begin();
        (watcher, requests)
    }

    /// What was sent since: `+` and the key of one that was opened, `-` of one that was closed.
    fn sent(requests: &mut UnboundedReceiver<WatchRequest>) -> Vec<String> {
        let one = |request: WatchRequest| match request.verb {
            Some(WatchVerb::Create(create)) => format!("+{}", String::from_utf8(create.key).unwrap()),
            Some(WatchVerb::Cancel(cancel)) => format!("-{}", cancel.watch_id),
            _ => "?".to_owned(),
        };
        std::iter::from_fn(|| requests.try_recv().ok()).map(one).collect()
    }

    fn opened(watch_id: i64, revision: i64) -> WatchResponse {
        WatchResponse { watch_id, created: true, header: Some(Header { cluster_id: 1, revision }), ..WatchResponse::default() }
    }

    fn happened(watch_id: i64, kind: EventKind, mod_revision: i64) -> WatchResponse {
        let kv = Some(KeyValue { mod_revision, ..KeyValue::default() });
        let events = vec![WatchEvent { kind: kind.into(), kv }];
        WatchResponse { watch_id, events, ..WatchResponse::default() }
    }

    fn deleted(watch_id: i64, revision: i64) -> WatchResponse {
        happened(watch_id, EventKind::Delete, revision)
    }

    #[tokio::test]
    async fn who_waits_for_the_same_key_again_sends_nothing_and_knows_what_happened() {
        let (watcher, mut requests) = watcher();
        let (id, since) = watcher.open_or_reuse(b"line/", b"line/a", |_| {});
        assert_eq!(since, None, "it is new");
        assert!(watcher.take(&opened(id, 10)) && watcher.take(&deleted(id, 12)));
        watcher.rest(b"line/", id);
        assert!(watcher.take(&deleted(id, 14)), "while nobody needs it");
        assert!(watcher.take(&happened(id, EventKind::Put, 15)), "a writer that becomes a reader is as good as gone");
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let (again, since) = watcher.open_or_reuse(b"line/", b"line/a", move |happened| {
            if let Told::Deleted(kv) = happened {
                tells.lock().unwrap().push(kv.mod_revision);
            }
        });
        assert_eq!((again, since), (id, Some(Since { opened: 10, told: 15 })));
        assert!(watcher.take(&deleted(id, 17)));
        assert_eq!(*told.lock().unwrap(), [17], "from then on it is told");
        assert_eq!(sent(&mut requests), ["+line/a"]);
        // Somebody else needs one of his own.
        let (other, since) = watcher.open_or_reuse(b"line/", b"line/a", |_| {});
        assert_eq!((since, sent(&mut requests)), (None, vec!["+line/a".to_owned()]));
        // One of each line rests.
        watcher.rest(b"line/", id);
        watcher.rest(b"line/", other);
        assert_eq!(sent(&mut requests), [format!("-{id}")]);
        // Another key is none of its business, and ends its rest when that rests.
        let (next, since) = watcher.open_or_reuse(b"line/", b"line/b", |_| {});
        assert_eq!((since, sent(&mut requests)), (None, vec!["+line/b".to_owned()]));
        watcher.rest(b"line/", next);
        assert_eq!(sent(&mut requests), [format!("-{other}")]);
        assert!(watcher.close_rested(REST), "not yet");
        assert!(!watcher.close_rested(Duration::ZERO));
        assert_eq!(sent(&mut requests), [format!("-{next}")]);
        assert!(watcher.lock().watches.is_empty());
    }

    #[tokio::test]
    async fn what_rests_ends_with_its_stream() {
        let (watcher, mut requests) = watcher();
        let (rests, _) = watcher.open_or_reuse(b"line/", b"line/a", |_| {});
        let (needed, _) = watcher.open_or_reuse(b"other/", b"other/a", |_| {});
        assert!(watcher.take(&opened(rests, 10)) && watcher.take(&opened(needed, 10)));
        watcher.rest(b"line/", rests);
        assert_eq!(sent(&mut requests), ["+line/a", "+other/a"]);
        watcher.close_all();
        let mut requests = watcher.begin();
        assert_eq!(sent(&mut requests), ["+other/a"], "only what is needed");
        // It has seen nothing until it is open again.
        watcher.rest(b"other/", needed);
        assert_eq!(watcher.open_or_reuse(b"other/", b"other/a", |_| {}), (needed, None));
        // Without a stream nothing rests.
        watcher.close_all();
        watcher.rest(b"other/", needed);
        assert!(watcher.lock().watches.is_empty());
    }

    #[tokio::test]
    async fn only_so_many_rest() {
        let (watcher, mut requests) = watcher();
        for number in 0..2 * LINES {
            let line = format!("{number}/").into_bytes();
            let (id, _) = watcher.open_or_reuse(&line, &line, |_| {});
            watcher.rest(&line, id);
        }
        assert_eq!(sent(&mut requests).iter().filter(|sent| sent.starts_with('-')).count(), LINES);
        assert_eq!(watcher.lock().watches.len(), LINES);
    }
}
