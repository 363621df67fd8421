//! The kit for stores with sessions of their own: each claim is an entry in the store that hangs on
//! a session.
//!
//! ```text
//! claim   ─► enter: the entry is put into the line, and the line read      ─► held, queued or busy
//! wait    ─► the entry before it goes ─► look: the position is read again  ─► the client is told
//! renew   ─► renew_session, once for all its claims ─► what is watched holds; the rest is asked for
//! release ─► forgotten first, then delete, which is retried until it is answered
//! ```
//!
//! Each verb is a function of this kit over one small trait, which the store implements in its file
//! of the same name:
//!
//! | verb | the kit does | the store fills in |
//! |---|---|---|
//! | [`claim`] | a claim that was sent before is found again; a session that ended meanwhile grants nothing | [`Enter`](claim::Enter): `enter`, `turned_away` |
//! | [`wait`] | one read of a position at a time, repeated by events; tells the client | [`Look`](wait::Look): `look` |
//! | [`renew`] | one renewal for each session; a slow one delays no other; what is not watched is verified | [`Renew`](renew::Renew): `renew_session`, `ask` |
//! | [`watch_held`] | watches the entries of holders, a while after their grant; ends lost claims | [`WatchHolders`](watch_held::WatchHolders): `watch`, `verify` |
//! | [`release`] | waits for a read in flight; revocation by fence; detached grants | [`Leave`](release::Leave): `delete`, `holders_of`, `delete_holder` |
//!
//! [`claims`] has the client's own claims, and why those ended that may still be asked about;
//! [`sessions`] one session for each length of lease; [`cleanup`] repeats a deletion until it is
//! done.

#![cfg_attr(
    not(any(feature = "etcd", feature = "zookeeper")),
    allow(
        dead_code,
        reason = "an entry in a database's own session needs no watch, and is never handed over"
    )
)]

pub(crate) mod claim;
pub(crate) mod claims;
pub(crate) mod cleanup;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod sessions;
pub(crate) mod wait;
pub(crate) mod watch_held;

use std::sync::Arc;

use async_trait::async_trait;

use self::claims::{ClaimTable, OwnClaim};
use self::sessions::{OpensSessions, Sessions};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Change, Claim, ClaimId, ClaimRef, ClientHandle, Ending, Extensions, Gone,
    Page, Query, Released, Revoked, Standing, Store,
};

/// The entries of one client, and the sessions that they hang on.
pub(crate) trait Entries: Send + Sync + Sized + 'static {
    type Own: OwnClaim<Session = <Self::Opens as OpensSessions>::Session>;
    type Opens: OpensSessions;
    /// Why a request has no good answer.
    type Failed: From<Error> + Into<Error> + Send + 'static;

    fn claims(&self) -> &ClaimTable<Self::Own>;

    fn sessions(&self) -> &Arc<Sessions<Self::Opens>>;

    /// A claim has ended without its owner: deletes and closes what it leaves behind.
    fn dropped(&self, own: Self::Own);
}

/// A session handle of a backend.
pub(crate) type SessionOf<B> = <<B as Entries>::Opens as OpensSessions>::Session;

/// A system with sessions.
#[async_trait]
pub(crate) trait SessionBackend:
    claim::Enter + wait::Look + renew::Renew + watch_held::WatchHolders + release::Leave
{
    /// Shows lines.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// Turns a holder's claim into something else, where the capability says so.
    async fn change(
        self: &Arc<Self>,
        claim: &ClaimRef,
        to: Change,
        capability: &Capability,
    ) -> Result<Standing> {
        match to {
            Change::Detach => release::detach(self, claim).await,
            other => Err(other.refused_by(capability)),
        }
    }

    /// What the store can do beside the contract.
    fn extensions(self: &Arc<Self>) -> Extensions<'_>;
}

/// The store of a backend.
pub(crate) struct SessionStore<B> {
    pub(crate) backend: Arc<B>,
    pub(crate) capability: &'static Capability,
}

#[async_trait]
impl<B: SessionBackend> Store for SessionStore<B> {
    fn capability(&self) -> &Capability {
        self.capability
    }

    fn attach(&self, client: ClientHandle) {
        self.backend.claims().attach(client);
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        claim::claim(&self.backend, claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew::renew(&self.backend, claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        release::release(&self.backend, claim, ending).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.backend.inspect(query).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        release::revoke(&*self.backend, name, fence).await
    }

    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        self.backend.change(claim, to, self.capability).await
    }

    fn extensions(&self) -> Extensions<'_> {
        self.backend.extensions()
    }
}

/// A claim has ended without its owner, which is told.
pub(crate) fn end<B: Entries>(backend: &B, claim: ClaimId, why: Gone) {
    let own = backend.claims().lock().end(claim, why);
    if let Some(own) = own {
        backend.dropped(own);
        if let Some(client) = backend.claims().client() {
            client.gone(claim, why);
        }
    }
}

/// Records that a claim has ended, unless that was recorded before; and why. Its owner asks just
/// now, and is not told.
pub(crate) fn record_end<B: Entries>(backend: &B, claim: ClaimId, why: Gone) -> Gone {
    let own = backend.claims().lock().end(claim, why);
    own.into_iter().for_each(|own| backend.dropped(own));
    backend.claims().why_gone(claim)
}

/// A session has ended, and with it all its claims.
pub(crate) fn session_ended<B: Entries>(backend: &B, session: i64) {
    for claim in backend.claims().of_session(session) {
        end(backend, claim, Gone::SessionEnded);
    }
}

/// The claim was gone before its position could be read.
pub(crate) fn gone() -> Error {
    Error::unavailable("the claim was gone before the store could say where it stands")
}
