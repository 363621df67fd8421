//! Other kinds of lock as a mutex: what a mutex must do, the write side of a rwlock and a semaphore of one must do, too.

use std::sync::Arc;

use async_trait::async_trait;
use palisade::store::{
    Answer, Capability, Claim, ClaimId, ClaimRef, Ending, Event, Holder, Kind, Leader, Mode, Observation, Page, Query, Released,
    Revoked, Standing, Store, Woken,
};
use palisade::{Fence, Name, Result};

/// As what every mutex claim is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    /// A mutex.
    Mutex,
    /// The write side of a rwlock.
    Writer,
    /// The one permit of a semaphore.
    Semaphore,
}

/// A store whose mutexes are something else.
pub struct Adapted {
    store: Arc<dyn Store>,
    kind: As,
}

impl Adapted {
    /// Makes every mutex claim of this store another kind.
    pub fn over(store: Arc<dyn Store>, kind: As) -> Arc<dyn Store> {
        if kind == As::Mutex { store } else { Arc::new(Adapted { store, kind }) }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Adapted {
    fn capability(&self) -> &Capability {
        self.store.capability()
    }

    fn attach(&self, runtime: &tokio::runtime::Handle) {
        self.store.attach(runtime);
    }

    fn part(&self, name: &Name) -> u64 {
        self.store.part(name)
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        let (kind, mode) = match (self.kind, claim.kind) {
            (As::Writer, Kind::Mutex) => (Kind::RwLock, Mode::Exclusive),
            (As::Semaphore, Kind::Mutex) => (Kind::Semaphore { limit: 1 }, Mode::Permits(1)),
            _ => (claim.kind, claim.mode),
        };
        self.store.claim(&Claim { kind, mode, ..claim.clone() }).await
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        self.store.wake(claim).await
    }

    async fn holder(&self, claim: &Claim) -> Result<Option<Holder>> {
        self.store.holder(claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.store.renew(claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.store.release(claim, ending).await
    }

    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        self.store.downgrade(claim).await
    }

    async fn detach(&self, claim: &ClaimRef) -> Result<Standing> {
        self.store.detach(claim).await
    }

    async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        self.store.leader(name).await
    }

    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        self.store.proclaim(claim, value).await
    }

    async fn observe(&self, name: &Name) -> Result<Observation> {
        self.store.observe(name).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.store.revoke(name, fence).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.store.inspect(query).await
    }

    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        self.store.lock_key(claim)
    }

    fn liveness(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.store.liveness()
    }

    async fn event(&self) -> Event {
        self.store.event().await
    }
}
