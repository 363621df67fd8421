//! `redis:` — the line in Redis: one server, a primary under sentinels, or a cluster.
//!
//! Every verb is one Lua script on one key, so one step of the server: see `line` for what the key holds. A release hands the
//! name to the next in line in the same step and tells just that waiter, by `PUBLISH` to its inbox. Claims and releases that many
//! tasks ask for at the same time go as one script on their keys, but for a cluster: see `group`.
//!
//! # How a request flows
//!
//! ```text
//! RedisStore / SimpleStore ─► shared ─► topology (which server?) ─► link ─► connection ─► server
//!        ▲                                                                       │
//!     mailbox ◄───────────────────── a push to the client's inbox ◄────────────┘
//! ```
//!
//! All connections live in the client's own runtime, so neither a blocked nor an ended runtime of the user stops a renewal.
//!
//! # What a verb costs
//!
//! | verb | requests at most | commands inside |
//! |---|---|---|
//! | acquire, free | 1 | 3 |
//! | acquire, in line | 1, and 1 for each heartbeat (a third of the wait lease) | 3 |
//! | time-out | 2: who holds the name, and to leave the line | 2 and 7 |
//! | release | 1 | 2 |
//! | hand-off | the release | 4 more, one of them `PUBLISH`; to another client one `PUBLISH` more |
//! | renewal | 1 pipeline for all claims on one server | 3 each |
//!
//! Where replicas must confirm, a grant waits for one `WAIT` more, shared by all who wait at the same time.

mod batch;
mod client;
mod grant;
mod inspect;
mod line;
mod release_replay;
mod rollback;
mod settings;
mod shared;
mod simple;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::client::lane::Purpose;
use self::settings::{Format, NAME_LIMIT, Settings};
use self::shared::Shared;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Claim, ClaimRef, Detach, Durability, Ending, Event, FenceSource, Grant, Holder, Lease, LeaseUnit, Order,
    Page, Query, Released, Revoked, Standing, Store, Wakes, Woken,
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

pub(crate) use self::settings::line_key;
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
    /// Takes a renewal's answer. A claim that holds and did not know it was handed the name while it waited: then others must not
    /// wait for what becomes of it.
    fn renewed(&self, claim: &ClaimRef, standing: Standing) -> Renewed {
        match standing {
            Standing::Held(grant) if claim.fence.is_none() => {
                self.0.missed_push();
                let (store, claim) = (RedisStore(Arc::clone(&self.0)), Arc::clone(&claim.claim));
                Renewed::Later(tokio::spawn(async move {
                    let standing = store.handed_over(&claim, grant).await?;
                    store.0.stop_waiting(claim.id);
                    Ok(standing)
                }))
            }
            Standing::Gone(why) => {
                self.no_waiter(claim);
                Renewed::Now(Ok(Standing::Gone(why)))
            }
            other => Renewed::Now(Ok(other)),
        }
    }

    /// A claim has ended. Whoever names it by a fence speaks of a grant: it may have ended long ago, and the claim wait for another.
    fn no_waiter(&self, ended: &ClaimRef) {
        if ended.fence.is_none() {
            self.0.stop_waiting(ended.claim.id);
        }
    }

    /// Passes a grant on that was handed over. Where replicas must have it, it is renewed on the connection that then waits for
    /// them: the hand-off was written on somebody else's.
    async fn handed_over(&self, claim: &Claim, grant: Grant) -> Result<Standing> {
        let shared = &self.0;
        if !shared.pushes_need_replicas() && shared.rollback.take(&claim.name, claim.mode, grant.fence) {
            return Ok(Standing::Held(grant));
        }
        Box::pin(self.confirmed(claim, grant)).await
    }

    async fn confirmed(&self, claim: &Claim, grant: Grant) -> Result<Standing> {
        let (shared, lane) = (&self.0, self.0.lane()?);
        let key = shared.settings.key(&claim.name);
        let call = line::renew(&key, &Arc::new(claim.clone()).to_ref(Some(grant.fence)), &lane.inbox);
        let (link, value) = shared.call(&lane, &call, true).await?;
        match line::standing(&value, claim)? {
            Standing::Held(renewed) => grant::safe(shared, &lane, &link, claim, renewed).await.map(Standing::Held),
            // Given back meanwhile, or lost.
            other => Ok(other),
        }
    }
}

