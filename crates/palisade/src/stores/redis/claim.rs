//! Asks for a name.

use std::sync::Arc;

use super::{RedisStore, grant, line};
use crate::error::Result;
use crate::store::{Answer, Claim, Ending};

pub(super) async fn claim(store: &RedisStore, claim: &Claim) -> Result<Answer> {
    let locks = &store.locks;
    if claim.queue {
        // Before the claim is sent, so that no push can come before it.
        locks.inbox.expect(claim.id);
    }
    let answer = ask(store, claim).await;
    if !matches!(answer, Ok(Answer::Queued(_))) {
        locks.inbox.forget(claim.id);
    }
    answer
}

async fn ask(store: &RedisStore, claim: &Claim) -> Result<Answer> {
    let locks = &store.locks;
    let key = locks.settings.key(&claim.name);
    let call = Arc::new(line::claim(&key, claim, locks.client.inbox()));
    let called = store.batch.call(&locks.client, call, claim.queue).await?;
    match line::claim_answer(&called.value, claim)? {
        Answer::Granted(granted) => {
            if !claim.queue {
                // The grant needs no push, but a revocation is told by one.
                locks.client.ensure_inbox(&called.server);
            }
            let undo = |fence| line::release(&key, &Arc::new(claim.clone()).to_ref(Some(fence)), Ending::Undo);
            grant::accept_or_undo(locks, &called.server, claim, granted, undo).await
        }
        other => Ok(other),
    }
}
