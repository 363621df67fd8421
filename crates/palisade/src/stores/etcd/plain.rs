//! `format=plain` — create if absent: the keys of the format `mutex`, made only while the name is free.
//!
//! The one transaction compares the whole line, so it never overtakes a claim that stands in line in the other format, or by
//! Go's or etcdctl's hand. Whoever is turned away watches the first key and asks again when it is gone, all at once: where many wait
//! for one name, `mutex` is the better format.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::CAPABILITY;
use super::client::proto::TxnRequest;
use super::client::txn;
use super::client::watch::Told;
use super::shared::Shared;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Busy, Capability, Claim, ClaimId, ClaimRef, Ending, Event, Leader, Observation, Order, Page, Query, Released,
    Revoked, Standing, Store, Wakes, Woken,
};

/// What the format `plain` can do.
pub const PLAIN: Capability = Capability {
    format: "plain",
    order: Order::None,
    wakes: Wakes::Poll,
    rwlock: false,
    semaphore: false,
    mutex_is_write_side: false,
    downgrade: false,
    // Those who wait are not in the store.
    waiters_known: false,
    ..CAPABILITY
};

pub(super) struct PlainStore(pub(super) Arc<Shared>);

impl PlainStore {
    /// Returns when the first key of the line is gone.
    async fn freed(&self, name: &Name) -> Result<()> {
        let line = self.0.settings.names.line(name).into_bytes();
        loop {
            let reading = TxnRequest { success: vec![txn::read_first(&line)], ..TxnRequest::default() };
            let response = self.0.txn(reading, super::client::cluster::Again::Freely).await?;
            let seen = txn::revision_of(&response);
            let Some(first) = txn::keys_of(response).into_iter().next() else { return Ok(()) };
            let (tell, mut told) = mpsc::unbounded_channel();
            let watch = self.0.watcher.open(first.key, Vec::new(), move |happened| {
                let _ = match happened {
                    // Something was written between our look and the opening of the watch.
                    Told::Opened(revision) if revision != seen => tell.send(false),
                    // Not the end of an earlier key by the same name.
                    Told::Deleted(kv) if kv.mod_revision > seen => tell.send(true),
                    _ => Ok(()),
                };
            });
            let _closes = Closes { shared: &self.0, watch };
            loop {
                match told.recv().await {
                    Some(true) | None => return Ok(()),
                    Some(false) => {
                        let reading = TxnRequest { success: vec![txn::read_first(&line)], ..TxnRequest::default() };
                        let now = txn::keys_of(self.0.txn(reading, super::client::cluster::Again::Freely).await?);
                        if now.first().is_none_or(|now| now.create_revision != first.create_revision) {
                            break;
                        }
                    }
                }
            }
        }
    }
}

/// Closes a watch that was opened for one wait.
struct Closes<'a> {
    shared: &'a Shared,
    watch: i64,
}

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.shared.watcher.close(self.watch);
    }
}

#[async_trait]
impl Store for PlainStore {
    fn capability(&self) -> &Capability {
        &PLAIN
    }

    fn attach(&self, runtime: &tokio::runtime::Handle) {
        self.0.cluster.lanes.attach(runtime);
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        match self.0.claim(&Claim { queue: false, ..claim.clone() }).await? {
            Answer::Busy(busy) => Ok(Answer::Busy(Busy { woken: true, ..busy })),
            other => Ok(other),
        }
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        if let Err(error) = self.freed(&claim.name).await {
            tracing::debug!(%error, name = %claim.name, "cannot watch who holds the name");
            // The core asks by its own clock.
            std::future::pending::<()>().await;
        }
        Woken::Ask
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.0.renew(claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.0.release(claim, ending).await
    }

    async fn detach(&self, claim: &ClaimRef) -> Result<Standing> {
        self.0.detach(claim).await
    }

    async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        self.0.leader(name).await
    }

    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        self.0.proclaim(claim, value).await
    }

    async fn observe(&self, name: &Name) -> Result<Observation> {
        self.0.observe(name).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.0.revoke(name, fence).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let mut page = self.0.inspect(query).await?;
        // Who waits in the other format is seen, but it is not all.
        page.lines.iter_mut().for_each(|line| line.waiters_known = false);
        Ok(page)
    }

    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        self.0.key_end(claim)
    }

    async fn event(&self) -> Event {
        self.0.events.next().await
    }
}
