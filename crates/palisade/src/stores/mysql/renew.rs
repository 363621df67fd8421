//! Extends the leases of claims that wait or hold, many in one statement.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backend::Backend;
use super::client::How;
use super::table::{self, Spot};
use crate::error::{Error, Result};
use crate::store::{ClaimRef, Standing};

/// How many claims one statement renews: it locks their rows until it is committed.
const TOGETHER: usize = 64;
/// How long a statement that waits for a locked row takes at most, and a little more.
const ROW_LOCKED: Duration = Duration::from_millis(1500);
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

/// One statement for all that does not wait for locked rows, and then one for each name whose row is
/// locked.
async fn renew_together(backend: Arc<Backend>, claims: Vec<ClaimRef>) -> Vec<Result<Standing>> {
    let mut standings: Vec<Option<Result<Standing>>> = match ask(&backend, &claims, true).await {
        Ok(standings) => standings
            .into_iter()
            .map(|standing| standing.map(Ok))
            .collect(),
        Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
    };
    let locked: Vec<usize> = (0..claims.len())
        .filter(|&at| standings[at].is_none())
        .collect();
    // The standings of the others must not come too late.
    let give_up = Instant::now() + claims.iter().map(limit).min().unwrap_or_default() / 2;
    let same_name = |one: &usize, next: &usize| claims[*one].claim.name == claims[*next].claim.name;
    let waits: Vec<_> = locked
        .chunk_by(same_name)
        .map(|places| {
            let claims: Vec<ClaimRef> = places.iter().map(|&at| claims[at].clone()).collect();
            let backend = Arc::clone(&backend);
            // In a task of its own: given up, it ends with its statement, and the connection stays.
            (
                places,
                tokio::spawn(async move { ask(&backend, &claims, false).await }),
            )
        })
        .collect();
    for (places, wait) in waits {
        let renewed = match tokio::time::timeout_at(give_up, wait).await {
            Ok(Ok(renewed)) => renewed,
            Ok(Err(_)) => Err(Error::unavailable("the client is ending")),
            Err(_) => Err(Error::unavailable(
                "another session has locked the row of the name; does a forgotten transaction hold it?",
            )),
        };
        match renewed {
            Ok(renewed) => {
                for (&at, standing) in places.iter().zip(renewed) {
                    standings[at] = standing.map(Ok);
                }
            }
            Err(error) => {
                for &at in places {
                    standings[at] = Some(Err(error.clone()));
                }
            }
        }
    }
    let unanswered = || Err(Error::protocol("a renewal was not answered"));
    standings
        .into_iter()
        .map(|standing| standing.unwrap_or_else(unanswered))
        .collect()
}

/// `None` for claims whose rows are locked, if these are to be skipped.
async fn ask(
    backend: &Arc<Backend>,
    claims: &[ClaimRef],
    skip: bool,
) -> Result<Vec<Option<Standing>>> {
    let shortest = claims.iter().map(limit).min().unwrap_or_default();
    let keyed: Vec<(String, &ClaimRef, bool)> = claims
        .iter()
        .map(|claim| {
            let has_no_bell = backend.bell_of(claim.claim.id).is_none();
            (backend.settings.key(&claim.claim.name), claim, has_no_bell)
        })
        .collect();
    let limit = if skip {
        shortest
    } else {
        // It ends before its limit, and then the connection stays.
        shortest.max(ROW_LOCKED)
    };
    let how = How {
        limit: Some(limit.min(backend.client.settings().request_timeout)),
        impatient: !skip,
        waits: !skip,
        ..How::URGENT
    };
    let done = backend.run(&backend.texts.renew(&keyed, skip), how).await?;
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
    Ok(claims
        .iter()
        .zip(renewed)
        .map(|(claim, renewed)| renewed.map(|renewed| settle((claim, renewed))))
        .collect())
}
