//! `zk:` — the line in ZooKeeper, as Apache Curator or kazoo keep it.
//!
//! A claim is an ephemeral node below that of the name, and the number that the server gives it is its place in line. The first node
//! holds, and its fence is the transaction that made the node; each waiter watches the node before its own.
//!
//! ```text
//! /locks/mixed/_c_5f0c…-lock-0000000012      made by transaction 0x300000a41      holds, with that as its fence
//! /locks/mixed/_c_9be1…-lock-0000000013      waits, watches the node above
//! ```
//!
//! # How a request flows
//!
//! ```text
//! ZkStore / Plain ─────► claim, semaphore, renew, release, inspect ─► batch ─► client::session ─► connection ─► server
//!        ▲                  │ ▲                                                                                   │
//!        └───── claims ◄────┘ └───── wait, position ◄──── locks ◄──── watches ◄──── client::connection_task ◄─────┘
//! ```
//!
//! `client` is how bytes get to the server, and knows nothing of locks. The rest is the locks: `queue_rules` says which nodes of a line
//! hold; `position` applies them to one claim; `claims` is the table of this client's own claims; `sessions` has the sessions that they
//! hang on; `holder_watches` watches the nodes that they hold by; `cleanup` deletes what must not stay behind.
//!
//! # What a verb costs
//!
//! | verb | requests at most |
//! |---|---|
//! | acquire, free | `create` and `getChildren`, in one round trip |
//! | acquire, in line | the same, and `getData` with a watch |
//! | hand-off | the release; `getChildren` by the next in line |
//! | time-out | `delete`; `getChildren` and `getData` before it, to name the holder |
//! | release | `delete` |
//! | renewal | one `multi`, which checks a node, for all claims of one length |
//! | a waiter's heartbeat | the same, and `exists` of its own node and of the one before it |

mod batch;
mod claim;
mod claims;
mod cleanup;
pub(crate) mod client;
mod failure;
mod holder_watches;
mod inspect;
mod locks;
mod parents;
mod plain;
mod position;
mod queue_rules;
mod release;
mod renew;
mod search;
mod semaphore;
mod sessions;
mod settings;
mod value;
mod wait;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::claims::Stage;
use self::locks::Locks;
use self::settings::{Format, Settings};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Change, Claim, ClaimId, ClaimRef, ClientHandle, Ending, Extensions,
    LockKeys, Page, Query, Released, Revoked, Standing, Store,
};
use crate::stores::kit::token::TokenStore;
use crate::url::StoreUrl;

/// What the format `curator` can do.
pub const CURATOR: Capability = Capability {
    store: "zookeeper",
    format: "curator",
    // The least that a server with the usual tick of two seconds grants; the most is ten times that.
    min_lease: Duration::from_secs(4),
    mutex_is_write_side: false,
    // The name of a node says that it is a writer's, and cannot be changed.
    downgrade: false,
    // Nodes end with their session, and the server has no clock that a request could read.
    min_hold: false,
    once: false,
    proclaim: false,
    // A node hangs on the session that made it.
    short_waits: false,
    ..Capability::SESSION
};

/// What the format `kazoo` can do.
pub const KAZOO: Capability = Capability {
    format: "kazoo",
    semaphore: false,
    ..CURATOR
};

pub use self::plain::PLAIN;

/// Opens a URL of ZooKeeper. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let settings = Settings::read(url)?;
    Ok(match settings.format {
        Format::Curator => Arc::new(ZkStore(Locks::new(settings), &CURATOR)),
        Format::Kazoo => Arc::new(ZkStore(Locks::new(settings), &KAZOO)),
        Format::Plain => Arc::new(TokenStore(plain::Plain(Locks::new(settings)))),
    })
}

/// One client's door to the lines in ZooKeeper.
struct ZkStore(Arc<Locks>, &'static Capability);

#[async_trait]
impl Store for ZkStore {
    fn capability(&self) -> &Capability {
        self.1
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

    async fn release(&self, claim: &ClaimRef, _: Ending) -> Result<Released> {
        self.0.release(claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.0.revoke(name, fence).await
    }

    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        match to {
            Change::Detach => self.0.detach(claim).await,
            Change::Downgrade => Err(Error::unsupported(format!(
                "{} cannot turn a write lock into a read lock",
                self.1
            ))),
            Change::Proclaim(_) => Err(Error::unsupported(format!(
                "{} cannot change a leader's value; resign, and campaign with the other",
                self.1
            ))),
        }
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            lock_keys: Some(self),
            ..Extensions::default()
        }
    }
}

impl LockKeys for ZkStore {
    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        match &self.0.claims.lock().own.get(&claim)?.stage {
            Stage::Holding(holding) => holding.nodes.first().cloned(),
            Stage::Waiting(_) => None,
        }
    }
}
