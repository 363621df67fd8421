//! Extends leases; asks for the waiters of a fair lock again.

use redis::Value;

use super::reply::{self, Reply};
use super::{ASK, DOWNGRADE, RENEW, RENEW_PERMITS, Redisson};
use crate::error::Result;
use crate::store::{Claim, ClaimRef, Kind, Standing};
use crate::stores::redis::client::{Call, Purpose};
use crate::stores::redis::renew::{settled, within_limit};
use crate::stores::redis::simple::millis;
use crate::stores::redis::unexpected;

pub(super) async fn renew(store: &Redisson, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
    let backend = &store.backend;
    let calls: Result<Vec<_>> = claims
        .iter()
        .map(|claim| Ok(within_limit(claim, store.renew_call(claim)?)))
        .collect();
    let calls = match calls {
        Ok(calls) => calls,
        Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
    };
    let channels: Vec<_> = claims.iter().map(|claim| store.waits_on(claim)).collect();
    let changes: Vec<_> = channels
        .iter()
        .map(|channel| backend.channels.changes(channel.as_ref()?))
        .collect();
    let answers = backend
        .client
        .call_all(calls, Purpose::Renewals, false)
        .await;
    let standings: Vec<Result<Standing>> = claims
        .iter()
        .zip(answers)
        .map(|(claim, answer)| standing(&answer?, &claim.claim))
        .collect();
    for (at, claim) in claims.iter().enumerate() {
        let key = backend.settings.key(&claim.claim.name);
        if let (Ok(Standing::Waiting(_)), Some(channel)) = (&standings[at], &channels[at])
            && let Some(server) = backend.client.ready(&key, false)
        {
            let id = claim.claim.id;
            backend
                .channels
                .busy(channel, &server, id, changes[at], backend);
        }
    }
    settled(
        backend,
        claims,
        standings,
        &|claim| store.renew_call(claim),
        standing,
    )
    .await
}

/// A writer becomes a reader.
pub(super) async fn downgrade(store: &Redisson, claim: &ClaimRef) -> Result<Standing> {
    let keys = store.keys(&claim.claim.name)?;
    let call = store.call(&DOWNGRADE, &keys, Some(&claim.claim), claim.fence);
    standing(&store.backend.call(&call).await?.value, &claim.claim)
}

fn standing(value: &Value, claim: &Claim) -> Result<Standing> {
    match reply::read(value, claim)? {
        Reply::Held(grant) => Ok(Standing::Held(grant)),
        Reply::Waiting(place) => Ok(Standing::Waiting(place)),
        Reply::Gone(why) => Ok(Standing::Gone(why)),
        Reply::Taken(..) => Err(unexpected()),
    }
}

impl Redisson {
    fn renew_call(&self, claim: &ClaimRef) -> Result<Call> {
        let ClaimRef { claim, fence } = claim;
        let keys = self.keys(&claim.name)?;
        if let Kind::Semaphore { .. } = claim.kind {
            return Ok(self.permits_call(&RENEW_PERMITS, &keys, claim, *fence));
        }
        let script = if self.is_fair() { &ASK } else { &RENEW };
        Ok(self
            .call(script, &keys, Some(claim), *fence)
            .text("again")
            .number(millis(claim.wait_lease())))
    }

    /// The channel of a claim that may wait in a queue.
    fn waits_on(&self, claim: &ClaimRef) -> Option<String> {
        let ClaimRef { claim, fence } = claim;
        if fence.is_some() || !self.is_fair() {
            return None;
        }
        Some(self.keys(&claim.name).ok()?.fair_channel(claim.id))
    }
}
