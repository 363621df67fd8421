//! Ends a claim in whatever state it is.

use std::sync::Arc;

use super::{Lines, line};
use crate::error::Result;
use crate::store::{ClaimRef, Ending, Released};

pub(super) async fn release(
    lines: &Lines,
    key: &str,
    claim: &ClaimRef,
    ending: Ending,
) -> Result<Released> {
    lines.locks.stopped_waiting(claim);
    let call = Arc::new(line::release(key, claim, ending));
    let called = lines.batch.release(Arc::clone(&call)).await?;
    lines.locks.release_replay.keep(call);
    Ok(unless_sent_again(
        line::released(&called.value)?,
        called.sent_again,
    ))
}

/// The result of a release. A release that was sent again and found nothing may have been done the first time.
pub(super) fn unless_sent_again(released: Released, sent_again: bool) -> Released {
    if sent_again && released == Released::AlreadyLost {
        Released::Unknown
    } else {
        released
    }
}
