//! Waiting: the position of a waiter is read again when an event says that it is worth it.
//!
//! A waiter's grant is decided by such a read and nowhere else. That a watch has fired says little:
//! the entry before it may have been a waiter that gave up.

use std::sync::{Arc, Weak};

use super::claims::Claims;
use super::{Entries, gone};
use crate::store::{Claim, ClaimId, Standing};
use crate::stores::in_task::in_task;

/// How often a line is read again because it changed meanwhile.
pub(crate) const LOOKS: usize = 20;

/// Reads where claims stand.
pub(crate) trait Look: Entries {
    /// Whether one read of a claim's position waits for another: both might take its turn. A read
    /// that hangs then holds up the next.
    const ONE_BY_ONE: bool;

    /// Reads where a claim of this client stands, and notes it. `None` when the line has changed
    /// meanwhile: then it is called again.
    ///
    /// `is_renewal` when the claim's session was renewed just now.
    fn look(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        is_renewal: bool,
    ) -> impl Future<Output = Result<Option<Standing>, Self::Failed>> + Send;
}

/// Reads where a claim stands.
pub(super) async fn stand<B: Look>(
    backend: &Arc<B>,
    claim: &Arc<Claim>,
    is_renewal: bool,
) -> Result<Standing, B::Failed> {
    let lock = backend.claims().lock().look_lock(claim.id);
    let Some(lock) = lock else {
        return Ok(Standing::Gone(backend.claims().why_gone(claim.id)));
    };
    let _one = match B::ONE_BY_ONE {
        true => Some(lock.lock().await),
        false => None,
    };
    for look in 0..LOOKS {
        if !backend.claims().lock().own.contains_key(&claim.id) {
            return Ok(Standing::Gone(backend.claims().why_gone(claim.id)));
        }
        if let Some(standing) = backend.look(claim, is_renewal && look == 0).await? {
            return Ok(standing);
        }
    }
    Err(gone().into())
}

/// As [`stand`], in a task of the client's: a caller that is not polled must not hold up others.
#[cfg_attr(
    not(feature = "zookeeper"),
    allow(
        dead_code,
        reason = "a claim of etcd is answered by its own transaction"
    )
)]
pub(crate) async fn stand_in_task<B: Look>(
    backend: &Arc<B>,
    claim: &Arc<Claim>,
) -> Result<Standing, B::Failed> {
    let (backend, claim) = (Arc::clone(backend), Arc::clone(claim));
    in_task(async move { stand(&backend, &claim, false).await }).await
}

/// Reads where a waiter stands, because of an event, and tells the client. If that is in flight
/// already, it is read once more after that.
pub(crate) fn look_soon<B: Look>(
    backend: &Arc<B>,
    claims: &mut Claims<B::Own>,
    claim: &Arc<Claim>,
) {
    let Some(client) = backend.claims().client() else {
        return;
    };
    if !claims.begin_look(claim.id) {
        return;
    }
    let (claim, tells) = (Arc::clone(claim), client.clone());
    let weak = Arc::downgrade(backend);
    client.while_waiting(claim.id, async move {
        // Only here: a task that is never polled is dropped while the caller has the table locked.
        let looking = Looking(weak, claim.id);
        while let Some(backend) = looking.0.upgrade() {
            match stand(&backend, &claim, false).await {
                Ok(Standing::Held(grant)) => tells.granted(claim.id, grant.fence),
                Ok(Standing::Waiting(_)) => {}
                Ok(Standing::Gone(_)) | Err(_) => tells.ask_again(claim.id),
            }
            if !backend.claims().lock().end_look(claim.id) {
                return;
            }
        }
    });
}

/// Marks the end of the reads, also when they are dropped because the claim does not wait any more.
struct Looking<B: Look>(Weak<B>, ClaimId);

impl<B: Look> Drop for Looking<B> {
    fn drop(&mut self) {
        if let Some(backend) = self.0.upgrade() {
            backend.claims().lock().stop_looks(self.1);
        }
    }
}
