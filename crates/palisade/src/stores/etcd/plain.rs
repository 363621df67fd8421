//! `format=plain`: create if absent. The keys of the format `mutex`, created only while the name is free.
//!
//! The one transaction compares the whole line, so it never overtakes a claim that waits in the other format, or one of Go or
//! etcdctl. A claim that is turned away watches the first key and asks again when that is gone. All of them ask at once: where many
//! wait for one name, `mutex` is the better format.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::CAPABILITY;
use super::client::cluster::Resend;
use super::client::txn;
use super::client::watch::WatchEvent;
use super::locks::Locks;
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
    // Waiters are not in the store.
    waiters_known: false,
    ..CAPABILITY
};

pub(super) struct PlainStore(pub(super) Arc<Locks>);

impl PlainStore {
    /// Returns when the first key of the line is gone.
    async fn freed(&self, name: &Name) -> Result<()> {
        let line = self.0.names.line(name).into_bytes();
        loop {
            let response = self.0.txn(txn::always(vec![txn::read_first(&line)]), Resend::IfUnsure).await?;
            let seen = txn::revision_of(&response);
            let Some(first) = txn::keys_of(response).into_iter().next() else { return Ok(()) };
            let (tell, mut told) = mpsc::unbounded_channel();
            let watch = self.0.watches.open(first.key, Vec::new(), move |event| {
                let _ = match event {
                    // Something was written between our read and the opening of the watch.
                    WatchEvent::Opened(revision) if revision != seen => tell.send(false),
                    // Not the end of an earlier key by the same name.
                    WatchEvent::Deleted(kv) if kv.mod_revision > seen => tell.send(true),
                    _ => Ok(()),
                };
            });
            let _closes = Closes { locks: &self.0, watch };
            loop {
                match told.recv().await {
                    Some(true) | None => return Ok(()),
                    Some(false) => {
                        let reading = txn::always(vec![txn::read_first(&line)]);
                        let now = txn::keys_of(self.0.txn(reading, Resend::IfUnsure).await?);
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
    locks: &'a Locks,
    watch: i64,
}

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.locks.watches.close(self.watch);
    }
}

#[async_trait]
impl Store for PlainStore {
    fn capability(&self) -> &Capability {
        &PLAIN
    }

    fn attach(&self, runtime: &tokio::runtime::Handle) {
        self.0.attach(runtime);
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        match self.0.claim(&Claim { queue: false, ..claim.clone() }).await? {
            Answer::Busy(busy) => Ok(Answer::Busy(Busy { woken: true, ..busy })),
            other => Ok(other),
        }
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        if let Err(error) = self.freed(&claim.name).await {
            tracing::debug!(%error, name = %claim.name, "cannot watch the first key of the line");
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
        // Waiters of the other format are listed, but they are not all.
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
