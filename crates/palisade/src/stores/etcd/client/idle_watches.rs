//! Watches without an owner, which stay open for a while.
//!
//! Where several clients take turns at a name, each mostly waits behind the same client again, and
//! that client uses the same key again. A watch of it that is still open costs no message, and it
//! has seen everything since before the claim.
//!
//! It is also faster. A server that commits while it opens a watch puts it among those of the past,
//! which a loop serves every 100 ms: about one in a hundred of the watches that are opened while
//! others write.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::proto::WatchResponse;
use super::spawn;
use super::watch::{State, Watch, WatchEvent, Watches};
use crate::lease::{BootClock, Clock, Moment};

/// How long an idle watch stays open; twice as long at the most.
const IDLE: Duration = Duration::from_secs(1);
/// One watch is kept for each of so many groups: its events arrive whether it has an owner or not.
const GROUPS: usize = 64;

/// By group of keys: the watch, and since when it is idle.
#[derive(Default)]
pub(super) struct IdleWatches {
    by_group: HashMap<Vec<u8>, (i64, Moment)>,
    is_swept: bool,
}

/// What an open watch has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    /// It has seen everything after this revision.
    pub(crate) opened: i64,
    /// The revision of its last event, a deletion or a change; 0 before the first.
    pub(crate) last: i64,
}

impl Watch {
    /// Notes what a message reports, before the handler hears it.
    pub(super) fn note(&mut self, message: &WatchResponse) {
        if message.created {
            let opened = message.header.as_ref().map_or(0, |header| header.revision);
            self.reported = Some(Reported { opened, last: 0 });
        }
        let Some(reported) = &mut self.reported else {
            return;
        };
        for kv in message.events.iter().filter_map(|event| event.kv.as_ref()) {
            reported.last = reported.last.max(kv.mod_revision);
        }
    }
}

impl State {
    /// The stream has ended. Idle watches are not opened again, and the others have to be.
    pub(super) fn drop_idle(&mut self) {
        for (id, _) in std::mem::take(&mut self.idle.by_group).into_values() {
            self.watches.remove(&id);
        }
        self.watches
            .values_mut()
            .for_each(|watch| watch.reported = None);
    }
}

impl Watches {
    /// Watches a key, by the idle watch of its group if that is one of this key; and what that has
    /// reported. A new watch reports when it is open.
    pub(crate) fn open_or_reuse(
        self: &Arc<Self>,
        group: &[u8],
        key: &[u8],
        handler: impl Fn(WatchEvent) + Send + Sync + 'static,
    ) -> (i64, Option<Reported>) {
        {
            let mut guard = self.lock();
            let state = &mut *guard;
            if let Some((id, _)) = state.idle.by_group.get(group).copied()
                && let Some(watch) = state.watches.get_mut(&id).filter(|watch| watch.key == key)
            {
                // Under the lock: an event is either in what it has reported, or goes to the new
                // handler.
                watch.handler = Arc::new(handler);
                state.idle.by_group.remove(group);
                return (id, watch.reported);
            }
        }
        (self.open(key.to_vec(), Vec::new(), handler), None)
    }

    /// Keeps a watch of one key open without an owner. The group's earlier one is closed.
    pub(crate) fn park(self: &Arc<Self>, group: &[u8], id: i64) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let earlier = state.idle.by_group.remove(group);
        let has_room = state.out.is_some() && state.idle.by_group.len() < GROUPS;
        match state.watches.get_mut(&id).filter(|_| has_room) {
            Some(watch) => {
                watch.handler = Arc::new(|_| {});
                state
                    .idle
                    .by_group
                    .insert(group.to_vec(), (id, BootClock.now()));
                if !std::mem::replace(&mut state.idle.is_swept, true) {
                    spawn(sweep(Arc::downgrade(self)));
                }
            }
            None => state.close(id),
        }
        if let Some((earlier, _)) = earlier {
            state.close(earlier);
        }
    }

    /// Closes the watches that have been idle for so long; whether others are left.
    fn close_idle(&self, idle: Duration) -> bool {
        let mut guard = self.lock();
        let (state, now) = (&mut *guard, BootClock.now());
        let (over, left): (HashMap<_, _>, HashMap<_, _>) = std::mem::take(&mut state.idle.by_group)
            .into_iter()
            .partition(|(_, (_, since))| now.since(*since) >= idle);
        over.into_values().for_each(|(id, _)| state.close(id));
        state.idle = IdleWatches {
            is_swept: !left.is_empty(),
            by_group: left,
        };
        state.idle.is_swept
    }
}

