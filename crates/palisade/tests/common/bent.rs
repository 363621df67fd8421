//! A store whose answers a test bends: what no good store says or does, the core must bear all the same.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use palisade::Result;
use palisade::store::{
    Answer, Busy, Capability, Claim, ClaimId, ClaimRef, ClientHandle, Ending, Listener, Push,
    Released, Standing, Store,
};
use palisade_conformance::around::{Around, Wrapped};
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
    client: OnceLock<ClientHandle>,
}

impl Bends {
    /// Tells the client that contact is lost.
    pub fn say_cut_off(&self) {
        self.client.get().expect("a client").contact_lost();
    }

    /// The threads that were seen since the last call.
    pub fn take_threads(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.threads.lock().expect("no panic"))
    }

    fn see_thread(&self) {
        self.threads
            .lock()
            .expect("no panic")
            .push(std::thread::current().name().map(str::to_owned));
    }
}

impl Bent {
    /// Bends a store, and what it says it can do.
    pub fn over(
        store: Arc<dyn Store>,
        capability: impl FnOnce(Capability) -> Capability,
    ) -> (Arc<dyn Store>, Arc<Bends>) {
        let bends = Arc::new(Bends::default());
        let capability = capability(*store.capability());
        (
            Arc::new(Wrapped(Arc::new(Bent {
                store,
                capability,
                bends: Arc::clone(&bends),
            }))),
            bends,
        )
    }
}

/// Between the store and its client.
struct Pushes {
    client: Arc<dyn Listener>,
    bends: Arc<Bends>,
}

impl Listener for Pushes {
    fn hear(&self, push: Push) {
        self.client.hear(match push {
            Push::Granted { claim, .. } if self.bends.pushes_only_ask.load(Ordering::SeqCst) => {
                Push::AskAgain { claim }
            }
            push => push,
        });
    }

    fn wants(&self, claim: ClaimId) -> bool {
        self.client.wants(claim)
    }

    fn done_waiting(&self, claim: ClaimId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.client.done_waiting(claim)
    }
}

#[async_trait]
impl Around for Bent {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn attach(&self, client: ClientHandle) {
        let _ = self.bends.client.set(client.clone());
        let bends = Arc::clone(&self.bends);
        self.store
            .attach(client.heard_by(|client| Arc::new(Pushes { client, bends })));
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        self.bends.see_thread();
        self.bends.claims.fetch_add(1, Ordering::SeqCst);
        if self.bends.claim_waits.load(Ordering::SeqCst) {
            self.bends.released.notified().await;
            return Ok(Answer::Busy(Busy::default()));
        }
        self.store.claim(claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.bends
            .largest_renewal
            .fetch_max(claims.len(), Ordering::SeqCst);
        let standings = self.store.renew(claims).await;
        let bend = *self.bends.standings.lock().expect("no panic");
        match bend {
            Some(bend) => bend(standings),
            None => standings,
        }
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.bends.see_thread();
        assert!(
            !self.bends.release_panics.load(Ordering::SeqCst),
            "a release that panics, by the test"
        );
        self.bends.released.notify_one();
        self.store.release(claim, ending).await
    }
}
