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
//! ZkStore / PlainStore ─► claim, semaphore, renew, release, inspect ─► batch ─► client::session ─► connection ─► server
//!        ▲                  │ ▲                                                                                   │
//!        └───── claims ◄────┘ └───── wait, position ◄──── locks ◄──── watches ◄──── client::connection_task ◄─────┘
//! ```
//!
//! `client` is how bytes get to the server, and knows nothing of locks. The rest is the locks: `queue_rules` says which nodes of a line
//! hold; `position` applies them to one claim; `claims` is the table of this client's own claims; `sessions` has the sessions that they
//! hang on; `holder_watches` watches the nodes that they hold by; `cleanup` deletes what must not stay behind, and `janitor` ends
//! claims that are not renewed.
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
mod janitor;
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
use self::settings::{Format, NAME_LIMIT, Settings};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Claim, ClaimId, ClaimRef, Detach, Durability, Ending, Event, FenceSource, Holder, LeaseUnit, Order, Page,
    Query, Released, Revoked, Standing, Store, Wakes, Woken,
};
use crate::url::StoreUrl;

/// What the format `curator` can do.
pub const CURATOR: Capability = Capability {
    store: "zookeeper",
    format: "curator",
    durability: Durability::Quorum,
    order: Order::Fifo,
    wakes: Wakes::Watch,
    fence: FenceSource::Revision,
    lease_unit: LeaseUnit::Session,
    // What a server with the usual tick of two seconds grants at the least; at the most it is ten times that.
    min_lease: Duration::from_secs(4),
    max_lease: Duration::from_secs(24 * 3600),
    rwlock: true,
    semaphore: true,
    mutex_is_write_side: false,
    // A node that says it is a writer's is one for ever.
    downgrade: false,
    // Nodes end with their session, and the server has no clock that a request could read.
    min_hold: false,
    once_per: false,
    once: false,
    proclaim: false,
    observe: false,
    detach: Detach::Anywhere,
    list: true,
    waiters_known: true,
    // A node hangs on the session that made it.
    short_waits: false,
    revoke: true,
    revoke_pushed: true,
    name_limit: NAME_LIMIT,
    // However many they are, one request renews them.
    renew_batch: 1 << 20,
    claim_blocks: false,
};

/// What the format `kazoo` can do.
pub const KAZOO: Capability = Capability { format: "kazoo", semaphore: false, ..CURATOR };

pub use self::plain::PLAIN;

/// Opens a URL of ZooKeeper. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let settings = Settings::read(url)?;
    Ok(match settings.format {
        Format::Curator => Arc::new(ZkStore(Locks::new(settings), &CURATOR)),
        Format::Kazoo => Arc::new(ZkStore(Locks::new(settings), &KAZOO)),
        Format::Plain => Arc::new(plain::PlainStore(Locks::new(settings))),
    })
}

/// One client's door to the lines in ZooKeeper.
struct ZkStore(Arc<Locks>, &'static Capability);

#[async_trait]
impl Store for ZkStore {
    fn capability(&self) -> &Capability {
        self.1
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        self.0.claim(claim).await
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        self.0.wake(claim.id).await
    }

    async fn holder(&self, claim: &Claim) -> Result<Option<Holder>> {
        Ok(self.0.holder(claim).await?)
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.0.renew(claims).await
    }

    async fn release(&self, claim: &ClaimRef, _: Ending) -> Result<Released> {
        self.0.release(claim).await
    }

    async fn detach(&self, claim: &ClaimRef) -> Result<Standing> {
        self.0.detach(claim).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.0.revoke(name, fence).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        match &self.0.claims.lock().own.get(&claim)?.stage {
            Stage::Holding(holding) => holding.nodes.first().cloned(),
            Stage::Waiting(_) => None,
        }
    }

    async fn event(&self) -> Event {
        self.0.claims.events.next().await
    }
}
