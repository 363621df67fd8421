//! A store whose answers a test bends: what no good store says or does, the core must bear all the same.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use palisade::store::{
    Answer, Busy, Capability, Claim, ClaimRef, Ending, Event, Holder, Leader, Observation, Page, Query, Released, Revoked,
    Standing, Store, Woken,
};
use palisade::{Fence, Name, Result};
use tokio::sync::Notify;

/// A real store, bent.
pub struct Bent {
    store: Arc<dyn Store>,
    capability: Capability,
    pub bends: Arc<Bends>,
}

/// Bends the answers to a renewal.
pub type BendStandings = fn(Vec<Result<Standing>>) -> Vec<Result<Standing>>;

/// How it is bent, and what it has seen.
#[derive(Default)]
pub struct Bends {
    /// What becomes of the answers to a renewal.
    pub standings: Mutex<Option<BendStandings>>,
    /// Pushes say that it is worth asking, and not what was granted.
    pub pushes_only_ask: AtomicBool,
    /// A release panics.
    pub release_panics: AtomicBool,
    /// A claim waits in the store until it is released.
    pub claim_waits: AtomicBool,
    /// How many claims have come.
    pub claims: AtomicUsize,
    /// The largest renewal that has come.
    pub largest_renewal: AtomicUsize,
    /// The threads in which claims and releases were begun.
    pub threads: Mutex<Vec<Option<String>>>,
    released: Notify,
    cut_off: Notify,
}

impl Bends {
    /// Tells the client that contact is lost.
    pub fn say_cut_off(&self) {
        self.cut_off.notify_one();
    }

    /// The threads that were seen since the last call.
    pub fn take_threads(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.threads.lock().expect("no panic"))
    }

    fn see_thread(&self) {
        self.threads.lock().expect("no panic").push(std::thread::current().name().map(str::to_owned));
    }
}

impl Bent {
    /// Bends a store, and what it says it can do.
    pub fn over(store: Arc<dyn Store>, capability: impl FnOnce(Capability) -> Capability) -> (Arc<Bent>, Arc<Bends>) {
        let bends = Arc::new(Bends::default());
        let capability = capability(*store.capability());
        (Arc::new(Bent { store, capability, bends: Arc::clone(&bends) }), bends)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Bent {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn attach(&self, runtime: &tokio::runtime::Handle) {
        self.store.attach(runtime);
    }

    fn part(&self, name: &Name) -> u64 {
        self.store.part(name)
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        self.bends.see_thread();
        self.bends.claims.fetch_add(1, Ordering::SeqCst);
        if self.bends.claim_waits.load(Ordering::SeqCst) {
            self.bends.released.notified().await;
            return Ok(Answer::Busy(Busy::default()));
        }
        self.store.claim(claim).await
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        match self.store.wake(claim).await {
            Woken::Granted(_) if self.bends.pushes_only_ask.load(Ordering::SeqCst) => Woken::Ask,
            woken => woken,
        }
    }

    async fn holder(&self, claim: &Claim) -> Result<Option<Holder>> {
        self.store.holder(claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.bends.largest_renewal.fetch_max(claims.len(), Ordering::SeqCst);
        let standings = self.store.renew(claims).await;
        let bend = *self.bends.standings.lock().expect("no panic");
        match bend {
            Some(bend) => bend(standings),
            None => standings,
        }
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.bends.see_thread();
        assert!(!self.bends.release_panics.load(Ordering::SeqCst), "a release that panics, by the test");
        self.bends.released.notify_one();
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

    fn lock_key(&self, claim: palisade::store::ClaimId) -> Option<String> {
        self.store.lock_key(claim)
    }

    fn liveness(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.store.liveness()
    }

    async fn event(&self) -> Event {
        tokio::select! {
            event = self.store.event() => event,
            () = self.bends.cut_off.notified() => Event::CutOff,
        }
    }
}
