//! The kit for stores that keep one value per lock: put if absent, extended, deleted if it is still
//! the claim's.
//!
//! There is no line, unless the peers of a format have one: a claim that finds the name taken is told
//! so, and asks again at random intervals, or when it is told.

#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
pub(in crate::stores) mod value;

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Busy, Capability, Change, Claim, ClaimRef, ClientHandle, Detach, Ending, Extensions,
    Grant, Kind, Mode, Page, Place, Query, Released, Revoked, Standing, Store, no_standing,
};
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
use crate::store::{Holder, LineView};

/// The result of [`TokenBackend::put_if_absent`].
#[derive(Clone, Debug)]
pub(crate) enum Put {
    /// The claim holds.
    Done(Grant),
    /// Another claim holds, or the name is closed.
    Taken(Busy),
    /// The claim waits in a queue that the format has.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "only the fair locks of Redisson have one")
    )]
    Queued(Place),
    /// The name was sealed.
    #[cfg_attr(
        not(feature = "etcd"),
        allow(dead_code, reason = "of the systems with one value, only etcd seals")
    )]
    Sealed,
}

/// A system that keeps one value per name.
#[async_trait]
pub(crate) trait TokenBackend: Send + Sync + 'static {
    /// The capability of the store in this format.
    fn capability(&self) -> &Capability;

    /// The client to push to.
    fn attach(&self, client: ClientHandle);

    /// Puts the claim's value, if there is none. The same claim again finds its own grant, and
    /// renews it.
    async fn put_if_absent(&self, claim: &Arc<Claim>) -> Result<Put>;

    /// Extends the values that are still those of these claims.
    async fn extend(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>>;

    /// Deletes the value, if it is still the claim's. Seals only where the capability says so.
    async fn delete_if(&self, claim: &ClaimRef, ending: Ending) -> Result<Released>;

    /// Shows a name, or lists them where the capability says so.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// Deletes the value that has this fence ([`Fence::NONE`] for a peer's value without one).
    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked>;

    /// Turns a holder's claim into something else. Where each claim has a lease of its own, a
    /// detached one needs nothing but its renewal.
    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        let capability = self.capability();
        match to {
            Change::Detach if capability.detach != Detach::Never => {
                let mut answers = self.extend(std::slice::from_ref(claim)).await;
                answers.pop().unwrap_or_else(|| Err(no_standing()))
            }
            other => Err(other.refused_by(capability)),
        }
    }

    /// The abilities of the store beside the contract.
    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// The page that shows the one holder of a name, or that there is none.
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
pub(crate) fn page_of(name: &Name, holder: Option<Holder>) -> Page {
    let line = |holder| LineView {
        holders: vec![holder],
        waiters_known: false,
        ..LineView::free(name.as_str())
    };
    Page {
        lines: holder.map(line).into_iter().collect(),
        next: None,
    }
}

/// The store of a backend.
pub(crate) struct TokenStore<B>(pub(crate) B);

#[async_trait]
impl<B: TokenBackend> Store for TokenStore<B> {
    fn capability(&self) -> &Capability {
        self.0.capability()
    }

    fn attach(&self, client: ClientHandle) {
        self.0.attach(client);
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        let capability = self.capability();
        if let Some(missing) = missing(claim, capability) {
            return Err(Error::unsupported(format!("{capability} has no {missing}")));
        }
        Ok(match self.0.put_if_absent(claim).await? {
            Put::Done(grant) => Answer::Granted(grant),
            Put::Taken(busy) => Answer::Busy(busy),
            Put::Queued(place) => Answer::Queued(place),
            Put::Sealed => Answer::Sealed,
        })
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.0.extend(claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        let capability = self.capability();
        match ending {
            Ending::Seal(_) if !capability.once => Err(Error::unsupported(format!(
                "{capability} cannot seal a name"
            ))),
            _ => self.0.delete_if(claim, ending).await,
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let capability = self.capability();
        if matches!(query, Query::List { .. }) && !capability.list {
            return Err(Error::unsupported(format!(
                "{capability} cannot tell locks from other keys; show one by its name"
            )));
        }
        let mut page = self.0.inspect(query).await?;
        // A shared format may list waiters of its peers, but those of this client are not in the
        // store.
        page.lines
            .iter_mut()
            .for_each(|line| line.waiters_known = capability.waiters_known);
        Ok(page)
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.0.revoke(name, fence).await
    }

    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        self.0.change(claim, to).await
    }

    fn extensions(&self) -> Extensions<'_> {
        self.0.extensions()
    }
}

/// The part of a claim that the format has no place for.
fn missing(claim: &Claim, capability: &Capability) -> Option<&'static str> {
    match (claim.kind, claim.mode) {
        (_, Mode::Shared) if !capability.rwlock => Some("readers"),
        (Kind::Semaphore { .. }, _) | (_, Mode::Permits(_)) if !capability.semaphore => {
            Some("permits")
        }
        _ => match (claim.min_hold, claim.once_per) {
            (Some(_), _) if !capability.min_hold => Some("min-hold"),
            (_, Some(_)) if !capability.once_per => Some("once-per"),
            _ => None,
        },
    }
}
