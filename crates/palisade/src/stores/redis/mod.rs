//! `redis:` — the line in Redis: one server, a primary under sentinels, or a cluster.
//!
//! Every verb is one Lua script on one key, so one atomic step of the server: `line` says what the key holds. A release hands the
//! name to the next in line in the same step and tells just that waiter, by `PUBLISH` to its inbox. Claims and releases of many
//! tasks at the same time go as one script on their keys, except in a cluster: see `batch`.
//!
//! # How a request flows
//!
//! ```text
//! claim, renew, release, inspect ─► line (the call) ─► batch ─► client ─► server
//!                                                                 │
//!        core ◄── wait (the inbox) ◄── a push to the inbox ◄──────┘
//! ```
//!
//! `client` gets a script to the server that has its key, and knows nothing of locks.
//!
//! # What a verb costs
//!
//! | verb | requests at most | commands inside |
//! |---|---|---|
//! | acquire, free | 1 | 3; 5 if its key is gone |
//! | acquire, in line | 1, and 1 for each heartbeat (a third of the wait lease) | 3, behind other waiters 4 |
//! | time-out | 2: who holds the name, and to leave the line | 2 and 7 |
//! | release | 1 | 3 |
//! | hand-off | the release | 3 more, one of them `PUBLISH` |
//! | renewal | 1 pipeline for all claims on one server | 3 each |
//!
//! Where replicas must confirm, a grant waits for one `WAIT` more, shared by all grants at the same time.

mod batch;
mod claim;
mod client;
mod failure;
mod grant;
mod inspect;
mod line;
mod release;
mod release_replay;
mod renew;
mod rollback;
mod settings;
mod simple;
#[cfg(test)]
mod tests;
mod wait;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;

use self::batch::Batch;
use self::client::{Call, Called, Client};
use self::release_replay::ReleaseReplay;
use self::rollback::Rollback;
pub(crate) use self::settings::line_key;
use self::settings::{Format, Settings};
pub use self::simple::CAPABILITY as SIMPLE;
use self::simple::Keyspace;
use crate::error::{Error, Result};
use crate::store::{
    ByClaim, Capability, Change, Claim, ClaimId, ClaimRef, ClientHandle, Page, Query, Standing,
    Store,
};
use crate::stores::kit::line::{Effect, Event, LineBackend, LineStore};
use crate::stores::kit::token::TokenStore;
use crate::url::StoreUrl;

/// What the format `palisade` can do.
pub const CAPABILITY: Capability = Capability {
    store: "redis",
    format: "palisade",
    ..Capability::LINE
};

/// Opens a URL of Redis. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let locks = Locks::open(url)?;
    Ok(match locks.settings.format {
        Format::Palisade => Arc::new(LineStore(Lines {
            batch: Batch::of(&locks),
            locks,
        })),
        Format::Simple => Arc::new(TokenStore(simple::Simple::of(locks))),
    })
}

/// What both formats need.
struct Locks {
    settings: Settings,
    client: Arc<Client>,
    /// Our own client, to push to.
    handle: OnceLock<ClientHandle>,
    /// The claims that may be in line: a push names only the id.
    waiting: Mutex<ByClaim<Arc<Claim>>>,
    rollback: Rollback,
    release_replay: ReleaseReplay,
    /// For the format `simple`.
    keyspace: Arc<Keyspace>,
}

impl Locks {
    fn open(url: StoreUrl) -> Result<Arc<Locks>> {
        let (settings, client) = Settings::read(url)?;
        // A random channel: no other client can guess it.
        let inbox = settings.inbox(&ClaimId::random()?.reveal());
        Ok(Arc::new_cyclic(|locks| Locks {
            settings,
            client: Client::new(client, inbox, Arc::new(wait::Inbox::of(locks))),
            handle: OnceLock::new(),
            waiting: Mutex::default(),
            rollback: Rollback::default(),
            release_replay: ReleaseReplay::default(),
            keyspace: Arc::default(),
        }))
    }

    fn attach(&self, client: ClientHandle) {
        // Told once.
        let _ = self.handle.set(client);
    }

    fn waiting(&self) -> MutexGuard<'_, ByClaim<Arc<Claim>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim is still to be sent. Its caller may have left while it waited for a connection, or for its turn.
    fn wants(&self, claim: ClaimId) -> bool {
        self.handle.get().is_none_or(|client| client.wants(claim))
    }

    /// Calls a script after which nothing is pushed to us.
    async fn call(&self, call: &Call) -> Result<Called> {
        self.client.call(call, false).await
    }
}

/// The error of a claim whose caller has left before it was sent.
fn unwanted() -> Error {
    Error::unavailable("the caller has left before the claim was sent").with_nothing_sent()
}

/// The lines in Redis, for one client.
struct Lines {
    locks: Arc<Locks>,
    batch: Batch,
}

#[async_trait]
impl LineBackend for Lines {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, client: ClientHandle) {
        self.locks.attach(client);
    }

    async fn apply(&self, event: Event) -> Result<Effect> {
        let key = self.locks.settings.key(event.name());
        Ok(match event {
            Event::Claim(claim) => Effect::Answered(claim::claim(self, &key, &claim).await?),
            Event::Release(claim, ending) => {
                Effect::Released(release::release(self, &key, &claim, ending).await?)
            }
            Event::Change(claim, to) => {
                let call = match to {
                    Change::Detach => line::renew(&key, &claim, self.locks.client.inbox()),
                    Change::Downgrade => line::downgrade(&key, &claim),
                    Change::Proclaim(value) => line::proclaim(&key, &claim, &value),
                };
                Effect::Stands(line::standing(
                    &self.locks.call(&call).await?.value,
                    &claim.claim,
                )?)
            }
            Event::Revoke(_, fence) => Effect::Revoked(line::revoked(
                &self.locks.call(&line::revoke(&key, fence)).await?.value,
            )?),
        })
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew::renew(&self.locks, claims).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) | Query::Leader(name) => inspect::show(&self.locks, name).await,
            Query::List { prefix, after } => {
                inspect::list(&self.locks, prefix, after.as_deref()).await
            }
        }
    }
}
