//! `redis:` — the line in Redis: one server, a primary under sentinels, or a cluster.
//!
//! Every verb is one Lua script on one key, so one atomic step of the server: `line` documents the
//! key. A release hands the name to the next waiter in the same step and tells only that waiter, by
//! `PUBLISH` to its inbox. Claims and releases of many tasks at the same time are batched into one
//! script on their keys, except in a cluster: see `batch`.
//!
//! # How a request flows
//!
//! ```text
//! claim, release ──► line (encodes the call) ──► batch ──┐
//! renew, inspect ──► line ───────────────────────────────┴──► client ──► server
//!                                                                │
//! core ◄──── wait (the inbox) ◄──── a push to the inbox ◄────────┘
//! ```
//!
//! `client` carries a script to the server that has its key, and knows nothing of locks. The formats
//! `simple` and `redisson` have verbs of their own, over the same `batch` and `client`; their waiters
//! listen to peers by `channels`.
//!
//! # What a verb costs
//!
//! | verb | requests at most | commands inside |
//! |---|---|---|
//! | acquire, free | 1 | 3; 5 if its key is gone |
//! | acquire, in line | 1, and 1 for each heartbeat (a third of the wait lease) | 3, behind other waiters 4 |
//! | time-out | 2: to ask for the holder, and to leave the line | 2 and 7 |
//! | release | 1 | 3 |
//! | hand-off | the release | 3 more, one of them `PUBLISH` |
//! | renewal | 1 pipeline for all claims on one server | 3 each |
//!
//! Where replicas must confirm, a grant also waits for one `WAIT`, shared by all grants at the same
//! time.

mod backend;
mod batch;
mod channels;
mod claim;
pub(crate) mod client;
mod failure;
mod inspect;
mod latch;
mod line;
mod redisson;
mod release;
mod renew;
mod rollback;
mod server_info;
mod settings;
mod simple;
#[cfg(test)]
mod tests;
mod wait;

use std::sync::Arc;

use async_trait::async_trait;

use self::backend::Backend;
pub(in crate::stores) use self::backend::unwanted;
use self::batch::Batch;
pub(in crate::stores) use self::failure::unexpected;
pub use self::redisson::{CAPABILITY as REDISSON, FAIR as REDISSON_FAIR};
pub(in crate::stores) use self::rollback::Rollback;
pub(in crate::stores) use self::server_info::describe;
use self::settings::Format;
pub(in crate::stores) use self::settings::Settings as Keys;
pub(crate) use self::settings::line_key;
pub use self::simple::CAPABILITY as SIMPLE;
pub(in crate::stores) use self::simple::{
    REVOKE, SHOW, Token, check_key, digits, fence_key, gone, millis, owner_and_reason, read_fence,
    token_and_left,
};
use crate::error::Result;
use crate::name::Name;
use crate::store::{
    Capability, Change, ClaimRef, ClientHandle, Extensions, NameKeys, Page, Ping, Query,
    ServerInfo, Standing, Store,
};
use crate::stores::kit::line::{Effect, Event, LineBackend, LineStore};
use crate::stores::kit::token::TokenStore;
use crate::url::StoreUrl;

/// The capability of the format `palisade`.
pub const CAPABILITY: Capability = Capability {
    store: "redis",
    format: "palisade",
    ..Capability::LINE
};

/// Opens a URL of Redis. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let backend = Backend::open(url)?;
    Ok(match backend.settings.format {
        Format::Palisade => Arc::new(LineStore(Lines {
            batch: Batch::of(&backend),
            backend,
        })),
        Format::Simple => Arc::new(TokenStore(simple::Simple::of(backend))),
        Format::Redisson => Arc::new(TokenStore(redisson::Redisson::of(backend))),
    })
}

/// The lines in Redis, for one client.
struct Lines {
    backend: Arc<Backend>,
    batch: Batch,
}

#[async_trait]
impl LineBackend for Lines {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, client: ClientHandle) {
        self.backend.attach(client);
    }

    async fn apply(&self, event: Event) -> Result<Effect> {
        let key = self.backend.settings.key(event.name());
        Ok(match event {
            Event::Claim(claim) => Effect::Answered(claim::claim(self, &key, &claim).await?),
            Event::Release(claim, ending) => {
                Effect::Released(release::release(self, &key, &claim, ending).await?)
            }
            Event::Change(claim, to) => {
                let call = match to {
                    Change::Detach => line::renew(&key, &claim, self.backend.client.inbox()),
                    Change::Downgrade => line::downgrade(&key, &claim),
                    Change::Proclaim(value) => line::proclaim(&key, &claim, &value),
                };
                Effect::Stands(line::standing(
                    &self.backend.call(&call).await?.value,
                    &claim.claim,
                )?)
            }
            Event::ClearMarks(_) => Effect::Cleared(line::cleared(
                &self.backend.call(&line::clear_marks(&key)).await?.value,
            )?),
            Event::Revoke(_, fence) => Effect::Revoked(line::revoked(
                &self.backend.call(&line::revoke(&key, fence)).await?.value,
            )?),
        })
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew::renew(&self.backend, claims).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) | Query::Leader(name) => inspect::show(&self.backend, name).await,
            Query::List { prefix, after } => {
                inspect::list(&self.backend, prefix, after.as_deref()).await
            }
        }
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(self),
            name_keys: Some(&*self.backend),
            latches: Some(&self.backend),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Lines {
    async fn ping(&self) -> Result<ServerInfo> {
        let key = self.backend.settings.key(&Name::of_ping());
        server_info::ping(&self.backend, &line::show(&key)).await
    }
}

impl NameKeys for Backend {
    fn key(&self, name: &Name) -> Result<String> {
        Ok(self.settings.key(name))
    }
}
