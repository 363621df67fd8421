//! Elections, in the format of Go's `concurrency.Election` and `etcdctl elect`: the first key of a line leads, and its value is what it
//! proclaims.
//!
//! An observer watches the whole line and keeps a copy of it, so that it can report each leader in turn without a request. When its
//! watch is opened, for the first time or again, it reads the line; events of earlier revisions are in there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::client::cluster::{Failed, Resend};
use super::client::proto::KeyValue;
use super::client::watch::WatchEvent;
use super::client::{spawn, txn};
use super::entry::{Entry, Purpose};
use super::locks::Locks;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::{Leader, Observation, Teller};

/// Between two attempts to read a line whose watch is open.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What a watch has reported, on its way to the observer's task.
enum Heard {
    Opened,
    Closed,
    Deleted(KeyValue),
    Changed(KeyValue),
    Settled,
    Denied,
}

impl From<WatchEvent<'_>> for Heard {
    fn from(event: WatchEvent<'_>) -> Heard {
        match event {
            WatchEvent::Opened(_) => Heard::Opened,
            WatchEvent::Closed => Heard::Closed,
            WatchEvent::Deleted(kv) => Heard::Deleted(kv.clone()),
            WatchEvent::Changed(kv) => Heard::Changed(kv.clone()),
            WatchEvent::Settled => Heard::Settled,
            WatchEvent::Denied => Heard::Denied,
        }
    }
}

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

impl Locks {
    pub(super) async fn observe(self: &Arc<Self>, name: &Name) -> Result<Observation> {
        let prefix = self.names.line(name).into_bytes();
        // An error of the server or of our rights is returned here, and not only reported by the watch.
        let line = self.keys(&prefix).await?;
        let (mut teller, observation) = Observation::new();
        if let Some(leader) = line.leader()? {
            teller.tell(leader);
        }
        let (tells, heard) = mpsc::unbounded_channel();
        let watch = self
            .watches
            .open(prefix.clone(), txn::prefix_end(&prefix), move |event| {
                let _ = tells.send(Heard::from(event));
            });
        let locks = Arc::clone(self);
        spawn(async move {
            if let Some((teller, error)) = locks.tell_leaders(&prefix, teller, heard).await {
                teller.fail(error);
            }
            locks.watches.close(watch);
        });
        Ok(observation)
    }

    /// Reports each leader until the observer is dropped, or an error that waiting does not mend.
    async fn tell_leaders(
        &self,
        prefix: &[u8],
        mut teller: Teller,
        mut heard: mpsc::UnboundedReceiver<Heard>,
    ) -> Option<(Teller, Error)> {
        // None while the watch is closed.
        let mut line: Option<Line> = None;
        loop {
            let next = tokio::select! {
                () = teller.deserted() => return None,
                next = heard.recv() => next?,
            };
            match (next, &mut line) {
                (Heard::Opened, _) => match self.keys_at_last(prefix, &teller).await? {
                    Ok(read) => line = Some(read),
                    Err(error) => return Some((teller, error)),
                },
                (Heard::Closed, _) => line = None,
                (Heard::Denied, _) => {
                    let message = "the server denies the right to watch the keys of the election; see docs/stores/etcd.md";
                    return Some((teller, Error::new(ErrorKind::Denied, message)));
                }
                (Heard::Deleted(kv), Some(line)) => {
                    line.delete(&kv);
                    continue;
                }
                (Heard::Changed(kv), Some(line)) => {
                    line.put(kv);
                    continue;
                }
                (Heard::Deleted(_) | Heard::Changed(_) | Heard::Settled, _) => {}
            }
            match line.as_ref().map_or(Ok(None), Line::leader) {
                Ok(Some(leader)) => teller.tell(leader),
                Ok(None) => {}
                Err(error) => return Some((teller, error)),
            }
        }
    }

    async fn keys(&self, prefix: &[u8]) -> Result<Line, Failed> {
        let response = self
            .txn(txn::always(vec![txn::read_line(prefix)]), Resend::IfUnsure)
            .await?;
        let seen = txn::revision_of(&response);
        let keys = txn::keys_of(response)
            .into_iter()
            .map(|kv| (kv.key.clone(), kv))
            .collect();
        Ok(Line { keys, seen })
    }

    /// Reads the line, however long that takes; `None` when the observer is dropped.
    async fn keys_at_last(&self, prefix: &[u8], teller: &Teller) -> Option<Result<Line>> {
        let mut pause = PAUSE.0;
        loop {
            match self.keys(prefix).await.map_err(Error::from) {
                Err(error) if error.retry_may_help() => {
                    tracing::debug!(%error, "cannot read the line of an election")
                }
                read => return Some(read),
            }
            tokio::select! {
                () = teller.deserted() => return None,
                () = tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())) => {}
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}
