//! A store that can be cut off, slowed down and stopped half-way, around any real one.
//!
//! It never answers by itself: what it lets through is the real store's answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use palisade::store::{
    Answer, Capability, Claim, ClaimId, ClaimRef, Ending, Event, Holder, Leader, Observation, Page, Query, Released, Revoked,
    Standing, Store, Woken,
};
use palisade::{Error, Fence, Name, Result};
use tokio::sync::{Notify, Semaphore};

/// What happens to requests on their way.
#[derive(Default)]
pub struct Faults {
    cut: AtomicBool,
    lose_replies: AtomicBool,
    drop_pushes: AtomicBool,
    hang: AtomicBool,
    unhang: Notify,
    /// When set, every request waits for a permit before it reaches the store and for another before its answer comes back.
    gate: std::sync::OnceLock<Semaphore>,
    renewals: AtomicUsize,
    renewal_requests: AtomicUsize,
    failures: AtomicUsize,
    restored: Notify,
}

impl Faults {
    /// Requests do not arrive, and fail at once.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    /// Requests arrive; their answers are lost, and fail at once.
    pub fn lose_replies(&self, lose: bool) {
        self.lose_replies.store(lose, Ordering::SeqCst);
    }

    /// Nothing is pushed to waiters any more.
    pub fn drop_pushes(&self, drop: bool) {
        self.drop_pushes.store(drop, Ordering::SeqCst);
    }

    /// Requests do not arrive, and do not fail either.
    pub fn hang(&self, hang: bool) {
        self.hang.store(hang, Ordering::SeqCst);
        self.unhang.notify_waiters();
    }

    /// From now on every request takes two steps of [`steps`](Faults::steps).
    pub fn close_gate(&self) {
        let _ = self.gate.set(Semaphore::new(0));
    }

    /// Lets requests take so many steps more.
    pub fn steps(&self, steps: usize) {
        self.gate.get().expect("the gate is closed").add_permits(steps);
    }

    /// Steps that no request has taken yet.
    pub fn unused_steps(&self) -> usize {
        self.gate.get().map_or(0, Semaphore::available_permits)
    }

    /// Tells the client that another server answers now.
    pub fn restore(&self) {
        self.restored.notify_one();
    }

    /// How many claims have been renewed through here.
    pub fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    /// How many requests that took.
    pub fn renewal_requests(&self) -> usize {
        self.renewal_requests.load(Ordering::SeqCst)
    }

    /// How many requests have failed here, on their way to the store or back.
    pub fn failures(&self) -> usize {
        self.failures.load(Ordering::SeqCst)
    }

    fn fail<T>(&self, why: &'static str) -> Result<T> {
        self.failures.fetch_add(1, Ordering::SeqCst);
        Err(Error::unavailable(why))
    }

    async fn step(&self) {
        if let Some(gate) = self.gate.get()
            && let Ok(permit) = gate.acquire().await
        {
            permit.forget();
        }
    }

    async fn pass<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.step().await;
        loop {
            let unhang = self.unhang.notified();
            if !self.hang.load(Ordering::SeqCst) {
                break;
            }
            unhang.await;
        }
        if self.cut.load(Ordering::SeqCst) {
            return self.fail("cut off by the test");
        }
        let answer = request.await;
        self.step().await;
        if self.lose_replies.load(Ordering::SeqCst) {
            return self.fail("the answer was lost by the test");
        }
        answer
    }
}

/// A real store behind [`Faults`].
pub struct Faulty {
    store: Arc<dyn Store>,
    capability: Capability,
    faults: Arc<Faults>,
}

impl Faulty {
    /// Puts faults before a store. It never answers in the caller's thread then.
    pub fn over(store: Arc<dyn Store>) -> (Arc<Faulty>, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let capability = *store.capability();
        (Arc::new(Faulty { store, capability, faults: Arc::clone(&faults) }), faults)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Faulty {
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
        self.faults.pass(self.store.claim(claim)).await
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        loop {
            let woken = self.store.wake(claim).await;
            if !self.faults.drop_pushes.load(Ordering::SeqCst) {
                return woken;
            }
            // A store whose pushes are all lost would be asked in a circle.
            tokio::task::yield_now().await;
        }
    }

    async fn holder(&self, claim: &Claim) -> Result<Option<Holder>> {
        self.faults.pass(self.store.holder(claim)).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.faults.renewals.fetch_add(claims.len(), Ordering::SeqCst);
        self.faults.renewal_requests.fetch_add(1, Ordering::SeqCst);
        let answers = self.faults.pass(async { Ok(self.store.renew(claims).await) }).await;
        answers.unwrap_or_else(|error| vec![Err(error); claims.len()])
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.faults.pass(self.store.release(claim, ending)).await
    }

    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        self.faults.pass(self.store.downgrade(claim)).await
    }

    async fn detach(&self, claim: &ClaimRef) -> Result<Standing> {
        self.faults.pass(self.store.detach(claim)).await
    }

    async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        self.faults.pass(self.store.leader(name)).await
    }

    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        self.faults.pass(self.store.proclaim(claim, value)).await
    }

    async fn observe(&self, name: &Name) -> Result<Observation> {
        self.faults.pass(self.store.observe(name)).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.faults.pass(self.store.revoke(name, fence)).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.faults.pass(self.store.inspect(query)).await
    }

    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        self.store.lock_key(claim)
    }

    fn liveness(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.store.liveness()
    }

    async fn event(&self) -> Event {
        tokio::select! {
            event = self.store.event() => event,
            () = self.faults.restored.notified() => Event::Restored,
        }
    }
}
