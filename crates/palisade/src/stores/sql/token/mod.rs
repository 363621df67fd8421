//! The formats that share one table with other programs, a row for each lock: `simple` and
//! `shedlock`. The routine that applies a verb to a row is written once for each database; all else
//! is here.

mod layout;

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

pub(crate) use self::layout::{Column, ENDINGS, Facts, Layout, SHEDLOCK, SIMPLE, Zone};
use super::{micros, span};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Busy, Capability, Claim, ClaimId, ClaimRef, ClientHandle, Ending, Extensions, Gone, Grant,
    Holder, Lease, Page, Query, Released, Revoked, Standing,
};
use crate::stores::in_task::in_task;
use crate::stores::kit::token::value::{Token, owner_and_reason};
use crate::stores::kit::token::{Put, TokenBackend, page_of};

/// How often expired locks and old fences are removed.
const SWEEP: Duration = Duration::from_secs(60);

/// One call of the routine.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) verb: &'static str,
    pub(crate) name: String,
    /// In hex; nothing where no claim asks.
    pub(crate) claim: String,
    /// 0 for none.
    pub(crate) fence: i64,
    /// Owner and reason.
    pub(crate) label: String,
    pub(crate) lease: i64,
    /// In microseconds, the smallest step of time that the column of the expiry can hold.
    pub(crate) unit: i64,
    pub(crate) zone: &'static str,
    /// Asked before it is sent: whether the caller of this claim still wants it.
    pub(crate) wanted: Option<ClaimId>,
    /// Of a renewal, which goes before other calls.
    pub(crate) limit: Option<Duration>,
}

/// The answer of the routine. Spans are microseconds, negative when there is none.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) done: String,
    /// What the column of the owner holds.
    pub(crate) holder: Option<String>,
    pub(crate) held: i64,
    pub(crate) left: i64,
    /// Whether the call was sent more than once.
    pub(crate) sent_again: bool,
}

/// A table on a server.
#[async_trait]
pub(crate) trait LockTable: Send + Sync + 'static {
    fn attach(&self, client: ClientHandle);

    /// The name in the table.
    fn key(&self, name: &Name) -> Result<String>;

    /// The columns of the table, which is created if need be.
    async fn columns(&self) -> Result<Vec<Column>>;

    /// The time zone of sessions that set none.
    async fn server_zone(&self) -> Result<String>;

    async fn call(&self, call: Call) -> Result<Reply>;

    fn extensions(&self) -> Extensions<'_>;
}

/// The locks in the table of a layout, for one client.
pub(crate) struct Tokens<T> {
    pub(crate) table: Arc<T>,
    pub(crate) layout: &'static Layout,
    pub(crate) zone: Option<Zone>,
    pub(crate) capability: &'static Capability,
    /// Read at the first use.
    pub(crate) facts: Arc<OnceCell<Facts>>,
}

impl<T: LockTable> Tokens<T> {
    async fn facts(&self) -> Result<Facts> {
        if let Some(facts) = self.facts.get() {
            return Ok(*facts);
        }
        let (table, facts) = (Arc::clone(&self.table), Arc::clone(&self.facts));
        let (layout, zone) = (self.layout, self.zone);
        in_task(async move {
            let read = async {
                let facts = layout.facts(&table.columns().await?)?;
                let zone = match zone {
                    Some(zone) => zone,
                    None if !(layout.asks_for_zone && facts.is_naive) => Zone::Utc,
                    None => layout.zone_of(&table.server_zone().await?)?,
                };
                Ok(Facts { zone, ..facts })
            };
            facts.get_or_try_init(|| read).await.copied()
        })
        .await
    }

    async fn call(&self, call: Call) -> Result<Reply> {
        let table = Arc::clone(&self.table);
        in_task(async move { table.call(call).await }).await
    }

    async fn call_of(&self, verb: &'static str, name: &Name) -> Result<Call> {
        let facts = self.facts().await?;
        let name = self.table.key(name)?;
        self.layout.check_name(&name, &facts)?;
        Ok(Call {
            name,
            ..facts.call(verb)
        })
    }

    async fn call_by(&self, verb: &'static str, claim: &ClaimRef) -> Result<Call> {
        let ClaimRef { claim, fence } = claim;
        Ok(Call {
            claim: claim.id.reveal(),
            fence: fence.map_or(0, number),
            lease: micros(claim.lease),
            ..self.call_of(verb, &claim.name).await?
        })
    }
}

impl Facts {
    fn call(&self, verb: &'static str) -> Call {
        Call {
            verb,
            name: String::new(),
            claim: String::new(),
            fence: 0,
            label: String::new(),
            lease: 0,
            unit: self.unit,
            zone: self.zone.word(),
            wanted: None,
            limit: None,
        }
    }
}

/// Removes what has expired now and then, for as long as the store is used.
async fn sweep<T: LockTable>(table: Weak<T>, facts: Weak<OnceCell<Facts>>) {
    loop {
        tokio::time::sleep(SWEEP.mul_f64(0.5 + fastrand::f64())).await;
        let (Some(table), Some(facts)) = (table.upgrade(), facts.upgrade()) else {
            return;
        };
        if let Some(facts) = facts.get()
            && let Err(error) = table.call(facts.call("sweep")).await
        {
            tracing::debug!(%error, "expired locks are not swept");
        }
    }
}

fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

impl Reply {
    /// The holder, for people to read. What a peer wrote as its owner is shown as it is: a program
    /// that may ask can read the table.
    fn holder(&self) -> Option<Holder> {
        let text = self.holder.as_deref()?;
        let token = Token::read(text.as_bytes());
        let holder = token.holder(span(self.left));
        Some(match token {
            Token::Ours { .. } => Holder {
                held: span(self.held),
                ..holder
            },
            Token::Peers => Holder {
                owner: text.to_owned(),
                ..holder
            },
        })
    }

    fn fence(&self) -> Fence {
        let holder = self.holder.as_deref().unwrap_or_default();
        let fence = Token::read(holder.as_bytes()).fence();
        fence.unwrap_or(Fence::NONE)
    }

    fn grant(&self, claim: &Claim) -> Result<Grant> {
        let fence = Some(self.fence()).filter(|fence| !fence.is_none());
        Ok(Grant {
            fence: fence.ok_or_else(unexpected)?,
            lease: Lease::of(claim.lease),
        })
    }

    fn standing(&self, claim: &Claim) -> Result<Standing> {
        Ok(match &*self.done {
            "held" => Standing::Held(self.grant(claim)?),
            "ended" => Standing::Gone(Gone::Ended),
            "revoked" => Standing::Gone(Gone::Revoked),
            "taken" => Standing::Gone(Gone::Taken),
            "unknown" => Standing::Gone(Gone::Unknown),
            _ => return Err(unexpected()),
        })
    }
}

/// A reply that this version does not know.
pub(crate) fn unexpected() -> Error {
    Error::protocol(
        "the answer of the lock routine cannot be read; is Palisade the same version everywhere?",
    )
}

#[async_trait]
impl<T: LockTable> TokenBackend for Tokens<T> {
    fn capability(&self) -> &Capability {
        self.capability
    }

    fn attach(&self, client: ClientHandle) {
        let (table, facts) = (Arc::downgrade(&self.table), Arc::downgrade(&self.facts));
        client.runtime().spawn(sweep(table, facts));
        self.table.attach(client);
    }

    async fn put_if_absent(&self, claim: &Arc<Claim>) -> Result<Put> {
        let label = owner_and_reason(claim);
        let call = Call {
            label: self.facts().await?.cut(label),
            wanted: Some(claim.id),
            ..self.call_by("claim", &claim.to_ref(None)).await?
        };
        let reply = self.call(call).await?;
        match &*reply.done {
            "held" => reply.grant(claim).map(Put::Done),
            "taken" => Ok(Put::Taken(Busy {
                holder: reply.holder(),
                ask_in: span(reply.left),
                ..Busy::default()
            })),
            _ => Err(unexpected()),
        }
    }

    async fn extend(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let mut sent = Vec::with_capacity(claims.len());
        for claim in claims {
            let call = self.call_by("renew", claim).await;
            let (table, limit) = (Arc::clone(&self.table), Some(limit(&claim.claim)));
            // No renewal waits for another.
            sent.push(tokio::spawn(async move {
                table.call(Call { limit, ..call? }).await
            }));
        }
        let mut standings = Vec::with_capacity(claims.len());
        for (claim, sent) in claims.iter().zip(sent) {
            let reply = sent
                .await
                .unwrap_or_else(|_| Err(Error::unavailable("the client is ending")));
            standings.push(reply.and_then(|reply| reply.standing(&claim.claim)));
        }
        standings
    }

    async fn delete_if(&self, claim: &ClaimRef, _ending: Ending) -> Result<Released> {
        let reply = self.call(self.call_by("release", claim).await?).await?;
        match &*reply.done {
            "done" => Ok(Released::Done),
            // It may have been done the first time.
            "lost" if reply.sent_again => Ok(Released::Unknown),
            "lost" => Ok(Released::AlreadyLost),
            _ => Err(unexpected()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let (Query::Show(name) | Query::Leader(name)) = query else {
            return Ok(Page::default());
        };
        let reply = self.call(self.call_of("show", name).await?).await?;
        match &*reply.done {
            "taken" => Ok(page_of(name, reply.holder())),
            "free" => Ok(page_of(name, None)),
            _ => Err(unexpected()),
        }
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let call = Call {
            fence: number(fence),
            ..self.call_of("revoke", name).await?
        };
        let reply = self.call(call).await?;
        match &*reply.done {
            "done" => Ok(Revoked::Done),
            "free" => Ok(Revoked::NotHeld),
            "other" => Ok(Revoked::OtherHolder {
                fence: reply.fence(),
            }),
            _ => Err(unexpected()),
        }
    }

    fn extensions(&self) -> Extensions<'_> {
        self.table.extensions()
    }
}

/// How long the renewal of a claim may take: a third of its lease.
fn limit(claim: &Claim) -> Duration {
    (claim.lease / 3).max(Duration::from_millis(100))
}