async fn sweep(watches: Weak<Watches>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let Some(watches) = watches.upgrade() else {
            return;
        };
        if !watches.close_idle(IDLE) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::mpsc::UnboundedReceiver;

    use super::super::cluster::Cluster;
    use super::super::proto::{Event, EventKind, Header, KeyValue, WatchRequest, WatchVerb};
    use super::super::settings::Endpoints;
    use super::*;

    /// Watches whose stream is open, and what that sends.
    fn open_stream() -> (Arc<Watches>, UnboundedReceiver<WatchRequest>) {
        let url: crate::url::StoreUrl = "etcd://127.0.0.1:1/lock".parse().unwrap();
        let cluster = Cluster::new(&Endpoints::read(&url).unwrap()).unwrap();
        let watches = Watches::new(&cluster, |_| {});
        watches.lock().running = true;
        let requests = watches.begin();
        (watches, requests)
    }

    /// What was sent since: `+` and the key of one that was opened, `-` of one that was closed.
    fn sent(requests: &mut UnboundedReceiver<WatchRequest>) -> Vec<String> {
        let one = |request: WatchRequest| match request.verb {
            Some(WatchVerb::Create(create)) => {
                format!("+{}", String::from_utf8(create.key).unwrap())
            }
            Some(WatchVerb::Cancel(cancel)) => format!("-{}", cancel.watch_id),
            _ => "?".to_owned(),
        };
        std::iter::from_fn(|| requests.try_recv().ok())
            .map(one)
            .collect()
    }

    fn opened(watch_id: i64, revision: i64) -> WatchResponse {
        WatchResponse {
            watch_id,
            created: true,
            header: Some(Header {
                cluster_id: 1,
                revision,
                ..Header::default()
            }),
            ..WatchResponse::default()
        }
    }

    fn happened(watch_id: i64, kind: EventKind, mod_revision: i64) -> WatchResponse {
        let kv = Some(KeyValue {
            mod_revision,
            ..KeyValue::default()
        });
        let events = vec![Event {
            kind: kind.into(),
            kv,
        }];
        WatchResponse {
            watch_id,
            events,
            ..WatchResponse::default()
        }
    }

    fn deleted(watch_id: i64, revision: i64) -> WatchResponse {
        happened(watch_id, EventKind::Delete, revision)
    }

    #[tokio::test]
    async fn a_waiter_behind_the_same_key_again_sends_nothing_and_misses_nothing() {
        let (watches, mut requests) = open_stream();
        let (id, since) = watches.open_or_reuse(b"line/", b"line/a", |_| {});
        assert_eq!(since, None, "it is new");
        assert!(watches.receive(&opened(id, 10)) && watches.receive(&deleted(id, 12)));
        watches.park(b"line/", id);
        assert!(watches.receive(&deleted(id, 14)), "while it is idle");
        assert!(
            watches.receive(&happened(id, EventKind::Put, 15)),
            "a change counts, too"
        );
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let (again, since) = watches.open_or_reuse(b"line/", b"line/a", move |happened| {
            if let WatchEvent::Deleted(kv) = happened {
                tells.lock().unwrap().push(kv.mod_revision);
            }
        });
        assert_eq!(
            (again, since),
            (
                id,
                Some(Reported {
                    opened: 10,
                    last: 15
                })
            )
        );
        assert!(watches.receive(&deleted(id, 17)));
        assert_eq!(*told.lock().unwrap(), [17], "from then on it is reported");
        assert_eq!(sent(&mut requests), ["+line/a"]);
        // A second owner needs a watch of its own.
        let (other, since) = watches.open_or_reuse(b"line/", b"line/a", |_| {});
        assert_eq!(
            (since, sent(&mut requests)),
            (None, vec!["+line/a".to_owned()])
        );
        // One is kept for each group.
        watches.park(b"line/", id);
        watches.park(b"line/", other);
        assert_eq!(sent(&mut requests), [format!("-{id}")]);
        // A watch of another key is opened, and takes its place when it is idle.
        let (next, since) = watches.open_or_reuse(b"line/", b"line/b", |_| {});
        assert_eq!(
            (since, sent(&mut requests)),
            (None, vec!["+line/b".to_owned()])
        );
        watches.park(b"line/", next);
        assert_eq!(sent(&mut requests), [format!("-{other}")]);
        assert!(watches.close_idle(IDLE), "not yet");
        assert!(!watches.close_idle(Duration::ZERO));
        assert_eq!(sent(&mut requests), [format!("-{next}")]);
        assert!(watches.lock().watches.is_empty());
    }

    #[tokio::test]
    async fn idle_watches_end_with_their_stream() {
        let (watches, mut requests) = open_stream();
        let (idle, _) = watches.open_or_reuse(b"line/", b"line/a", |_| {});
        let (needed, _) = watches.open_or_reuse(b"other/", b"other/a", |_| {});
        assert!(watches.receive(&opened(idle, 10)) && watches.receive(&opened(needed, 10)));
        watches.park(b"line/", idle);
        assert_eq!(sent(&mut requests), ["+line/a", "+other/a"]);
        watches.close_all();
        let mut requests = watches.begin();
        assert_eq!(sent(&mut requests), ["+other/a"], "only what is needed");
        // It has reported nothing until it is open again.
        watches.park(b"other/", needed);
        assert_eq!(
            watches.open_or_reuse(b"other/", b"other/a", |_| {}),
            (needed, None)
        );
        // Without a stream none is kept.
        watches.close_all();
        watches.park(b"other/", needed);
        assert!(watches.lock().watches.is_empty());
    }

    #[tokio::test]
    async fn only_so_many_are_kept() {
        let (watches, mut requests) = open_stream();
        for number in 0..2 * GROUPS {
            let line = format!("{number}/").into_bytes();
            let (id, _) = watches.open_or_reuse(&line, &line, |_| {});
            watches.park(&line, id);
        }
        assert_eq!(
            sent(&mut requests)
                .iter()
                .filter(|sent| sent.starts_with('-'))
                .count(),
            GROUPS
        );
        assert_eq!(watches.lock().watches.len(), GROUPS);
    }
}
