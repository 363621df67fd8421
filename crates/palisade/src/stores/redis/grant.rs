//! What must be true of a grant before it is given to anybody.

use std::sync::Arc;
use std::time::Duration;

use super::lane::Lane;
use super::link::Link;
use super::script::Call;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{Claim, Grant};

/// How long to wait for replicas at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Passes a grant on if its fence is above all that this client has seen of the name, and enough replicas have it. If not, it
/// is undone, and the store counts as unavailable: it has lost, or may lose, what it confirmed.
pub(super) async fn safe(
    shared: &Arc<Shared>,
    lane: &Arc<Lane>,
    link: &Arc<Link>,
    claim: &Claim,
    grant: Grant,
    undo: impl FnOnce(Fence) -> Call,
) -> Result<Grant> {
    if shared.replicas_for(link) == 0 && shared.seen.take(&claim.name, claim.mode, grant.fence) {
        return Ok(grant);
    }
    Box::pin(confirmed(shared, lane, link, claim, grant, undo)).await
}

async fn confirmed(
    shared: &Arc<Shared>,
    lane: &Arc<Lane>,
    link: &Arc<Link>,
    claim: &Claim,
    grant: Grant,
    undo: impl FnOnce(Fence) -> Call,
) -> Result<Grant> {
    let refused = if shared.replicas_for(link) > 0 && !shared.confirmed(lane, link, LONGEST_WAIT.min(claim.lease / 4)).await? {
        Error::unavailable(format!(
            "{} granted the lock, but too few replicas have it: a failover would lose it; it was given back",
            link.address
        ))
    } else if !shared.seen.take(&claim.name, claim.mode, grant.fence) {
        Error::unavailable(format!(
            "{} gave a fence lower than one that was given before: it has lost its data, and its clock is behind; set its clock",
            link.address
        ))
    } else {
        return Ok(grant);
    };
    let undone = shared.call(lane, &undo(grant.fence), false).await;
    if let Err(error) = undone {
        tracing::debug!(%error, "a refused grant could not be undone; its lease ends it");
    }
    Err(refused)
}
