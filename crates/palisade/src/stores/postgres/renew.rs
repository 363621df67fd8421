//! Extends the leases of claims that wait or hold, in one transaction, and returns the standing of
//! each.

use std::time::Duration;

use super::backend::Backend;
use super::client::Purpose;
use super::line::Event;
use crate::error::Result;
use crate::store::{ClaimRef, Standing};

/// How many go together.
const MOST: usize = 256;

pub(super) async fn renew(backend: &Backend, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
    let mut standings = Vec::with_capacity(claims.len());
    for some in claims.chunks(MOST) {
        standings.extend(renew_some(backend, some).await);
    }
    standings
}

async fn renew_some(backend: &Backend, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
    let event = |claim: &ClaimRef| {
        Ok(Event::renew(
            backend.settings.key(&claim.claim.name)?,
            claim,
        ))
    };
    let events: Result<Vec<Event>> = claims.iter().map(event).collect();
    let limit = claims.iter().map(limit).min().unwrap_or_default();
    let limit = limit.min(backend.client.settings().request_timeout);
    let called = match events {
        Ok(events) => backend.step(Purpose::Renewals, limit, &events).await,
        Err(error) => Err(error),
    };
    let answers = match called {
        Ok(called) => called.answers,
        Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
    };
    let standing = |(claim, answer): (&ClaimRef, super::line::Answered)| {
        let standing = answer.standing(&claim.claim)?;
        if claim.fence.is_none() && !matches!(standing, Standing::Waiting(_)) {
            backend.waiting().remove(&claim.claim.id);
        }
        Ok(standing)
    };
    claims.iter().zip(answers).map(standing).collect()
}

/// How long the renewal of a claim may take: a third of its lease.
fn limit(claim: &ClaimRef) -> Duration {
    let lease = if claim.fence.is_some() {
        claim.claim.lease
    } else {
        claim.claim.wait_lease()
    };
    (lease / 3).max(Duration::from_millis(100))
}
