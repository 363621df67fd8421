//! `zk:` — the line in ZooKeeper, as Apache Curator or kazoo keep it.
//!
//! A claim is an ephemeral node below that of the name, and the number that the server gives it is its place in line. Whoever is
//! first holds, and its fence is the transaction that made its node; whoever waits watches the node before its own.
//!
//! ```text
//! /locks/mixed/_c_5f0c…-lock-0000000012      made by transaction 0x300000a41      holds, with that as its fence
//! /locks/mixed/_c_9be1…-lock-0000000013      waits, watches the node above
//! ```
//!
//! # How a request flows
//!
//! ```text
//! ZkStore / PlainStore ─► claiming, semaphore, renewing, ending, listing ─► session ─► pipe ─► wire ─► server
//!        ▲                    │ ▲                                                                │
//!     mailbox ◄─── known ◄────┘ └──────────────── shared ◄───────────────── serving ◄────────────┘ (what watches tell)
//! ```
//!
//! A verb begins in the caller's thread, and `pipe` lets it write its first request to the socket from there. `serving`, the task behind
//! a session, reads the answer in the client's runtime, and wakes the caller, who goes on by it. All else runs in the client's
//! runtime.
//!
//! Claims and releases of many tasks go through `together`, by which they become one transaction.
//!
//! `recipe` is the rule by which the nodes of a line hold or wait; `dating` is what an answer proves about a session; `own` watches the
//! nodes that we hold by, and `janitor` ends the claims that nobody renews.
//!
//! # Why its own client
//!
//! The dozen messages that are needed are in `proto`. `zookeeper-client` 0.11, the best kept of the crates, was measured first, and three
//! things cannot be had from it. It never sets `TCP_NODELAY`, so that two requests at once take two round trips: 803 µs for `create`
//! and `getChildren` sent together, 775 µs one after the other, 511 µs for `create` alone (medians of 1000, on one machine); ours takes 557 µs for
//! both. It pings by itself, which keeps the claims alive that nobody renews. And its TLS brings a second cryptographic library.
//!
//! # What a verb costs
//!
//! | verb | requests at most |
//! |---|---|
//! | acquire, free | `create` and `getChildren`, in one round trip |
//! | acquire, in line | the same, and `getData` with a watch |
//! | hand-off | the release; `getChildren` by whoever is next |
//! | time-out | `delete`; `getChildren` and `getData` before it, to name the holder |
//! | release | `delete` |
//! | renewal | one `multi`, which checks a node, for all claims of one length |
//! | a waiter's heartbeat | the same, and `exists` of its own node and of the one before it |

mod claiming;
mod dating;
mod ending;
mod failure;
mod janitor;
mod jute;
mod known;
mod listing;
mod looking;
pub(crate) mod nodes;
mod own;
mod pipe;
mod plain;
mod proto;
mod recipe;
mod renewing;
mod sasl;
mod semaphore;
mod serving;
mod session;
mod sessions;
mod settings;
mod shared;
mod tls;
mod together;
mod value;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::settings::{Format, NAME_LIMIT, Settings};
use self::shared::{Shared, WokenBy};
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
        Format::Curator => Arc::new(ZkStore(Shared::new(settings), &CURATOR)),
        Format::Kazoo => Arc::new(ZkStore(Shared::new(settings), &KAZOO)),
        Format::Plain => Arc::new(plain::PlainStore(Shared::new(settings))),
    })
}

/// One client's door to the lines in ZooKeeper.
struct ZkStore(Arc<Shared>, &'static Capability);

#[async_trait]
impl Store for ZkStore {
    fn capability(&self) -> &Capability {
        self.1
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        self.0.claim(claim).await
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        match self.0.wakes(claim.id) {
            Some(WokenBy::Push(mailbox)) => mailbox.next().await,
            Some(WokenBy::Grant(fence)) => Woken::Granted(fence),
            None => Woken::Ask,
        }
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
        self.0.lock_node(claim)
    }

    async fn event(&self) -> Event {
        self.0.events.next().await
    }
}
