//! A store whose answers a test rewrites: wrong answers that the core must survive.

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

/// A real store with a script.
pub struct ScriptedStore {
    store: Arc<dyn Store>,
    capability: Capability,
    pub script: Arc<Script>,
}

/// Rewrites the answers to a renewal.
pub type RewriteStandings = fn(Vec<Result<Standing>>) -> Vec<Result<Standing>>;

/// What the store does otherwise, and what it has seen.
#[derive(Default)]
pub struct Script {
    /// Rewrites the answers to a renewal.
    pub standings: Mutex<Option<RewriteStandings>>,
    /// Replaces a pushed grant by a push that only asks the waiter to ask again.
    pub pushes_only_ask: AtomicBool,
    /// A release panics.
    pub release_panics: AtomicBool,
    /// A claim waits in the store until it is released.
    pub claim_waits: AtomicBool,
    /// The number of claims so far.
    pub claims: AtomicUsize,
    /// The most claims in one renewal so far.
    pub largest_renewal: AtomicUsize,
    /// The threads that began claims and releases.
    pub threads: Mutex<Vec<Option<String>>>,
    released: Notify,
    client: OnceLock<ClientHandle>,
}

impl Script {
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

impl ScriptedStore {
    /// Wraps a store and changes its capability.
    pub fn over(
        store: Arc<dyn Store>,
        capability: impl FnOnce(Capability) -> Capability,
    ) -> (Arc<dyn Store>, Arc<Script>) {
        let script = Arc::new(Script::default());
        let capability = capability(*store.capability());
        (
            Arc::new(Wrapped(Arc::new(ScriptedStore {
                store,
                capability,
                script: Arc::clone(&script),
            }))),
            script,
        )
    }
}

/// Between the store and its client.
struct Pushes {
    client: Arc<dyn Listener>,
    script: Arc<Script>,
}

impl Listener for Pushes {
    fn hear(&self, push: Push) {
        self.client.hear(match push {
            Push::Granted { claim, .. } if self.script.pushes_only_ask.load(Ordering::SeqCst) => {
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
impl Around for ScriptedStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn attach(&self, client: ClientHandle) {
        let _ = self.script.client.set(client.clone());
        let script = Arc::clone(&self.script);
        self.store
            .attach(client.heard_by(|client| Arc::new(Pushes { client, script })));
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        self.script.see_thread();
        self.script.claims.fetch_add(1, Ordering::SeqCst);
        if self.script.claim_waits.load(Ordering::SeqCst) {
            self.script.released.notified().await;
            return Ok(Answer::Busy(Busy::default()));
        }
        self.store.claim(claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.script
            .largest_renewal
            .fetch_max(claims.len(), Ordering::SeqCst);
        let standings = self.store.renew(claims).await;
        let rewrite = *self.script.standings.lock().expect("no panic");
        match rewrite {
            Some(rewrite) => rewrite(standings),
            None => standings,
        }
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.script.see_thread();
        assert!(
            !self.script.release_panics.load(Ordering::SeqCst),
            "a release that panics, by the test"
        );
        self.script.released.notify_one();
        self.store.release(claim, ending).await
    }
}
