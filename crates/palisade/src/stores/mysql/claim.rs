//! Asks for a name.

use std::sync::Arc;

use super::backend::Backend;
use super::client::How;
use super::table;
use crate::error::Result;
use crate::line::ClaimError;
use crate::store::{Answer, Claim, Kind, Mode};

pub(super) async fn claim(backend: &Backend, key: &str, claim: &Arc<Claim>) -> Result<Answer> {
    check(claim).map_err(|error| error.of(&claim.name))?;
    let id = claim.id;
    let wanted = backend.core().cloned().map(|core| {
        let wanted: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(move || core.wants(id));
        wanted
    });
    // A claim that is sent again must find the session that has its bell.
    let how = How {
        pinned: backend.bell_of(id),
        urgent: false,
        wanted,
        // The row of a free name is written at once, before its lease begins anew.
        in_parts: true,
        ..How::URGENT
    };
    let done = backend.run(&backend.texts.claim(key, claim), how).await?;
    let (answer, spot) = table::answer(&done.rows, claim)?;
    match &answer {
        Answer::Granted(_) => backend.holds(id, done.session),
        Answer::Queued(_) => backend.waits_at(claim, done.session, spot),
        Answer::Busy(_) | Answer::Sealed => backend.forget(id),
    }
    Ok(answer)
}

/// Refuses a claim that can never be granted.
fn check(claim: &Claim) -> Result<(), ClaimError> {
    match (claim.kind, claim.mode) {
        (Kind::Mutex | Kind::RwLock, Mode::Exclusive) | (Kind::RwLock, Mode::Shared) => Ok(()),
        (Kind::Semaphore { limit }, Mode::Permits(count)) if (1..=limit).contains(&count) => Ok(()),
        (kind, mode) => Err(ClaimError::ModeMisfit { kind, mode }),
    }
}
