//! How a store tells its client something.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::{ClaimId, Gone};
use crate::fence::Fence;

/// How a store tells its client something without being asked. Given to it by
/// [`Store::attach`](super::Store::attach). Cheap to clone.
///
/// The core enters a claim in its registry before it is sent, so no push about a claim is lost,
/// however early it comes.
#[derive(Clone)]
pub struct ClientHandle {
    runtime: Handle,
    listener: Arc<dyn Listener>,
}

/// A message of a store to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// The store granted the name to a claim that waited. Its lease is the waiter's until the next
    /// renewal.
    Granted {
        /// The claim that holds now.
        claim: ClaimId,
        /// The fence of its grant.
        fence: Fence,
    },
    /// Something has changed: the waiting claim is to be asked for again.
    AskAgain {
        /// The claim that waits.
        claim: ClaimId,
    },
    /// The store ended this claim.
    Gone {
        /// The claim that ended.
        claim: ClaimId,
        /// Why.
        why: Gone,
    },
    /// Contact is lost. Guards are at risk; the core goes on renewing.
    ContactLost,
    /// Contact is back, or another server answers now: the core renews every claim at once.
    ContactRegained,
}

/// The receiver of a store's pushes: the core, or a test in between.
pub trait Listener: Send + Sync + 'static {
    /// Takes a push. Never blocks.
    fn hear(&self, push: Push);

    /// Whether a caller still wants this claim. An unwanted claim that was not written yet need not
    /// be sent.
    fn wants(&self, claim: ClaimId) -> bool {
        let _ = claim;
        true
    }

    /// Completes when the claim does not wait any more: it holds, or its caller has left.
    fn done_waiting(&self, claim: ClaimId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let _ = claim;
        Box::pin(std::future::pending())
    }
}

impl ClientHandle {
    /// A handle for a client with this runtime.
    pub fn new(runtime: Handle, listener: Arc<dyn Listener>) -> ClientHandle {
        ClientHandle { runtime, listener }
    }

    /// The same client, with another listener between.
    #[must_use]
    pub fn heard_by(
        &self,
        between: impl FnOnce(Arc<dyn Listener>) -> Arc<dyn Listener>,
    ) -> ClientHandle {
        ClientHandle {
            runtime: self.runtime.clone(),
            listener: between(Arc::clone(&self.listener)),
        }
    }

    /// The client's own runtime: connections, subscriptions and background work belong there.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The store granted the name to a claim that waited.
    pub fn granted(&self, claim: ClaimId, fence: Fence) {
        self.listener.hear(Push::Granted { claim, fence });
    }

    /// It is worth asking for this waiting claim again.
    pub fn ask_again(&self, claim: ClaimId) {
        self.listener.hear(Push::AskAgain { claim });
    }

    /// The store ended this claim.
    pub fn gone(&self, claim: ClaimId, why: Gone) {
        self.listener.hear(Push::Gone { claim, why });
    }

    /// The connection is lost.
    pub fn contact_lost(&self) {
        self.listener.hear(Push::ContactLost);
    }

    /// The connection is back, or another server answers now.
    pub fn contact_regained(&self) {
        self.listener.hear(Push::ContactRegained);
    }

    /// Whether a caller still wants this claim. Ask right before a claim is written. An unwanted
    /// one is answered with an error that says that nothing was sent.
    pub fn wants(&self, claim: ClaimId) -> bool {
        self.listener.wants(claim)
    }

    /// Runs a task on the client's runtime for as long as this claim waits.
    pub fn while_waiting(&self, claim: ClaimId, task: impl Future<Output = ()> + Send + 'static) {
        let done = self.listener.done_waiting(claim);
        self.runtime.spawn(async move {
            tokio::select! {
                () = task => {}
                () = done => {}
            }
        });
    }
}

impl fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHandle").finish_non_exhaustive()
    }
}
