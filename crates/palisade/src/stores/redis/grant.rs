//! The checks that a grant must pass before the core may have it.

use std::sync::Arc;
use std::time::Duration;

use super::Locks;
use super::client::{Call, Server};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{Claim, Grant};

/// How long to wait for replicas at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Passes a grant on if enough replicas have it, and its fence is above all that this client has seen of the name. Otherwise the
/// store counts as unavailable: it has lost, or may lose, what it confirmed. The caller gives the grant back.
pub(super) async fn check(
    locks: &Arc<Locks>,
    server: &Arc<Server>,
    claim: &Claim,
    grant: Grant,
) -> Result<Grant> {
    let client = &locks.client;
    if client.replicas_for(server) > 0 {
        // Shorter than the watchdog's patience with the connection.
        let patience = LONGEST_WAIT
            .min(claim.lease / 4)
            .min(client.settings().request_timeout / 2);
        if !Box::pin(client.is_replicated(server, patience)).await? {
            return Err(Error::unavailable(format!(
                "{} granted the lock, but too few replicas have it: a failover would lose it; it was given back",
                server.address
            )));
        }
    }
    match locks.rollback.accept(&claim.name, claim.mode, grant.fence) {
        true => Ok(grant),
        false => Err(Error::unavailable(format!(
            "{} gave a fence lower than one that was given before: it has lost its data, and its clock is behind; set its clock",
            server.address
        ))),
    }
}

/// As [`check`], for the answer to a claim: a grant that does not pass is given back here.
pub(super) async fn accept_or_undo(
    locks: &Arc<Locks>,
    server: &Arc<Server>,
    claim: &Claim,
    grant: Grant,
    undo: impl FnOnce(Fence) -> Call,
) -> Result<Grant> {
    let refused = match check(locks, server, claim, grant).await {
        Ok(grant) => return Ok(grant),
        Err(refused) => refused,
    };
    if let Err(error) = Box::pin(locks.call(&undo(grant.fence))).await {
        tracing::debug!(%error, "a refused grant could not be undone; its lease ends it");
    }
    Err(refused)
}
