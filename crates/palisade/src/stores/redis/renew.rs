//! Extends the leases of claims that wait or hold, and returns the standing of each.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::backend::Backend;
use super::client::{Call, Purpose, TimedCall};
use super::{claim, line};
use crate::error::{Error, Result};
use crate::store::{Claim, ClaimRef, Grant, Standing};

pub(super) async fn renew(backend: &Arc<Backend>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
    let call = |claim: &ClaimRef| {
        let key = backend.settings.key(&claim.claim.name);
        within_limit(claim, line::renew(&key, claim, backend.client.inbox()))
    };
    let calls = claims.iter().map(call).collect();
    let replies = backend
        .client
        .call_all(calls, Purpose::Renewals, true)
        .await;
    let renewed: Vec<Renewed> = claims
        .iter()
        .zip(replies)
        .map(
            |(claim, reply)| match reply.and_then(|value| line::standing(&value, &claim.claim)) {
                Ok(standing) => Renewed::of(backend, claim, standing),
                Err(error) => Renewed::Now(Err(error)),
            },
        )
        .collect();
    let mut standings = Vec::with_capacity(claims.len());
    for renewed in renewed {
        standings.push(renewed.settled().await);
    }
    standings
}

/// The renewal of a claim, with its limit.
pub(super) fn within_limit(claim: &ClaimRef, call: Call) -> TimedCall {
    let limit = limit(claim);
    TimedCall { call, limit }
}

/// How long a renewal may hold up the answers of others: a sixth of the lease.
fn limit(claim: &ClaimRef) -> Duration {
    let lease = if claim.fence.is_some() {
        claim.claim.lease
    } else {
        claim.claim.wait_lease()
    };
    (lease / 6).max(Duration::from_millis(100))
}

/// The result of a renewal, now or later.
enum Renewed {
    Now(Result<Standing>),
    Later(JoinHandle<Result<Standing>>, Duration),
}

impl Renewed {
    /// A claim that holds and did not know it was handed the name while it waited: the grant is
    /// checked in a task of its own, so that no other claim waits for it.
    fn of(backend: &Arc<Backend>, renewed: &ClaimRef, standing: Standing) -> Renewed {
        match standing {
            Standing::Held(grant) if renewed.fence.is_none() => {
                backend.client.check_inbox();
                let (backend, claim) = (Arc::clone(backend), Arc::clone(&renewed.claim));
                let checked = tokio::spawn(async move {
                    let standing = handed_over(&backend, &claim, grant).await?;
                    backend.waiting().remove(&claim.id);
                    Ok(standing)
                });
                Renewed::Later(checked, limit(renewed))
            }
            Standing::Gone(why) => {
                backend.stopped_waiting(renewed);
                Renewed::Now(Ok(Standing::Gone(why)))
            }
            other => Renewed::Now(Ok(other)),
        }
    }

    async fn settled(self) -> Result<Standing> {
        match self {
            Renewed::Now(standing) => standing,
            Renewed::Later(standing, limit) => match tokio::time::timeout(limit, standing).await {
                Ok(Ok(standing)) => standing,
                Ok(Err(_)) => Err(Error::unavailable("the client is ending")),
                Err(_) => Err(Error::unavailable(
                    "the replicas do not confirm the grant in time",
                )),
            },
        }
    }
}

/// Checks a grant that was handed over. Where replicas must have it, it is renewed on the
/// connection that then waits for them: the hand-off was written on another client's.
async fn handed_over(backend: &Arc<Backend>, claim: &Arc<Claim>, grant: Grant) -> Result<Standing> {
    if !backend.client.needs_replicas()
        && backend
            .rollback
            .accept(&claim.name, claim.mode, grant.fence)
    {
        return Ok(Standing::Held(grant));
    }
    let call = line::renew(
        &backend.settings.key(&claim.name),
        &claim.to_ref(Some(grant.fence)),
        backend.client.inbox(),
    );
    let called = backend.client.call(&call, true).await?;
    match line::standing(&called.value, claim)? {
        Standing::Held(renewed) => claim::check(backend, &called.server, claim, renewed)
            .await
            .map(Standing::Held),
        // Released or lost meanwhile.
        other => Ok(other),
    }
}
