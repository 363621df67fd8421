//! A store that can be cut off, slowed down and stopped half-way, around any real one.
//!
//! It never answers by itself: what it lets through is the real store's answer.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use palisade::store::{
    Answer, Change, Claim, ClaimId, ClaimRef, ClientHandle, Ending, Listener, Page, Push, Query,
    Released, Revoked, Standing, Store,
};
use palisade::{Error, Fence, Name, Result};
use tokio::sync::{Notify, Semaphore};

use crate::around::{Around, Wrapped};

/// The faults of requests in flight.
#[derive(Default)]
pub struct Faults {
    cut: AtomicBool,
    lose_replies: AtomicBool,
    drop_pushes: AtomicBool,
    hang: AtomicBool,
    unhang: Notify,
    /// When set, every request waits for a permit before it reaches the store and for another
    /// before its answer comes back.
    gate: OnceLock<Semaphore>,
    renewals: AtomicUsize,
    renewal_requests: AtomicUsize,
    failures: AtomicUsize,
    client: OnceLock<ClientHandle>,
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
        self.gate
            .get()
            .expect("the gate is closed")
            .add_permits(steps);
    }

    /// Steps that no request has taken yet.
    pub fn unused_steps(&self) -> usize {
        self.gate.get().map_or(0, Semaphore::available_permits)
    }

    /// Tells the client that another server answers now.
    pub fn restore(&self) {
        self.client.get().expect("a client").contact_regained();
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
    faults: Arc<Faults>,
}

impl Faulty {
    /// Puts faults before a store.
    pub fn over(store: Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        (
            Arc::new(Wrapped(Arc::new(Faulty {
                store,
                faults: Arc::clone(&faults),
            }))),
            faults,
        )
    }
}

/// Between a store and its client: pushes to waiters may be dropped.
struct Pushes {
    client: Arc<dyn Listener>,
    faults: Arc<Faults>,
}

impl Listener for Pushes {
    fn hear(&self, push: Push) {
        let to_waiter = matches!(push, Push::Granted { .. } | Push::AskAgain { .. });
        if !(to_waiter && self.faults.drop_pushes.load(Ordering::SeqCst)) {
            self.client.hear(push);
        }
    }

    fn wants(&self, claim: ClaimId) -> bool {
        self.client.wants(claim)
    }

    fn done_waiting(&self, claim: ClaimId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.client.done_waiting(claim)
    }
}

#[async_trait]
impl Around for Faulty {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn attach(&self, client: ClientHandle) {
        let _ = self.faults.client.set(client.clone());
        let faults = Arc::clone(&self.faults);
        self.store
            .attach(client.heard_by(|client| Arc::new(Pushes { client, faults })));
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        self.faults.pass(self.store.claim(claim)).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.faults
            .renewals
            .fetch_add(claims.len(), Ordering::SeqCst);
        self.faults.renewal_requests.fetch_add(1, Ordering::SeqCst);
        let answers = self
            .faults
            .pass(async { Ok(self.store.renew(claims).await) })
            .await;
        answers.unwrap_or_else(|error| vec![Err(error); claims.len()])
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.faults.pass(self.store.release(claim, ending)).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.faults.pass(self.store.inspect(query)).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.faults.pass(self.store.revoke(name, fence)).await
    }

    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        self.faults.pass(self.store.change(claim, to)).await
    }
}
