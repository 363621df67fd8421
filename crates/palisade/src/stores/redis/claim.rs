//! Asks for a name.

use std::sync::Arc;

use super::{Lines, grant, line};
use crate::error::Result;
use crate::store::{Answer, Claim, Ending};

pub(super) async fn claim(lines: &Lines, key: &str, claim: &Arc<Claim>) -> Result<Answer> {
    let locks = &lines.locks;
    if claim.queue {
        // Before the claim is sent, so that no push can come before it.
        locks.waiting().insert(claim.id, Arc::clone(claim));
    }
    let answer = ask(lines, key, claim).await;
    if claim.queue && !matches!(answer, Ok(Answer::Queued(_))) {
        locks.waiting().remove(&claim.id);
    }
    answer
}

async fn ask(lines: &Lines, key: &str, claim: &Arc<Claim>) -> Result<Answer> {
    let client = &lines.locks.client;
    let call = Arc::new(line::claim(key, claim, client.inbox()));
    let called = lines.batch.claim(call, claim, claim.queue).await?;
    match line::claim_answer(&called.value, claim)? {
        Answer::Granted(granted) => {
            if !claim.queue {
                // The grant needs no push, but a revocation is told by one.
                client.ensure_inbox(&called.server);
            }
            let undo = |fence| line::release(key, &claim.to_ref(Some(fence)), Ending::Undo);
            grant::accept_or_undo(&lines.locks, &called.server, claim, granted, undo)
                .await
                .map(Answer::Granted)
        }
        other => Ok(other),
    }
}
