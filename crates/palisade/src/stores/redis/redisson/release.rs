//! Ends a claim that holds or waits; ends a grant by its fence.

use std::sync::Arc;

use redis::Value;

use super::keys::Keys;
use super::{RELEASE, RELEASE_PERMITS, REVOKE, Redisson};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimRef, Kind, Released, Revoked};
use crate::stores::redis::client::Call;
use crate::stores::redis::release::unless_sent_again;
use crate::stores::redis::simple::read_fence;
use crate::stores::redis::unexpected;

pub(super) async fn release(store: &Redisson, claim: &ClaimRef) -> Result<Released> {
    let keys = store.keys(&claim.claim.name)?;
    let call = Arc::new(store.release_call(&keys, claim));
    let called = store.batch.release(Arc::clone(&call)).await?;
    store.backend.recent_releases.keep(call);
    match called.value {
        Value::Int(1) => Ok(Released::Done),
        Value::Int(0) => Ok(unless_sent_again(Released::AlreadyLost, called.sent_again)),
        _ => Err(unexpected()),
    }
}

pub(super) async fn revoke(store: &Redisson, name: &Name, fence: Fence) -> Result<Revoked> {
    let keys = store.keys(name)?;
    let fence = (!fence.is_none()).then_some(fence);
    let call = store.call(&REVOKE, &keys, None, fence);
    match store.backend.call(&call).await?.value {
        Value::Int(1) => Ok(Revoked::Done),
        Value::Int(0) => Ok(Revoked::NotHeld),
        Value::BulkString(other) => Ok(Revoked::OtherHolder {
            fence: read_fence(&other).unwrap_or(Fence::NONE),
        }),
        _ => Err(unexpected()),
    }
}

impl Redisson {
    pub(super) fn release_call(&self, keys: &Keys, claim: &ClaimRef) -> Call {
        let ClaimRef { claim, fence } = claim;
        match claim.kind {
            Kind::Semaphore { .. } => self.permits_call(&RELEASE_PERMITS, keys, claim, *fence),
            Kind::Mutex | Kind::RwLock => self.call(&RELEASE, keys, Some(claim), *fence),
        }
    }
}
