//! Asks for a lock; in a queue where the lock is fair.

use std::sync::Arc;

use super::reply::{self, Reply};
use super::{ASK, CLAIM, CLAIM_SIDE, Redisson, wait};
use crate::error::Result;
use crate::store::{Busy, Claim, Kind, Mode};
use crate::stores::kit::token::Put;
use crate::stores::redis::claim::accept_or_undo;
use crate::stores::redis::simple::millis;

pub(super) async fn claim(store: &Redisson, claim: &Arc<Claim>) -> Result<Put> {
    let (backend, keys) = (&store.backend, store.keys(&claim.name)?);
    let asking = |script, how| {
        store
            .call(script, &keys, Some(claim), None)
            .text(how)
            .number(millis(claim.wait_lease()))
    };
    let call = match (claim.kind, claim.mode) {
        (Kind::Semaphore { limit }, _) => store.permits_claim_call(&keys, claim, limit)?,
        _ if store.is_fair() => asking(&ASK, if claim.queue { "wait" } else { "try" }),
        (Kind::RwLock, Mode::Shared) => asking(&CLAIM_SIDE, "read"),
        (Kind::RwLock, _) => asking(&CLAIM_SIDE, "write"),
        (Kind::Mutex, _) => asking(&CLAIM, ""),
    };
    let channel = store.channel(&keys, claim);
    let changes = backend.channels.changes(&channel);
    let called = store.batch.claim(Arc::new(call), claim, false).await?;
    let busy = match reply::read(&called.value, claim)? {
        Reply::Held(grant) => {
            let undo = |fence| store.release_call(&keys, &claim.to_ref(Some(fence)));
            return accept_or_undo(backend, &called.server, claim, grant, undo)
                .await
                .map(Put::Done);
        }
        Reply::Gone(_) => return Err(super::super::unexpected()),
        Reply::Waiting(place) => Put::Queued(place),
        Reply::Taken(holder, left) => Put::Taken(Busy {
            holder,
            ask_in: Some(wait::ask_in(left)),
            woken: true,
            ..Busy::default()
        }),
    };
    if claim.queue {
        backend
            .channels
            .busy(&channel, &called.server, claim.id, changes, backend);
    }
    Ok(busy)
}
