//! Extends the leases of claims that wait or hold, and returns the standing of each.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
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
    let standings = claims
        .iter()
        .zip(replies)
        .map(|(claim, reply)| line::standing(&reply?, &claim.claim))
        .collect();
    let again = |claim: &ClaimRef| {
        let key = backend.settings.key(&claim.claim.name);
        Ok(line::renew(&key, claim, backend.client.inbox()))
    };
    settled(backend, claims, standings, &again, line::standing).await
}

/// Renews a claim once more: the call, and how its reply is read.
pub(super) type Again<'a> = &'a (dyn Fn(&ClaimRef) -> Result<Call> + Send + Sync);
type Read = fn(&Value, &Claim) -> Result<Standing>;

/// The standings that the core gets: each grant that a renewal found, and the client did not know, is
/// checked before.
pub(super) async fn settled(
    backend: &Arc<Backend>,
    claims: &[ClaimRef],
    standings: Vec<Result<Standing>>,
    again: Again<'_>,
    read: Read,
) -> Vec<Result<Standing>> {
    // All checks are begun before one is waited for.
    let renewed: Vec<Renewed> = claims
        .iter()
        .zip(standings)
        .map(|(claim, standing)| match standing {
            Ok(standing) => Renewed::of(backend, claim, standing, again, read),
            Err(error) => Renewed::Now(Err(error)),
        })
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
    fn of(
        backend: &Arc<Backend>,
        renewed: &ClaimRef,
        standing: Standing,
        again: Again<'_>,
        read: Read,
    ) -> Renewed {
        match standing {
            Standing::Held(grant) if renewed.fence.is_none() => {
                backend.client.check_inbox();
                let (backend, claim) = (Arc::clone(backend), Arc::clone(&renewed.claim));
                let call = again(&claim.to_ref(Some(grant.fence)));
                let checked = tokio::spawn(async move {
                    let standing = handed_over(&backend, &claim, grant, call?, read).await?;
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
async fn handed_over(
    backend: &Arc<Backend>,
    claim: &Claim,
    grant: Grant,
    call: Call,
    read: Read,
) -> Result<Standing> {
    if !backend.client.needs_replicas()
        && backend
            .rollback
            .accept(&claim.name, claim.mode, grant.fence)
    {
        return Ok(Standing::Held(grant));
    }
    let called = backend.client.call(&call, true).await?;
    match read(&called.value, claim)? {
        Standing::Held(renewed) => claim::check(backend, &called.server, claim, renewed)
            .await
            .map(Standing::Held),
        // Released or lost meanwhile.
        other => Ok(other),
    }
}
