//! A claim that this client has in the store, waiting or holding. Dropping it releases it.

use std::sync::Arc;

use super::Core;
use super::release::PendingRelease;
use crate::fence::Fence;
use crate::lease::tracked::TrackedClaim;
use crate::store::Ending;

pub(crate) struct HeldClaim {
    pub(crate) core: Arc<Core>,
    pub(crate) tracked: Arc<TrackedClaim>,
    /// How it ends when it is dropped; `None` once its end has begun. Until the user has the guard,
    /// its once-per mark and its min-hold do not count.
    ending: Option<Ending>,
}

impl HeldClaim {
    /// Tracks a claim. Dropping this releases it.
    pub(crate) fn new(core: Arc<Core>, tracked: Arc<TrackedClaim>) -> HeldClaim {
        core.registry.keep(&tracked);
        HeldClaim {
            core,
            tracked,
            ending: Some(Ending::Undo),
        }
    }

    /// Tracks a grant that this client does not have yet; `None` when it has.
    pub(crate) fn adopted(core: Arc<Core>, tracked: Arc<TrackedClaim>) -> Option<HeldClaim> {
        let new = core.registry.keep_new(&tracked);
        new.then(|| HeldClaim {
            core,
            tracked,
            ending: Some(Ending::Release),
        })
    }

    /// The user has the guard: from now on its marks count.
    #[must_use]
    pub(crate) fn delivered(mut self) -> HeldClaim {
        self.ending = Some(Ending::Release);
        self
    }

    /// The key that a write in the same system can compare to check that this claim still holds,
    /// where there is one.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn lock_key(&self) -> Option<String> {
        self.core
            .store
            .extensions()
            .lock_keys?
            .lock_key(self.tracked.claim.id)
    }

    pub(crate) fn fence(&self) -> Fence {
        self.tracked.fence()
    }

    /// Stops renewing the grant without releasing it.
    pub(crate) fn forget(mut self) {
        self.ending = None;
        self.core.registry.forget(&self.tracked);
    }

    /// Begins to release the grant.
    pub(crate) fn release(mut self, ending: Ending) -> PendingRelease {
        self.ending = None;
        self.core.release_tracked(&self.tracked, ending)
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        if let Some(ending) = self.ending {
            drop(self.core.release_tracked(&self.tracked, ending));
        }
    }
}
