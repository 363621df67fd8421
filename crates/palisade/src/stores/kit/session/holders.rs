//! Has the entries that claims hold by watched, so that a holder is told at once when its entry is deleted.
//!
//! Only after a while: most holds are shorter, and then a watch would cost as much as the lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lease::{BootClock, Clock, Moment};
use crate::store::ClaimId;

/// So long after its grant the entry of a holder is watched.
const UNWATCHED: Duration = Duration::from_millis(100);

/// Watches entries.
pub(crate) trait WatchesHolders: Send + Sync + 'static {
    /// The claims that were granted just now.
    fn fresh(&self) -> &FreshHolders;

    /// Watches the entries of those of these claims that still hold.
    fn watch(self: &Arc<Self>, claims: Vec<ClaimId>) -> impl Future<Output = ()> + Send;
}

/// Claims that were granted just now.
#[derive(Default)]
pub(crate) struct FreshHolders(Mutex<Fresh>);

#[derive(Default)]
struct Fresh {
    /// With the time of the grant.
    claims: Vec<(ClaimId, Moment)>,
    /// Whether a task will have them watched.
    is_scheduled: bool,
}

impl FreshHolders {
    fn lock(&self) -> MutexGuard<'_, Fresh> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the claims that are old enough; `None` when there are no claims at all, and the task is to end.
    fn take_due(&self) -> Option<Vec<ClaimId>> {
        let (mut fresh, now) = (self.lock(), BootClock.now());
        fresh.is_scheduled = !fresh.claims.is_empty();
        let mut due = Vec::new();
        fresh.claims.retain(|(claim, since)| {
            let is_due = now.since(*since) >= UNWATCHED;
            due.extend(is_due.then_some(*claim));
            !is_due
        });
        fresh.is_scheduled.then_some(due)
    }
}

/// Has the entry of a claim watched that was granted just now, if it is still held a moment later.
pub(crate) fn watch_soon<W: WatchesHolders>(watches: &Arc<W>, claim: ClaimId) {
    let mut fresh = watches.fresh().lock();
    fresh.claims.push((claim, BootClock.now()));
    if std::mem::replace(&mut fresh.is_scheduled, true) {
        return;
    }
    let weak = Arc::downgrade(watches);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UNWATCHED).await;
            let Some(watches) = weak.upgrade() else {
                return;
            };
            let Some(claims) = watches.fresh().take_due() else {
                return;
            };
            if !claims.is_empty() {
                watches.watch(claims).await;
            }
        }
    });
}
