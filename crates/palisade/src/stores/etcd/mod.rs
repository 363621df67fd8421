//! `etcd:` — the line in etcd, in the format of its own Go client and of `etcdctl lock`.
//!
//! A claim is a key under the name's prefix, and its create revision is its place in line and its fence. The claim with the lowest
//! one holds; a waiter watches the key before its own.
//!
//! ```text
//! locks/mixed/694d9c3f2a1b…        create revision 12        holds, fence 12
//! locks/mixed/01f3…                create revision 15        waits, watches the key above and its own
//! ```
//!
//! # How a request flows
//!
//! ```text
//! EtcdStore / Plain ─────► claim, renew, release, change, inspect ─► locks ─► batch ─► client: cluster ─► server
//!                                  │                                     └──────────────────▲
//!                                  ▼                                                        │
//! core ◄── ClientHandle ◄── wait, own_watches ◄── client: watch ◄── server       session ─► client: keep_alive
//! ```
//!
//! `client` is how bytes get to the server, and knows nothing of locks; `fence::etcd` and `versioned::etcd` use it, too.
//! `claims` has this client's own claims; `session` the leases of etcd that their keys are attached to; `key_pool` the keys, which are
//! used again. `batch` sends claims and releases as one transaction when others are in flight. `queue_rules` decides which keys of
//! a line hold and which wait; `entry` is what a key says; `position` reads as much of a line as decides. `election` has the
//! observers of elections.
//!
//! # What a verb costs
//!
//! | verb | requests |
//! |---|---|
//! | acquire, free | 1 transaction |
//! | acquire, in line | 1 transaction, 1 watch unless an idle one is reused, 1 more after a while; 1 read more if something was written meanwhile |
//! | hand-off | the release, and 1 read by the next in line; permits are written as well, and then the one behind them reads |
//! | release | 1 transaction |
//! | a hold longer than 100 ms | 1 watch, and 1 read for a hundred keys |
//! | renewal | 1 keep-alive and 1 read for all claims of one length, and 1 message that asks the watches for a sign of life |

mod batch;
mod change;
mod claim;
mod claims;
pub(crate) mod client;
mod election;
mod entry;
mod inspect;
mod key_pool;
mod locks;
mod own_watches;
mod pending_deletes;
mod plain;
mod position;
mod queue_rules;
mod release;
mod renew;
mod session;
mod settings;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::locks::Locks;
pub use self::plain::PLAIN;
use self::settings::{Format, Settings};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Change, Claim, ClaimId, ClaimRef, ClientHandle, Ending, Extensions,
    LockKeys, Observation, Observe, Page, Query, Released, Revoked, Standing, Store,
};
use crate::stores::kit::token::TokenStore;
use crate::url::StoreUrl;

/// What the format `mutex` can do. It has no `once_per`: etcd has no clock that a transaction could read.
pub const CAPABILITY: Capability = Capability {
    store: "etcd",
    format: "mutex",
    // The shortest lease of a server with the default election time-out.
    min_lease: Duration::from_secs(2),
    observe: true,
    ..Capability::SESSION
};

/// Opens a URL of etcd. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let settings = Settings::read(&url)?;
    Ok(match settings.format {
        Format::Mutex => Arc::new(EtcdStore(Locks::new(settings)?)),
        Format::Plain => Arc::new(TokenStore(plain::Plain(Locks::new(settings)?))),
    })
}

/// The store of one client.
struct EtcdStore(Arc<Locks>);

#[async_trait]
impl Store for EtcdStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, client: ClientHandle) {
        self.0.claims.attach(client);
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

impl Locks {
    fn extensions(self: &Arc<Self>) -> Extensions<'_> {
        Extensions {
            observe: Some(self),
            lock_keys: Some(self),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Observe for Arc<Locks> {
    async fn observe(&self, name: &Name) -> Result<Observation> {
        Locks::observe(self, name).await
    }
}

impl LockKeys for Arc<Locks> {
    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        self.key_end(claim)
    }
}
