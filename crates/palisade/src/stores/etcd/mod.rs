//! `etcd:` — the line in etcd, as its own Go client and `etcdctl lock` keep it.
//!
//! A claim is a key under the name's prefix, and its create revision is its place in line and its fence. Whoever has the lowest
//! holds; whoever waits watches the key before its own.
//!
//! ```text
//! locks/mixed/694d9c3f2a1b…        create revision 12        holds, fence 12
//! locks/mixed/01f3…                create revision 15        waits, watches the key above and its own
//! ```
//!
//! # How a request flows
//!
//! ```text
//! EtcdStore / PlainStore ─► shared ─► claiming, renewing, asking, ending ─► members (which one?) ─► lane (whose runtime?) ─► server
//!        ▲                    │ ▲                    │
//!     mailbox ◄─── known ◄────┘ └── watcher ◄──      └─► session ─► heartbeat ─► server
//! ```
//!
//! Claims, looks and releases run in the caller's own task, by a connection of its runtime: see `lane`. Sessions, streams, and all
//! that nobody waits for are the client's own thread's: see `lanes`. `direct` is what those who ask often write
//! by, and `packed` what all others do.
//! `together` lets claims and releases go together that find others on their way.
//! `seats` is where the keys are, and which are used again.
//! `electing` is what elections add: the leader's value, and who watches it.
//! `standing` is the rule by which the keys of a line hold or wait; `entry` is what a key says; `told` is what is done when a watch
//! tells of one.
//!
//! # What a verb costs
//!
//! | verb | requests |
//! |---|---|
//! | acquire, free | 1 transaction |
//! | acquire, in line | 1 transaction, 1 watch unless one rests (see `resting`), 1 more after a while; 1 read more if something was written meanwhile |
//! | hand-off | the release, and 1 read by whoever is next; permits are written as well, and then the one behind them reads |
//! | release | 1 deletion |
//! | a hold longer than 100 ms | 1 watch, and 1 read for a hundred keys |
//! | renewal | 1 keep-alive for all claims of one length, and 1 message that asks the watches for a sign of life |

mod asking;
mod claiming;
mod direct;
mod electing;
mod ending;
mod entry;
mod failure;
mod heartbeat;
mod known;
mod lane;
mod lanes;
mod leaving;
mod link;
mod listing;
mod members;
mod packed;
mod past;
mod plain;
mod proto;
mod renewing;
mod resting;
mod seats;
mod session;
mod settings;
mod shared;
mod standing;
mod together;
mod told;
mod txn;
mod watcher;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::renewing::Looked;
use self::settings::{Format, NAME_LIMIT, Settings};
use self::shared::Shared;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Claim, ClaimId, ClaimRef, Detach, Durability, Ending, Event, FenceSource, Leader, LeaseUnit, Observation,
    Order, Page, Query, Released, Revoked, Standing, Store, Wakes, Woken,
};
use crate::stores::mailbox::PutsBack;
use crate::url::StoreUrl;

/// What the format `mutex` can do.
pub const CAPABILITY: Capability = Capability {
    store: "etcd",
    format: "mutex",
    durability: Durability::Quorum,
    order: Order::Fifo,
    wakes: Wakes::Watch,
    fence: FenceSource::Revision,
    lease_unit: LeaseUnit::Session,
    // What a server with the usual election time-out grants at the least.
    min_lease: Duration::from_secs(2),
    max_lease: Duration::from_secs(24 * 3600),
    rwlock: true,
    semaphore: true,
    mutex_is_write_side: true,
    downgrade: true,
    min_hold: true,
    // etcd has no clock that a transaction could read.
    once_per: false,
    once: true,
    proclaim: true,
    observe: true,
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

pub(crate) use self::link::{Kept, Link, Writing, may_be_done};
pub use self::plain::PLAIN;

/// Opens a URL of etcd. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let settings = Settings::read(&url)?;
    Ok(match settings.format {
        Format::Mutex => Arc::new(EtcdStore(Shared::new(settings)?)),
        Format::Plain => Arc::new(plain::PlainStore(Shared::new(settings)?)),
    })
}

/// One client's door to the lines in etcd.
struct EtcdStore(Arc<Shared>);

#[async_trait]
impl Store for EtcdStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, runtime: &tokio::runtime::Handle) {
        self.0.members.lanes.attach(runtime);
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        self.0.claim(claim).await
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        loop {
            let Some(mailbox) = self.0.mailbox(claim.id) else { return Woken::Ask };
            let woken = mailbox.next().await;
            // Whoever drops this half-way finds the push again.
            let kept = PutsBack::new(&mailbox, woken);
            let looked = self.0.look_if_first(claim).await;
            kept.seen_to();
            match looked {
                Ok(Looked::First(fence)) => return Woken::Granted(fence),
                Ok(Looked::Waits) => {}
                Ok(Looked::Unsure) | Err(_) => return Woken::Ask,
            }
        }
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.0.renew(claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.0.release(claim, ending).await
    }

    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        self.0.downgrade(claim).await
    }

    async fn detach(&self, claim: &ClaimRef) -> Result<Standing> {
        self.0.detach(claim).await
    }

    async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        self.0.leader(name).await
    }

    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        self.0.proclaim(claim, value).await
    }

    async fn observe(&self, name: &Name) -> Result<Observation> {
        self.0.observe(name).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.0.revoke(name, fence).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        self.0.key_end(claim)
    }

    async fn event(&self) -> Event {
        self.0.events.next().await
    }
}
