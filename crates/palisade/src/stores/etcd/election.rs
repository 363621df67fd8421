//! Elections, in the format of Go's `concurrency.Election` and `etcdctl elect`: the first key of a
//! line leads, and its value is what it proclaims.
//!
//! An observer watches the whole line and keeps a copy of it, so that it can report each leader in
//! turn without a request. When its watch is opened, for the first time or again, it reads the
//! line; events of earlier revisions are in there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::backend::Backend;
use super::client::cluster::Failed;
use super::client::proto::KeyValue;
use super::client::watch::WatchEvent;
use super::client::{spawn, txn};
use super::entry::{Entry, Purpose};
use super::lines::Lines;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::{Leader, Observation, ObservationSender};
use crate::stores::backoff::Backoff;

/// Between two attempts to read a line whose watch is open.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The keys of a line, as of some revision.
struct Line {
    keys: HashMap<Vec<u8>, KeyValue>,
    seen: i64,
}

impl Line {
    fn put(&mut self, kv: KeyValue) {
        if kv.mod_revision > self.seen {
            self.keys.insert(kv.key.clone(), kv);
        }
    }

    fn delete(&mut self, kv: &KeyValue) {
        if kv.mod_revision > self.seen {
            self.keys.remove(&kv.key);
        }
    }

    fn leader(&self) -> Result<Option<Leader>> {
        let first = self
            .keys
            .values()
            .min_by_key(|kv| (kv.create_revision, &kv.key));
        first.map_or(Ok(None), |first| leader_of(first.clone()))
    }
}

/// The leader by the first key of its line: none, when that only keeps the name closed.
fn leader_of(first: KeyValue) -> Result<Option<Leader>> {
    let entry = Entry::read(first)?;
    Ok((entry.purpose == Purpose::Claim).then(|| entry.leader()))
}

impl Backend {
    pub(super) async fn observe(self: &Arc<Self>, name: &Name) -> Result<Observation> {
        let prefix = self.lines.names.line(name).into_bytes();
        // An error of the server or of our rights is returned here, and not only reported by the
        // watch.
        let line = self.lines.keys(&prefix).await?;
        let (mut sender, observation) = Observation::new();
        if let Some(leader) = line.leader()? {
            sender.tell(leader);
        }
        let (tells, heard) = mpsc::unbounded_channel();
        let watch = self
            .watches
            .open(prefix.clone(), txn::prefix_end(&prefix), move |event| {
                let _ = tells.send(event);
            });
        let backend = Arc::clone(self);
        spawn(async move {
            if let Some((sender, error)) = backend.tell_leaders(&prefix, sender, heard).await {
                sender.fail(error);
            }
            backend.watches.close(watch);
        });
        Ok(observation)
    }

    /// Reports each leader until the observer is dropped, or an error that waiting does not mend.
    async fn tell_leaders(
        &self,
        prefix: &[u8],
        mut sender: ObservationSender,
        mut heard: mpsc::UnboundedReceiver<WatchEvent>,
    ) -> Option<(ObservationSender, Error)> {
        // None while the watch is closed.
        let mut line: Option<Line> = None;
        loop {
            let next = tokio::select! {
                () = sender.deserted() => return None,
                next = heard.recv() => next?,
            };
            match (next, &mut line) {
                (WatchEvent::Opened(_), _) => match self.lines.keys_at_last(prefix, &sender).await?
                {
                    Ok(read) => line = Some(read),
                    Err(error) => return Some((sender, error)),
                },
                (WatchEvent::Closed, _) => line = None,
                (WatchEvent::Denied, _) => {
                    let message = "the server denies the right to watch the keys of the election; see docs/stores/etcd.md";
                    return Some((sender, Error::new(ErrorKind::Denied, message)));
                }
                (WatchEvent::Deleted(kv), Some(line)) => {
                    line.delete(&kv);
                    continue;
                }
                (WatchEvent::Changed(kv), Some(line)) => {
                    line.put(kv);
                    continue;
                }
                (WatchEvent::Deleted(_) | WatchEvent::Changed(_) | WatchEvent::Settled, _) => {}
            }
            match line.as_ref().map_or(Ok(None), Line::leader) {
                Ok(Some(leader)) => sender.tell(leader),
                Ok(None) => {}
                Err(error) => return Some((sender, error)),
            }
        }
    }
}

impl Lines {
    async fn keys(&self, prefix: &[u8]) -> Result<Line, Failed> {
        let reading = txn::always(vec![txn::read_line(prefix)]);
        let response = self.txn(reading).await?;
        let seen = txn::revision_of(&response);
        let keys = txn::keys_of(response)
            .into_iter()
            .map(|kv| (kv.key.clone(), kv))
            .collect();
        Ok(Line { keys, seen })
    }

    /// Reads the line, however long that takes; `None` when the observer is dropped.
    async fn keys_at_last(
        &self,
        prefix: &[u8],
        sender: &ObservationSender,
    ) -> Option<Result<Line>> {
        let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
        loop {
            match self.keys(prefix).await.map_err(Error::from) {
                Err(error) if error.retry_may_help() => {
                    tracing::debug!(%error, "cannot read the line of an election")
                }
                read => return Some(read),
            }
            tokio::select! {
                () = sender.deserted() => return None,
                () = backoff.pause() => {}
            }
        }
    }
}