/// What became of a renewal, now or later.
enum Renewed {
    Now(Result<Standing>),
    Later(tokio::task::JoinHandle<Result<Standing>>),
}

impl Renewed {
    async fn settled(self) -> Result<Standing> {
        match self {
            Renewed::Now(standing) => standing,
            Renewed::Later(standing) => standing.await.unwrap_or_else(|_| Err(Error::unavailable("the client is ending"))),
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
            shared.wait_for(claim.id);
        }
        let key = shared.settings.key(&claim.name);
        let call = Arc::new(line::claim(&key, claim, &lane.inbox, claim.fresh.take()));
        let called = shared.call_together(&lane, &call, claim.queue).await;
        let answer = match called {
            Ok((link, value, _)) => match line::claim_answer(&value, claim) {
                Ok(Answer::Granted(grant)) => {
                    if !claim.queue {
                        // Nobody waits for it, but a revocation is to be heard of.
                        drop(lane.begin_home(&link));
                    }
                    let undo = |fence| line::release(&key, &Arc::new(claim.clone()).to_ref(Some(fence)), Ending::Undo, false);
                    grant::answer(shared, &lane, &link, claim, grant, undo).await
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

    async fn holder(&self, claim: &Claim) -> Result<Option<Holder>> {
        let page = self.inspect(&Query::Show(claim.name.clone())).await?;
        Ok(page.lines.into_iter().flat_map(|line| line.holders).next())
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        let Some(mailbox) = self.0.mailbox(claim.id) else { return Woken::Ask };
        let Woken::Granted(fence) = mailbox.next().await else { return Woken::Ask };
        // Whoever drops this half-way finds out by a renewal.
        let grant = Grant { fence, lease: Lease::of(claim.wait_lease()) };
        match self.handed_over(claim, grant).await {
            Ok(Standing::Held(_)) => {
                self.0.stop_waiting(claim.id);
                Woken::Granted(fence)
            }
            Ok(_) => Woken::Ask,
            Err(error) => {
                tracing::debug!(%error, name = %claim.name, "a grant that was handed over is not safe");
                Woken::Ask
            }
        }
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let lane = match self.0.lane() {
            Ok(lane) => lane,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let call = |claim: &ClaimRef| line::renew(&self.0.settings.key(&claim.claim.name), claim, &lane.inbox);
        let answers = self.0.call_all(claims.iter().map(call).collect(), Purpose::Renewals, true).await;
        let begun: Vec<Renewed> = claims
            .iter()
            .zip(answers)
            .map(|(claim, answer)| match answer.and_then(|value| line::standing(&value, &claim.claim)) {
                Ok(standing) => self.renewed(claim, standing),
                Err(error) => Renewed::Now(Err(error)),
            })
            .collect();
        let mut standings = Vec::with_capacity(claims.len());
        for renewed in begun {
            standings.push(renewed.settled().await);
        }
        standings
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.no_waiter(claim);
        let lane = self.0.lane()?;
        let settings = &self.0.settings;
        let call = Arc::new(line::release(&settings.key(&claim.claim.name), claim, ending, settings.next_first()));
        let (_, value, sent_again) = self.0.call_together(&lane, &call, false).await?;
        self.0.release_replay.keep(call);
        Ok(shared::unsure(line::released(&value)?, sent_again))
    }

    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        let lane = self.0.lane()?;
        let call = line::downgrade(&self.0.settings.key(&claim.claim.name), claim);
        let (_, value) = self.0.call(&lane, &call, false).await?;
        line::standing(&value, &claim.claim)
    }

    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        let lane = self.0.lane()?;
        let call = line::proclaim(&self.0.settings.key(&claim.claim.name), claim, value);
        let (_, answer) = self.0.call(&lane, &call, false).await?;
        line::standing(&answer, &claim.claim)
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
            Query::List { prefix, after } => inspect::page(&self.0, prefix, after.as_deref()).await,
        }
    }

    async fn event(&self) -> Event {
        self.0.events.next().await
    }
}
