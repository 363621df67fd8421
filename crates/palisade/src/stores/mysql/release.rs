//! Ends a claim in whatever state it is.

use super::backend::Backend;
use super::client::How;
use super::table;
use crate::error::Result;
use crate::store::{ClaimRef, Ending, Released};

pub(super) async fn release(
    backend: &Backend,
    key: &str,
    claim: &ClaimRef,
    ending: Ending,
) -> Result<Released> {
    // The session that has its bell rings it, in the same request.
    let pinned = backend.bell_of(claim.claim.id);
    let statement = backend.texts.release(key, claim, ending);
    let done = backend
        .run(
            &statement,
            How {
                pinned,
                ..How::URGENT
            },
        )
        .await?;
    backend.forget(claim.claim.id);
    Ok(match table::released(&done.rows)? {
        // It may have been done the first time.
        Released::AlreadyLost if done.sent_again => Released::Unknown,
        released => released,
    })
}
