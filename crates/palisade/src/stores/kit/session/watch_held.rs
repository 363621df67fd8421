//! Has the entries of holders watched, so that a holder is told at once when its entry is deleted.
//!
//! Only after a while: most holds are shorter, and then a watch would cost as much as the lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::claims::OwnClaim;
use super::{Entries, end};
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ClaimId, Gone};

/// So long after its grant the entry of a holder is watched.
const UNWATCHED: Duration = Duration::from_millis(100);

/// Watches the entries of holders.
pub(crate) trait WatchHolders: Entries {
    /// Watches the entries of those of these claims that still hold. The answer has the claims that
    /// are to be [verified](WatchHolders::verify) now.
    fn watch(self: &Arc<Self>, claims: Vec<ClaimId>) -> Vec<ClaimId>;

    /// Reads whether the entries of these claims are still there.
    fn verify(
        self: &Arc<Self>,
        claims: &[ClaimId],
    ) -> impl Future<Output = Vec<Result<bool>>> + Send;

    /// Finds out why the entry of a holder is gone.
    fn why_lost(self: &Arc<Self>, _claim: ClaimId) -> impl Future<Output = Gone> + Send {
        // Its session lives: so another client ended just this claim.
        std::future::ready(Gone::Revoked)
    }
}

/// Claims that were granted just now.
#[derive(Default)]
pub(super) struct FreshHolders(Mutex<Fresh>);

#[derive(Default)]
struct Fresh {
    claims: Vec<Granted>,
    /// Whether a task will have them watched.
    is_scheduled: bool,
}

struct Granted {
    claim: ClaimId,
    at: Moment,
}

impl FreshHolders {
    fn lock(&self) -> MutexGuard<'_, Fresh> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the claims that are old enough; `None` when there are no claims at all, and the task
    /// is to end.
    fn take_due(&self) -> Option<Vec<ClaimId>> {
        let (mut fresh, now) = (self.lock(), BootClock.now());
        fresh.is_scheduled = !fresh.claims.is_empty();
        let due = fresh
            .claims
            .extract_if(.., |granted| now.since(granted.at) >= UNWATCHED)
            .map(|granted| granted.claim)
            .collect();
        fresh.is_scheduled.then_some(due)
    }
}

/// Has the entry of a claim watched that was granted just now, if it is still held a moment later.
pub(crate) fn watch_soon<B: WatchHolders>(backend: &Arc<B>, claim: ClaimId) {
    let mut fresh = backend.claims().fresh.lock();
    let at = BootClock.now();
    fresh.claims.push(Granted { claim, at });
    if std::mem::replace(&mut fresh.is_scheduled, true) {
        return;
    }
    let weak = Arc::downgrade(backend);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UNWATCHED).await;
            let Some(backend) = weak.upgrade() else {
                return;
            };
            let Some(claims) = backend.claims().fresh.take_due() else {
                return;
            };
            end_missing(&backend, backend.watch(claims)).await;
        }
    });
}

/// A watch of a holder's entry says that it may be gone: looks whether it is.
#[cfg_attr(
    not(feature = "zookeeper"),
    allow(
        dead_code,
        reason = "a watch of etcd says for certain that a key is gone"
    )
)]
pub(crate) fn verify_soon<B: WatchHolders>(backend: &Arc<B>, claim: ClaimId) {
    let backend = Arc::clone(backend);
    tokio::spawn(async move { end_missing(&backend, vec![claim]).await });
}

/// Ends the claims whose entries are gone. If the store cannot be asked now, the next renewal asks.
async fn end_missing<B: WatchHolders>(backend: &Arc<B>, claims: Vec<ClaimId>) {
    let fences: Vec<Option<Fence>> = {
        let table = backend.claims().lock();
        let fence = |claim| table.own.get(claim).map(OwnClaim::fence);
        claims.iter().map(fence).collect()
    };
    if claims.is_empty() {
        return;
    }
    let there = backend.verify(&claims).await;
    for ((claim, fence), there) in claims.into_iter().zip(fences).zip(there) {
        if let (Some(fence), Ok(false)) = (fence, there) {
            lost(backend, claim, fence).await;
        }
    }
}

/// The entry of a holder was deleted by another client, or with its session.
pub(crate) async fn lost<B: WatchHolders>(backend: &Arc<B>, claim: ClaimId, fence: Fence) {
    let why = backend.why_lost(claim).await;
    // The same claim may have been made again meanwhile, and that one is not gone.
    let is_it = |own: &B::Own| own.fence() == fence;
    if backend.claims().lock().own.get(&claim).is_some_and(is_it) {
        end(&**backend, claim, why);
    }
}
