//! What must be true of a grant before it is given to anybody.

use std::sync::Arc;
use std::time::Duration;

use super::client::lane::Lane;
use super::client::link::Link;
use super::client::script::Call;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{Answer, Claim, Grant};

/// How long to wait for replicas at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Passes a grant on if its fence is above all that this client has seen of the name, and enough replicas have it. If not, the
/// store counts as unavailable: it has lost, or may lose, what it confirmed. Whoever asked gives the grant back.
pub(super) async fn safe(shared: &Arc<Shared>, lane: &Arc<Lane>, link: &Arc<Link>, claim: &Claim, grant: Grant) -> Result<Grant> {
    if shared.replicas_for(link) > 0 {
        // Less than the link may be silent.
        let patience = LONGEST_WAIT.min(claim.lease / 4).min(shared.settings.request_timeout / 2);
        if !Box::pin(shared.confirmed(lane, link, patience)).await? {
            return Err(Error::unavailable(format!(
                "{} granted the lock, but too few replicas have it: a failover would lose it; it was given back",
                link.address
            )));
        }
    }
    match shared.rollback.take(&claim.name, claim.mode, grant.fence) {
        true => Ok(grant),
        false => Err(Error::unavailable(format!(
            "{} gave a fence lower than one that was given before: it has lost its data, and its clock is behind; set its clock",
            link.address
        ))),
    }
}

/// As [`safe`], for the answer to a claim: a grant that is not is given back here.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    lane: &Arc<Lane>,
    link: &Arc<Link>,
    claim: &Claim,
    grant: Grant,
    undo: impl FnOnce(Fence) -> Call,
) -> Result<Answer> {
    let refused = match safe(shared, lane, link, claim, grant).await {
        Ok(grant) => return Ok(Answer::Granted(grant)),
        Err(refused) => refused,
    };
    let undone = Box::pin(shared.call(lane, &undo(grant.fence), false)).await;
    if let Err(error) = undone {
        tracing::debug!(%error, "a refused grant could not be undone; its lease ends it");
    }
    Err(refused)
}
