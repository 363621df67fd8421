//! Extends the leases of claims that wait or hold, in one transaction, and returns the standing of
//! each.

use std::time::Duration;

use super::backend::{Backend, locked};
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
    let called = match &events {
        Ok(events) => {
            let applied = backend.apply_within(Purpose::Renewals, limit, events);
            applied.await
        }
        Err(error) => Err(error.clone()),
    };
    let (events, answers) = match (events, called) {
        (Ok(events), Ok(called)) => (events, called.answers),
        (Err(error), _) | (_, Err(error)) => {
            return claims.iter().map(|_| Err(error.clone())).collect();
        }
    };
    // The rows that are locked must not hold up the others for long.
    let give_up = tokio::time::Instant::now() + limit / 2;
    let mut standings = Vec::with_capacity(claims.len());
    for ((claim, event), answer) in claims.iter().zip(events).zip(answers) {
        let answer = match answer {
            Some(answer) => Ok(answer),
            None => tokio::time::timeout_at(give_up, backend.apply_patiently(event))
                .await
                .unwrap_or_else(|_| Err(locked()))
                .map(|(answer, _)| answer),
        };
        let standing = answer.and_then(|answer| answer.standing(&claim.claim));
        if claim.fence.is_none() && matches!(standing, Ok(Standing::Held(_) | Standing::Gone(_))) {
            backend.waiting().remove(&claim.claim.id);
        }
        standings.push(standing);
    }
    standings
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
