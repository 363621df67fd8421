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
//! | acquire, free | 1 | 3 |
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

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::batch::Batch;
use self::client::{Call, Called, Client};
use self::rollback::Rollback;
pub(crate) use self::settings::line_key;
use self::settings::{Format, NAME_LIMIT, Settings};
pub use self::simple::CAPABILITY as SIMPLE;
use self::wait::Inbox;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Claim, ClaimId, ClaimRef, Detach, Durability, Ending, Event, FenceSource, Holder, LeaseUnit, Order, Page,
    Query, Released, Revoked, Standing, Store, Wakes, Woken,
};
use crate::url::StoreUrl;

/// What the format `palisade` can do.
pub const CAPABILITY: Capability = Capability {
    store: "redis",
    format: "palisade",
    durability: Durability::Server,
    order: Order::Fifo,
    wakes: Wakes::Push,
    fence: FenceSource::CounterAndClock,
    lease_unit: LeaseUnit::Claim,
    min_lease: Duration::from_millis(100),
    max_lease: Duration::from_secs(24 * 3600),
    rwlock: true,
    semaphore: true,
    mutex_is_write_side: true,
    downgrade: true,
    min_hold: true,
    once_per: true,
    once: true,
    proclaim: true,
    observe: false,
    detach: Detach::Anywhere,
    list: true,
    waiters_known: true,
    short_waits: true,
    revoke: true,
    revoke_pushed: true,
    name_limit: NAME_LIMIT,
    renew_batch: 1024,
    claim_blocks: false,
};

/// Opens a URL of Redis. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let locks = Locks::open(url)?;
    Ok(match locks.settings.format {
        Format::Palisade => Arc::new(RedisStore { locks, batch: Arc::default() }),
        Format::Simple => Arc::new(simple::SimpleStore(locks)),
    })
}

/// What both formats need.
struct Locks {
    settings: Settings,
    client: Arc<Client>,
    inbox: Arc<Inbox>,
    rollback: Rollback,
}

impl Locks {
    fn open(url: StoreUrl) -> Result<Arc<Locks>> {
        let (settings, client) = Settings::read(url)?;
        let inbox = Arc::new(Inbox::default());
        // A random channel: no other client can guess it.
        let channel = settings.inbox(&ClaimId::random()?.reveal());
        let client = Client::new(client, channel, Arc::clone(&inbox) as _);
        Ok(Arc::new(Locks { settings, client, inbox, rollback: Rollback::default() }))
    }

    /// Calls a script after which nothing is pushed to us.
    async fn call(&self, call: &Call) -> Result<Called> {
        self.client.call(call, false).await
    }

    /// Which server has a name, as far as is known: claims of different servers are renewed apart.
    fn part(&self, name: &Name) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        self.client.last_known_server(&self.settings.key(name)).hash(&mut hasher);
        hasher.finish()
    }
}

/// The lines in Redis, for one client.
#[derive(Clone)]
struct RedisStore {
    locks: Arc<Locks>,
    batch: Arc<Batch>,
}

#[async_trait]
impl Store for RedisStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn part(&self, name: &Name) -> u64 {
        self.locks.part(name)
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        claim::claim(self, claim).await
    }

    async fn holder(&self, claim: &Claim) -> Result<Option<Holder>> {
        let page = inspect::show(&self.locks, &claim.name).await?;
        Ok(page.lines.into_iter().flat_map(|line| line.holders).next())
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        wait::wake(&self.locks, claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew::renew(&self.locks, claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        release::release(self, claim, ending).await
    }

    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        let called = self.locks.call(&line::downgrade(&self.locks.settings.key(&claim.claim.name), claim)).await?;
        line::standing(&called.value, &claim.claim)
    }

    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        let called = self.locks.call(&line::proclaim(&self.locks.settings.key(&claim.claim.name), claim, value)).await?;
        line::standing(&called.value, &claim.claim)
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let called = self.locks.call(&line::revoke(&self.locks.settings.key(name), fence)).await?;
        line::revoked(&called.value)
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) => inspect::show(&self.locks, name).await,
            Query::List { prefix, after } => inspect::list(&self.locks, prefix, after.as_deref()).await,
        }
    }

    async fn event(&self) -> Event {
        self.locks.inbox.next_event().await
    }
}
