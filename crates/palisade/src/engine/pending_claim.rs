//! What becomes of a claim whose answer has not come: each stage withdraws it when it is dropped.

use std::sync::Arc;

use super::back_pressure::Permit;
use super::poll_inside::caught;
use super::{Boxed, Core};
use crate::error::Result;
use crate::lease::Moment;
use crate::lease::registry::Pending;
use crate::store::{Answer, Claim, ClaimId};

/// A claim in the registry, from before it is sent until it is tracked or given up.
pub(super) struct Entered {
    pub(super) core: Arc<Core>,
    pub(super) claim: ClaimId,
    pub(super) pending: Arc<Pending>,
}

impl Entered {
    pub(super) fn new(core: &Arc<Core>, claim: ClaimId) -> Entered {
        Entered {
            core: Arc::clone(core),
            claim,
            pending: core.registry.enter(claim),
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.core.registry.leave(self.claim);
    }
}

/// A claim in flight. Dropped before its answer, the client's thread waits for the answer and
/// withdraws the claim.
pub(super) struct PendingClaim {
    pub(super) core: Arc<Core>,
    pub(super) claim: Arc<Claim>,
    pub(super) sent: Moment,
    pub(super) answer: Boxed<Result<Answer>>,
    pub(super) permit: Option<Permit>,
    /// An earlier attempt with the same claim may have arrived.
    pub(super) may_be_there: bool,
    pub(super) answered: bool,
}

impl PendingClaim {
    pub(super) fn send(core: &Arc<Core>, claim: &Arc<Claim>, permit: Permit) -> PendingClaim {
        let (store, asking) = (Arc::clone(&core.store), Arc::clone(claim));
        let answer = caught(async move { store.claim(&asking).await });
        PendingClaim {
            core: Arc::clone(core),
            claim: Arc::clone(claim),
            sent: core.now(),
            answer,
            permit: Some(permit),
            may_be_there: false,
            answered: false,
        }
    }

    pub(super) async fn answered(&mut self) -> Result<Answer> {
        let answer = (&mut self.answer).await;
        self.answered = true;
        self.permit = None;
        answer
    }
}

impl Drop for PendingClaim {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let answer = std::mem::replace(&mut self.answer, Box::pin(std::future::pending()));
        let (core, claim, may_be_there) = (
            Arc::clone(&self.core),
            self.claim.to_ref(None),
            self.may_be_there,
        );
        let permit = self.permit.take();
        self.core.spawn(async move {
            if core.capability().claim_blocks {
                core.withdraw(claim.clone());
            }
            match answer.await {
                Ok(Answer::Busy(_) | Answer::Sealed) => {}
                Err(error) if error.nothing_was_sent() && !may_be_there => {}
                Ok(Answer::Granted(_) | Answer::Queued(_)) | Err(_) => core.withdrawn(claim).await,
            }
            // Only now: the next claim is sent when this one has left the store.
            drop(permit);
        });
    }
}

/// A claim that may have arrived although no answer came. Dropping it withdraws the claim.
pub(super) struct UnconfirmedClaim<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) claim: Option<&'a Arc<Claim>>,
}

impl Drop for UnconfirmedClaim<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.core.withdraw(claim.to_ref(None));
        }
    }
}
