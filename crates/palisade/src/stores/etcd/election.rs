//! Elections: the first key of a line leads, and its value is what it proclaims. So Go's `concurrency.Election` and `etcdctl elect` have
//! it.
//!
//! An observer watches the whole line and keeps it in mind, so that it can tell each leader in turn without a question. When its watch
//! is opened, for the first time or again, it reads the line; what the watch tells of earlier revisions is in there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::client::cluster::{Again, Failed};
use super::client::proto::{KeyValue, TxnRequest};
use super::client::txn;
use super::client::watch::Told;
use super::entry::{Entry, Purpose, check_value};
use super::release::ours;
use super::renew::fence_of;
use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::store::{ClaimRef, Gone, Grant, Leader, Observation, Standing, Teller};

/// Between two attempts to read a line whose watch is open.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What a watch has told, on its way to whoever keeps the line in mind.
enum Heard {
    Opened,
    Closed,
    Deleted(KeyValue),
    Changed(KeyValue),
    Settled,
    Denied,
}

impl From<Told<'_>> for Heard {
    fn from(told: Told<'_>) -> Heard {
        match told {
            Told::Opened(_) => Heard::Opened,
            Told::Closed => Heard::Closed,
            Told::Deleted(kv) => Heard::Deleted(kv.clone()),
            Told::Changed(kv) => Heard::Changed(kv.clone()),
            Told::Settled => Heard::Settled,
            Told::Denied => Heard::Denied,
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
        let first = self.keys.values().min_by_key(|kv| (kv.create_revision, &kv.key));
        first.map_or(Ok(None), |first| leader_of(first.clone()))
    }
}

/// The leader by the first key of its line: nobody, when that only keeps the name closed.
fn leader_of(first: KeyValue) -> Result<Option<Leader>> {
    let entry = Entry::read(first)?;
    Ok((entry.purpose == Purpose::Claim).then(|| entry.leader()))
}

impl Shared {
    pub(super) async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        let line = self.settings.names.line(name);
        let reading = TxnRequest { success: vec![txn::read_first(line.as_bytes())], ..TxnRequest::default() };
        let response = self.txn(reading, Again::Freely).await?;
        txn::keys_of(response).into_iter().next().map_or(Ok(None), leader_of)
    }

    /// Writes another value. The key is compared by its create revision, as Go does it, and its lease stays.
    pub(super) async fn proclaim(self: &Arc<Self>, claim: &ClaimRef, value: &str) -> Result<Standing> {
        check_value(value)?;
        let seat = self.seat(&claim.claim.name, claim.claim.id);
        let writing = TxnRequest {
            compare: vec![ours(&seat, claim.fence)],
            success: vec![txn::rewrite(&seat.key, value.as_bytes().to_vec())],
            failure: Vec::new(),
        };
        let is_written = self.txn(writing, Again::Freely).await?.succeeded;
        let held = self.claims.lock().known.get(&claim.claim.id).map(|known| (known.revision, known.session.lease()));
        if let (true, Some((revision, lease))) = (is_written, held) {
            // Nothing was renewed by that: it is held for as long as it was.
            return Ok(Standing::Held(Grant { fence: fence_of(revision), lease }));
        }
        match self.standing(claim).await? {
            // Our key was not there, whatever became of it since.
            Standing::Held(_) | Standing::Waiting(_) if !is_written => Ok(Standing::Gone(Gone::Expired)),
            standing => Ok(standing),
        }
    }

    pub(super) async fn observe(self: &Arc<Self>, name: &Name) -> Result<Observation> {
        let prefix = self.settings.names.line(name).into_bytes();
        // What is wrong with the server or our rights is said here, and not only by the watch.
        let line = self.keys(&prefix).await?;
        let (mut teller, observation) = Observation::new();
        if let Some(leader) = line.leader()? {
            teller.tell(leader);
        }
        let (tells, heard) = mpsc::unbounded_channel();
        let watch = self.watcher.open(prefix.clone(), txn::prefix_end(&prefix), move |told| {
            let _ = tells.send(Heard::from(told));
        });
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            if let Some((teller, error)) = shared.tell_leaders(&prefix, teller, heard).await {
                teller.fail(error);
            }
            shared.watcher.close(watch);
        });
        Ok(observation)
    }

    /// Tells who leads until nobody hears it any more, or something happens that no waiting mends.
    async fn tell_leaders(
        &self,
        prefix: &[u8],
        mut teller: Teller,
        mut heard: mpsc::UnboundedReceiver<Heard>,
    ) -> Option<(Teller, Error)> {
        // Nothing is known while the watch is closed.
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
        let reading = TxnRequest { success: vec![txn::read_line(prefix)], ..TxnRequest::default() };
        let response = self.txn(reading, Again::Freely).await?;
        let seen = txn::revision_of(&response);
        let keys = txn::keys_of(response).into_iter().map(|kv| (kv.key.clone(), kv)).collect();
        Ok(Line { keys, seen })
    }

    /// Reads the line, however long the servers cannot answer; `None` when nobody waits for it any more.
    async fn keys_at_last(&self, prefix: &[u8], teller: &Teller) -> Option<Result<Line>> {
        let mut pause = PAUSE.0;
        loop {
            match self.keys(prefix).await.map_err(Error::from) {
                Err(error) if error.retry_may_help() => tracing::debug!(%error, "cannot read the line of an election"),
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
