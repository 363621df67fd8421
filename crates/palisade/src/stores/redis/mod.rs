//! `redis:` — the line in Redis: one server, a primary under sentinels, or a cluster.
//!
//! Every verb is one Lua script on one key, so one step of the server: see `line` for what the key holds. A release hands the
//! name to the next in line in the same step and tells just that waiter, by `PUBLISH` to its inbox.
//!
//! # How a request flows
//!
//! ```text
//! RedisStore / SimpleStore ─► shared ─► topology (which server?) ─► lane (whose runtime?) ─► link (one connection) ─► server
//!        ▲                                                                                       │
//!     mailbox ◄──────────────────────── a push to the lane's inbox ◄───────────────────────────┘
//! ```
//!
//! A lane belongs to the runtime of whoever asks: a claim costs no thread switch, and a grant that is pushed arrives in the very
//! thread that waits for it. The client's own thread has a lane too; renewals go by it, so neither a blocked nor an ended
//! runtime of the user stops them.
//!
//! # What a verb costs
//!
//! | verb | requests | commands inside |
//! |---|---|---|
//! | acquire, free | 1 | 3 |
//! | acquire, in line | 1, and 1 for each heartbeat (a third of the wait lease) | 3 to 4 |
//! | release | 1 | 3 |
//! | hand-off | the release | 3 more, one of them `PUBLISH` |
//! | renewal | 1 pipeline for all claims on one server | 3 each |
//!
//! Where replicas must confirm, a grant waits for one `WAIT` more, shared by all who wait at the same time.

mod address;
mod commit;
mod failure;
mod flight;
mod grant;
mod keyspace;
mod lane;
mod line;
mod link;
mod listing;
mod script;
mod seen;
mod settings;
mod shared;
mod simple;
mod topology;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::settings::{Format, NAME_LIMIT, Settings};
use self::shared::Shared;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Claim, ClaimRef, Detach, Durability, Ending, Event, FenceSource, Lease, LeaseUnit, Order, Page, Place,
    Query, Released, Revoked, Runs, Standing, Store, Wakes, Woken,
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
    detach: Detach::Anywhere,
    list: true,
    waiters_known: true,
    revoke: true,
    revoke_pushed: true,
    name_limit: NAME_LIMIT,
    renew_batch: 1024,
    claim_blocks: false,
    runs: Runs::Caller,
};

pub use self::simple::CAPABILITY as SIMPLE;

/// Opens a URL of Redis. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let settings = Settings::read(url)?;
    Ok(match settings.format {
        Format::Palisade => Arc::new(RedisStore(Shared::new(settings))),
        Format::Simple => Arc::new(simple::SimpleStore(Shared::new(settings))),
    })
}

/// One client's door to the lines in Redis.
struct RedisStore(Arc<Shared>);

impl RedisStore {
    /// Takes a renewal's answer. A claim that is found to hold while it waited was handed the name, and the push did not come, or
    /// not yet.
    fn renewed(&self, claim: &ClaimRef, standing: Standing) -> Standing {
        let ClaimRef { claim, fence } = claim;
        match standing {
            Standing::Held(grant) if fence.is_none() => match self.0.handed_over(claim, grant.fence) {
                true => Standing::Held(grant),
                // The waiter claims again, which confirms the grant or refuses it.
                false => {
                    let lease = Lease::of(claim.wait_lease());
                    Standing::Waiting(Place { ahead: Some(0), ask_in: None, lease, holder: None })
                }
            },
            Standing::Gone(why) => {
                self.0.stop_waiting(claim.id);
                Standing::Gone(why)
            }
            other => other,
        }
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, runtime: &tokio::runtime::Handle) {
        self.0.attach(runtime);
    }

    fn part(&self, name: &Name) -> u64 {
        self.0.part(name)
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        let shared = &self.0;
        let lane = shared.lane()?;
        if claim.queue {
            // Before it is sent, so that no push can come before it.
            shared.wait_for(claim.id, &lane);
        }
        let key = shared.settings.key(&claim.name);
        let called = shared.call(&lane, &line::claim(&key, claim, &lane.inbox), claim.queue).await;
        let answer = match called {
            Ok((link, value)) => match line::claim_answer(&value, claim) {
                Ok(Answer::Granted(grant)) => {
                    if !claim.queue {
                        // Nobody waits for it, but a revocation is to be heard of.
                        drop(lane.begin_home(&link));
                    }
                    let claim_ref = Arc::new(claim.clone()).to_ref(Some(grant.fence));
                    let undo = |_| line::release(&key, &claim_ref, Ending::Undo);
                    grant::granted(shared, &lane, &link, claim, grant, undo).await
                }
                other => other,
            },
            Err(error) => Err(error),
        };
        if !matches!(answer, Ok(Answer::Queued(_))) {
            shared.stop_waiting(claim.id);
        }
        answer
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        let Some(mailbox) = self.0.mailbox(claim.id) else { return Woken::Ask };
        match mailbox.next().await {
            // A server that has forgotten what it granted: let the claim refuse it.
            Woken::Granted(fence) if !self.0.seen.take(&claim.name, fence) => Woken::ClaimAgain,
            Woken::Granted(fence) => {
                self.0.stop_waiting(claim.id);
                Woken::Granted(fence)
            }
            woken => woken,
        }
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let own = match self.0.own_lane() {
            Ok(own) => own,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let call = |claim: &ClaimRef| {
            let lane = self.0.waits_in(claim.claim.id).unwrap_or_else(|| Arc::clone(&own));
            line::renew(&self.0.settings.key(&claim.claim.name), claim, &lane.inbox)
        };
        let answers = self.0.call_all(claims.iter().map(call).collect(), true).await;
        let standings = claims.iter().zip(answers);
        standings.map(|(claim, answer)| Ok(self.renewed(claim, line::standing(&answer?, &claim.claim)?))).collect()
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        let lane = self.0.lane()?;
        let call = line::release(&self.0.settings.key(&claim.claim.name), claim, ending);
        let (_, value) = self.0.call(&lane, &call, false).await?;
        self.0.stop_waiting(claim.claim.id);
        line::released(&value)
    }

    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        let lane = self.0.lane()?;
        let call = line::downgrade(&self.0.settings.key(&claim.claim.name), claim);
        let (_, value) = self.0.call(&lane, &call, false).await?;
        line::standing(&value, &claim.claim)
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let lane = self.0.lane()?;
        let (_, value) = self.0.call(&lane, &line::revoke(&self.0.settings.key(name), fence), false).await?;
        line::revoked(&value)
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) => {
                let lane = self.0.lane()?;
                let (_, value) = self.0.call(&lane, &line::show(&self.0.settings.key(name)), false).await?;
                Ok(Page { lines: line::view(&value, name)?.into_iter().collect(), next: None })
            }
            Query::List { prefix, after } => listing::page(&self.0, prefix, after.as_deref()).await,
        }
    }

    async fn event(&self) -> Event {
        self.0.events.next().await
    }
}
