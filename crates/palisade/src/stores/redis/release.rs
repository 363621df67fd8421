//! Ends a claim in whatever state it is.

use std::sync::Arc;

use super::{RedisStore, line};
use crate::error::Result;
use crate::store::{ClaimRef, Ending, Released};

pub(super) async fn release(store: &RedisStore, claim: &ClaimRef, ending: Ending) -> Result<Released> {
    let locks = &store.locks;
    locks.inbox.ended(claim);
    let call = Arc::new(line::release(&locks.settings.key(&claim.claim.name), claim, ending));
    let called = store.batch.call(&locks.client, Arc::clone(&call), false).await?;
    locks.inbox.release_replay.keep(call);
    Ok(unless_sent_again(line::released(&called.value)?, called.sent_again))
}

/// The result of a release. A release that was sent again and found nothing may have been done the first time.
pub(super) fn unless_sent_again(released: Released, sent_again: bool) -> Released {
    if sent_again && released == Released::AlreadyLost { Released::Unknown } else { released }
}
