//! Extends the leases of claims that wait or hold, many in one statement.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::client::{How, code_of};
use super::table::{self, Spot};
use crate::error::{Error, Result};
use crate::store::{ClaimRef, Standing};

/// How many claims one statement renews: it locks their rows until it is committed.
const TOGETHER: usize = 64;
/// Claims with so short a time for a renewal go apart from others.
const SHORT: Duration = Duration::from_secs(1);

pub(super) async fn renew(backend: &Arc<Backend>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    // Sorted by name, so that two clients lock rows in the same order.
    order.sort_by_cached_key(|&at| {
        let claim = &claims[at];
        (
            limit(claim) >= SHORT,
            backend.settings.key(&claim.claim.name),
        )
    });
    let batches: Vec<_> = order
        .chunk_by(|&one, &next| (limit(&claims[one]) < SHORT) == (limit(&claims[next]) < SHORT))
        .flat_map(|alike| alike.chunks(TOGETHER))
        .map(|batch| {
            let claims: Vec<ClaimRef> = batch.iter().map(|&at| claims[at].clone()).collect();
            // No batch waits for another.
            tokio::spawn(renew_together(Arc::clone(backend), claims))
        })
        .collect();
    let mut standings: Vec<Result<Standing>> = Vec::with_capacity(claims.len());
    for batch in batches {
        match batch.await {
            Ok(renewed) => standings.extend(renewed),
            Err(_) => break,
        }
    }
    standings.resize_with(claims.len(), || {
        Err(Error::unavailable("the client is ending"))
    });
    let mut sorted: Vec<(usize, Result<Standing>)> = order.into_iter().zip(standings).collect();
    sorted.sort_by_key(|(at, _)| *at);
    sorted.into_iter().map(|(_, standing)| standing).collect()
}

/// How long a renewal may take: a third of the lease, and long enough for a busy server.
fn limit(claim: &ClaimRef) -> Duration {
    let lease = if claim.fence.is_some() {
        claim.claim.lease
    } else {
        claim.claim.wait_lease()
    };
    (lease / 3).max(Duration::from_millis(500))
}

/// One statement for all; one for each where a row of one of them is locked for too long.
async fn renew_together(backend: Arc<Backend>, claims: Vec<ClaimRef>) -> Vec<Result<Standing>> {
    let alone = claims.len() == 1;
    match ask(&backend, &claims, !alone).await {
        Ok(standings) => standings.into_iter().map(Ok).collect(),
        Err(error) if alone || !matches!(code_of(&error), Some(1205)) => {
            claims.iter().map(|_| Err(error.clone())).collect()
        }
        Err(_) => {
            let each: Vec<_> = claims
                .into_iter()
                .map(|claim| {
                    let backend = Arc::clone(&backend);
                    tokio::spawn(async move { ask(&backend, &[claim], false).await })
                })
                .collect();
            let mut standings = Vec::with_capacity(each.len());
            for one in each {
                standings.push(match one.await {
                    Ok(Ok(renewed)) => renewed
                        .into_iter()
                        .next()
                        .ok_or_else(|| Error::protocol("a renewal was not answered")),
                    Ok(Err(error)) => Err(error),
                    Err(_) => Err(Error::unavailable("the client is ending")),
                });
            }
            standings
        }
    }
}

async fn ask(
    backend: &Arc<Backend>,
    claims: &[ClaimRef],
    impatient: bool,
) -> Result<Vec<Standing>> {
    let shortest = claims.iter().map(limit).min().unwrap_or_default();
    let keyed: Vec<(String, &ClaimRef, bool)> = claims
        .iter()
        .map(|claim| {
            let has_no_bell = backend.bell_of(claim.claim.id).is_none();
            (backend.settings.key(&claim.claim.name), claim, has_no_bell)
        })
        .collect();
    let how = How {
        limit: Some(shortest.min(backend.client.settings().request_timeout)),
        impatient,
        ..How::URGENT
    };
    let done = backend.run(&backend.texts.renew(&keyed), how).await?;
    let renewed = table::renewed(&done.rows, claims.iter().map(|claim| &*claim.claim))?;
    let settle = |(claim, (standing, spot)): (&ClaimRef, (Standing, Spot))| {
        let bell = backend.bell_of(claim.claim.id).unwrap_or(done.session);
        match standing {
            Standing::Held(_) => backend.holds(claim.claim.id, bell),
            Standing::Waiting(_) => backend.waits_at(&claim.claim, bell, spot),
            Standing::Gone(_) => backend.ring(claim.claim.id),
        }
        standing
    };
    Ok(claims.iter().zip(renewed).map(settle).collect())
}
