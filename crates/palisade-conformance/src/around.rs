//! A wrapper around a store, for tests: it overrides some calls and forwards the rest.

use std::sync::Arc;

use async_trait::async_trait;
use palisade::store::{
    Answer, Capability, Change, Claim, ClaimRef, ClientHandle, Ending, Extensions, Page, Query,
    Released, Revoked, Standing, Store,
};
use palisade::{Fence, Name, Result};

/// The calls that a wrapper can override. Every default forwards to the inner store.
#[async_trait]
pub trait Around: Send + Sync + 'static {
    /// The store inside.
    fn inner(&self) -> &dyn Store;

    /// See [`Store::capability`].
    fn capability(&self) -> &Capability {
        self.inner().capability()
    }

    /// See [`Store::attach`].
    fn attach(&self, client: ClientHandle) {
        self.inner().attach(client);
    }

    /// See [`Store::claim`].
    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        self.inner().claim(claim).await
    }

    /// See [`Store::renew`].
    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.inner().renew(claims).await
    }

    /// See [`Store::release`].
    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.inner().release(claim, ending).await
    }

    /// See [`Store::inspect`].
    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.inner().inspect(query).await
    }

    /// See [`Store::revoke`].
    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.inner().revoke(name, fence).await
    }

    /// See [`Store::change`].
    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        self.inner().change(claim, to).await
    }

    /// See [`Store::extensions`].
    fn extensions(&self) -> Extensions<'_> {
        self.inner().extensions()
    }
}

/// The store that a wrapper makes.
pub struct Wrapped<A>(pub Arc<A>);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<A: Around> Store for Wrapped<A> {
    fn capability(&self) -> &Capability {
        self.0.capability()
    }

    fn attach(&self, client: ClientHandle) {
        self.0.attach(client);
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        self.0.claim(claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.0.renew(claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.0.release(claim, ending).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
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
