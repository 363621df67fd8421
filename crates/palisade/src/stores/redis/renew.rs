//! Extends the leases of claims that wait or hold, and says where each stands.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::client::Purpose;
use super::{Locks, grant, line};
use crate::error::{Error, Result};
use crate::store::{Claim, ClaimRef, Gone, Grant, Standing};

pub(super) async fn renew(locks: &Arc<Locks>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
    let call = |claim: &ClaimRef| line::renew(&locks.settings.key(&claim.claim.name), claim, locks.client.inbox());
    let replies = locks.client.call_all(claims.iter().map(call).collect(), Purpose::Renewals, true).await;
    let renewed: Vec<Renewed> = claims
        .iter()
        .zip(replies)
        .map(|(claim, reply)| match reply.and_then(|value| line::standing(&value, &claim.claim)) {
            Ok(standing) => Renewed::of(locks, claim, standing),
            Err(error) => Renewed::Now(Err(error)),
        })
        .collect();
    let mut standings = Vec::with_capacity(claims.len());
    for renewed in renewed {
        standings.push(renewed.settled().await);
    }
    standings
}

/// The result of a renewal, now or later.
enum Renewed {
    Now(Result<Standing>),
    Later(JoinHandle<Result<Standing>>),
}

impl Renewed {
    /// A claim that holds and did not know it was handed the name while it waited: the grant is checked in a task of its own, so
    /// that no other claim waits for it.
    fn of(locks: &Arc<Locks>, claim: &ClaimRef, standing: Standing) -> Renewed {
        match standing {
            Standing::Held(grant) if claim.fence.is_none() => {
                locks.client.check_inbox();
                let (locks, claim) = (Arc::clone(locks), Arc::clone(&claim.claim));
                Renewed::Later(tokio::spawn(async move {
                    let standing = handed_over(&locks, &claim, grant).await?;
                    locks.inbox.forget(claim.id);
                    Ok(standing)
                }))
            }
            Standing::Gone(why) => {
                locks.inbox.ended(claim);
                Renewed::gone(why)
            }
            other => Renewed::Now(Ok(other)),
        }
    }

    fn gone(why: Gone) -> Renewed {
        Renewed::Now(Ok(Standing::Gone(why)))
    }

    async fn settled(self) -> Result<Standing> {
        match self {
            Renewed::Now(standing) => standing,
            Renewed::Later(standing) => standing.await.unwrap_or_else(|_| Err(Error::unavailable("the client is ending"))),
        }
    }
}

/// Checks a grant that was handed over. Where replicas must have it, it is renewed on the connection that then waits for them: the
/// hand-off was written on another client's.
pub(super) async fn handed_over(locks: &Arc<Locks>, claim: &Claim, grant: Grant) -> Result<Standing> {
    if !locks.client.needs_replicas() && locks.rollback.accept(&claim.name, claim.mode, grant.fence) {
        return Ok(Standing::Held(grant));
    }
    Box::pin(confirmed(locks, claim, grant)).await
}

async fn confirmed(locks: &Arc<Locks>, claim: &Claim, grant: Grant) -> Result<Standing> {
    let key = locks.settings.key(&claim.name);
    let call = line::renew(&key, &Arc::new(claim.clone()).to_ref(Some(grant.fence)), locks.client.inbox());
    let called = locks.client.call(&call, true).await?;
    match line::standing(&called.value, claim)? {
        Standing::Held(renewed) => grant::check(locks, &called.server, claim, renewed).await.map(Standing::Held),
        // Released or lost meanwhile.
        other => Ok(other),
    }
}
