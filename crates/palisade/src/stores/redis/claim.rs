//! Asks for a name, and checks the grant before the core gets it.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::client::{Call, Server};
use super::{Lines, line};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{Answer, Claim, Ending, Grant};

/// How long to wait for replicas at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

pub(super) async fn claim(lines: &Lines, key: &str, claim: &Arc<Claim>) -> Result<Answer> {
    let backend = &lines.backend;
    if claim.queue {
        // Before the claim is sent, so that no push can come before it.
        backend.waiting().insert(claim.id, Arc::clone(claim));
    }
    let answer = send(lines, key, claim).await;
    if claim.queue && !matches!(answer, Ok(Answer::Queued(_))) {
        backend.waiting().remove(&claim.id);
    }
    answer
}

async fn send(lines: &Lines, key: &str, claim: &Arc<Claim>) -> Result<Answer> {
    let client = &lines.backend.client;
    let call = Arc::new(line::claim(key, claim, client.inbox()));
    let called = lines.batch.claim(call, claim, claim.queue).await?;
    match line::claim_answer(&called.value, claim)? {
        Answer::Granted(granted) => {
            if !claim.queue {
                // The grant needs no push, but a revocation is told by one.
                client.ensure_inbox(&called.server);
            }
            let undo = |fence| line::release(key, &claim.to_ref(Some(fence)), Ending::Undo);
            accept_or_undo(&lines.backend, &called.server, claim, granted, undo)
                .await
                .map(Answer::Granted)
        }
        other => Ok(other),
    }
}

/// Passes a grant on if enough replicas have it, and its fence is above all that this client has
/// seen of the name. Otherwise the store counts as unavailable: it has lost, or may lose, a grant
/// that it confirmed. The caller gives the grant back.
pub(super) async fn check(
    backend: &Arc<Backend>,
    server: &Arc<Server>,
    claim: &Claim,
    grant: Grant,
) -> Result<Grant> {
    let client = &backend.client;
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
    match backend
        .rollback
        .accept(&claim.name, claim.mode, grant.fence)
    {
        true => Ok(grant),
        false => Err(Error::unavailable(format!(
            "{} gave a fence lower than one that was given before: it has lost its data, and its clock is behind; set its clock",
            server.address
        ))),
    }
}

/// As [`check`], for the answer to a claim: a grant that does not pass is given back here.
pub(super) async fn accept_or_undo(
    backend: &Arc<Backend>,
    server: &Arc<Server>,
    claim: &Claim,
    grant: Grant,
    undo: impl FnOnce(Fence) -> Call,
) -> Result<Grant> {
    let refused = match check(backend, server, claim, grant).await {
        Ok(grant) => return Ok(grant),
        Err(refused) => refused,
    };
    if let Err(error) = Box::pin(backend.call(&undo(grant.fence))).await {
        tracing::debug!(%error, "a refused grant could not be undone; its lease ends it");
    }
    Err(refused)
}
