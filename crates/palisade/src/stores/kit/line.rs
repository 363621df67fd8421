//! The kit for stores that run our line: each verb is one event, applied to one name in one atomic
//! step.
//!
//! In process (memory, SQLite) the step *is* [`Line`]; on a server it is the same machine
//! transcribed, and compared with it by the suite.

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::line::{Line, StoreTime, Told};
use crate::name::Name;
use crate::store::{
    Answer, Capability, Change, Claim, ClaimRef, ClearMarks, ClientHandle, Ending, Extensions,
    Gone, Page, Query, Released, Revoked, Standing, Store,
};

/// One event on the line of one name.
#[derive(Clone, Debug)]
pub enum Event {
    /// A claim asks.
    Claim(Arc<Claim>),
    /// A claim ends.
    Release(ClaimRef, Ending),
    /// A holder's claim is turned into something else.
    Change(ClaimRef, Change),
    /// An operator ends the grant with this fence.
    Revoke(Name, Fence),
    /// An operator clears what `min_hold`, `once_per` and `once` have left.
    ClearMarks(Name),
}

/// The effect of an event.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The answer to a claim.
    Answered(Answer),
    /// The outcome of a release.
    Released(Released),
    /// The standing after a change.
    Stands(Standing),
    /// The outcome of a revocation.
    Revoked(Revoked),
    /// Whether there were marks to clear.
    Cleared(bool),
}

/// A system that can apply one event in one atomic step, by its own clock.
#[async_trait]
pub trait LineBackend: Send + Sync + 'static {
    /// The capability of the store in this format.
    fn capability(&self) -> &Capability;

    /// The client to push to: [`hear`] takes what the line tells.
    fn attach(&self, client: ClientHandle);

    /// Applies one event. A claim that was queued is watched from now on, where the system needs
    /// that.
    async fn apply(&self, event: Event) -> Result<Effect>;

    /// Renews many claims in as few steps as the system can.
    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>>;

    /// Shows lines.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// The abilities of the store beside the contract.
    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

impl Event {
    /// The name of the line.
    pub(crate) fn name(&self) -> &Name {
        match self {
            Event::Claim(claim) => &claim.name,
            Event::Release(claim, _) | Event::Change(claim, _) => &claim.claim.name,
            Event::Revoke(name, _) | Event::ClearMarks(name) => name,
        }
    }

    /// Applies the event to a line in this process.
    pub(crate) fn apply(
        &self,
        line: &mut Line,
        now: StoreTime,
        told: &mut Vec<Told>,
    ) -> Result<Effect> {
        Ok(match self {
            Event::Claim(claim) => Effect::Answered(
                line.claim(now, claim, told)
                    .map_err(|error| error.of(&claim.name))?,
            ),
            Event::Release(ClaimRef { claim, fence }, ending) => {
                Effect::Released(line.release(now, claim.id, *fence, *ending, told))
            }
            Event::Change(ClaimRef { claim, fence }, to) => Effect::Stands(match (to, fence) {
                (Change::Detach, fence) => line.renew(now, claim.id, *fence, told),
                (_, None) => Standing::Gone(Gone::Unknown),
                (Change::Downgrade, Some(fence)) => line.downgrade(now, claim.id, *fence, told),
                (Change::Proclaim(value), Some(fence)) => {
                    line.proclaim(now, claim.id, *fence, value, told)
                }
            }),
            Event::Revoke(_, fence) => Effect::Revoked(line.revoke(now, *fence, told)),
            Event::ClearMarks(_) => Effect::Cleared(line.clear_marks(now, told)),
        })
    }
}

/// Passes on to the client what the line tells one of its claims.
pub(crate) fn hear(client: &ClientHandle, told: Told) {
    match told {
        Told::Granted { claim, fence } => client.granted(claim, fence),
        Told::Gone { claim, why } => client.gone(claim, why),
    }
}

/// The store of a backend.
pub struct LineStore<B>(pub(crate) B);

#[async_trait]
impl<B: LineBackend> Store for LineStore<B> {
    fn capability(&self) -> &Capability {
        self.0.capability()
    }

    fn attach(&self, client: ClientHandle) {
        self.0.attach(client);
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        match self.0.apply(Event::Claim(Arc::clone(claim))).await? {
            Effect::Answered(answer) => Ok(answer),
            other => Err(unexpected(&other)),
        }
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.0.renew(claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        match self.0.apply(Event::Release(claim.clone(), ending)).await? {
            Effect::Released(released) => Ok(released),
            other => Err(unexpected(&other)),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        match self.0.apply(Event::Revoke(name.clone(), fence)).await? {
            Effect::Revoked(revoked) => Ok(revoked),
            other => Err(unexpected(&other)),
        }
    }

    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        match self.0.apply(Event::Change(claim.clone(), to)).await? {
            Effect::Stands(standing) => Ok(standing),
            other => Err(unexpected(&other)),
        }
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            clear_marks: Some(self),
            ..self.0.extensions()
        }
    }
}

#[async_trait]
impl<B: LineBackend> ClearMarks for LineStore<B> {
    async fn clear_marks(&self, name: &Name) -> Result<bool> {
        match self.0.apply(Event::ClearMarks(name.clone())).await? {
            Effect::Cleared(cleared) => Ok(cleared),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(effect: &Effect) -> Error {
    Error::protocol(format!(
        "the store answered another question: {effect:?}; this is a bug in the store"
    ))
}
