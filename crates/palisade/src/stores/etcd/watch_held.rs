//! The watches of this client's own keys, by which a holder learns that another client has ended
//! its claim.
//!
//! A key is watched only after a while: most holds and most waits are shorter, and a watch would
//! cost more than the lock. Until then a read tells whether the key is there: when a waiter is
//! granted, and at every renewal.

use std::sync::Arc;

use super::backend::Backend;
use super::claims::Slot;
use super::client::cluster::Failed;
use super::client::proto::Response;
use super::client::watch::WatchEvent;
use super::client::{spawn, txn};
use super::position::MANY;
use crate::error::Result;
use crate::store::{ClaimId, Gone};
use crate::stores::kit::session::wait::look_soon;
use crate::stores::kit::session::watch_held::{WatchHolders, lost, watch_soon};

/// A claim whose key is to be read, and whether the watch of the key was open before.
struct Unverified {
    slot: Slot,
    is_open: bool,
}

impl WatchHolders for Backend {
    /// Opens the watches of these claims. Those whose watch is open already, but whose key was not
    /// read since, are read now: the next renewal may be far away, and not every holder renews.
    fn watch(self: &Arc<Self>, due: Vec<ClaimId>) -> Vec<ClaimId> {
        let mut claims = self.claims.lock();
        let mut unverified = Vec::new();
        for claim in due {
            let Some(own) = claims.own.get_mut(&claim) else {
                continue;
            };
            if own.watch.id.is_none() {
                own.watch.id = Some(self.watch_own(claim, &own.slot.key.bytes));
            } else if own.waiting.is_none() && own.watch.is_open && !own.watch.is_verified {
                unverified.push(claim);
            }
        }
        unverified
    }

    async fn verify(self: &Arc<Self>, claims: &[ClaimId]) -> Vec<Result<bool>> {
        let mut there = Vec::with_capacity(claims.len());
        for batch in claims.chunks(MANY) {
            match self.verify_batch(batch).await {
                Ok(answers) => there.extend(answers.into_iter().map(Ok)),
                Err(failed) => there.extend(batch.iter().map(|_| Err(failed.error.clone()))),
            }
        }
        there
    }

    async fn why_lost(self: &Arc<Self>, claim: ClaimId) -> Gone {
        let Some(slot) = self.claims.slot(claim) else {
            return Gone::Expired;
        };
        match self.lines.cluster.lease_left(slot.session.id).await {
            Ok(Some(_)) => Gone::Revoked,
            Ok(None) => {
                self.session_ended(&slot.session);
                Gone::SessionEnded
            }
            // It is gone in any case; why is not known.
            Err(_) => Gone::Expired,
        }
    }
}

impl Backend {
    fn watch_own(self: &Arc<Self>, claim: ClaimId, key: &[u8]) -> i64 {
        let weak = Arc::downgrade(self);
        self.watches.open(key.to_vec(), Vec::new(), move |event| {
            if let Some(backend) = weak.upgrade() {
                backend.on_own_key(claim, &event);
            }
        })
    }

    /// The watch of a claim's own key has reported something.
    fn on_own_key(self: &Arc<Self>, claim: ClaimId, event: &WatchEvent) {
        let mut claims = self.claims.lock();
        let Some(own) = claims.own.get_mut(&claim) else {
            return;
        };
        match event {
            WatchEvent::Opened(_) => {
                own.watch.is_open = true;
                // A read tells what happened before. Waiters read when it is their turn.
                let reads = own.waiting.is_none() && !own.watch.is_verified;
                drop(claims);
                if reads {
                    watch_soon(self, claim);
                }
            }
            WatchEvent::Closed | WatchEvent::Denied => {
                (own.watch.is_open, own.watch.is_verified) = (false, false)
            }
            WatchEvent::Changed(_) | WatchEvent::Settled => {}
            // The end of an earlier claim with the same key: a member that lags behind reports it
            // only now.
            WatchEvent::Deleted(kv) if kv.mod_revision <= own.slot.revision => {}
            WatchEvent::Deleted(_) => {
                own.watch.is_verified = false;
                if own.waiting.is_some() {
                    // Its next look finds out.
                    let waiter = Arc::clone(&own.claim);
                    return look_soon(self, &mut claims, &waiter);
                }
                let (weak, fence) = (Arc::downgrade(self), own.slot.fence());
                spawn(async move {
                    if let Some(backend) = weak.upgrade() {
                        lost(&backend, claim, fence).await;
                    }
                });
            }
        }
    }

    /// Reads whether the keys of these claims are still there.
    async fn verify_batch(&self, claims: &[ClaimId]) -> Result<Vec<bool>, Failed> {
        let unverified = |claim: &ClaimId| {
            let claims = self.claims.lock();
            let own = claims.own.get(claim)?;
            let (slot, is_open) = (own.slot.clone(), own.watch.is_open);
            Some(Unverified { slot, is_open })
        };
        let unverified: Vec<Option<Unverified>> = claims.iter().map(unverified).collect();
        let known = unverified.iter().flatten();
        let reads = known
            .map(|known| txn::look(&known.slot.key.bytes))
            .collect();
        let response = self.lines.txn(txn::always(reads)).await?;
        let mut found = response.responses.into_iter().map(|op| match op.response {
            Some(Response::Range(range)) => range.kvs.first().map(|kv| kv.create_revision),
            _ => None,
        });
        let mut there = Vec::with_capacity(claims.len());
        for (claim, unverified) in claims.iter().zip(unverified) {
            let Some(Unverified { slot, is_open }) = unverified else {
                there.push(false);
                continue;
            };
            let is_there = found.next().flatten() == Some(slot.revision);
            there.push(is_there);
            if let Some(own) = self.claims.lock().own.get_mut(claim).filter(|_| is_there) {
                // Only if the watch was open before the read, and has been since.
                own.watch.is_verified = is_open && own.watch.is_open;
            }
        }
        Ok(there)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::client::proto::KeyValue;
    use super::super::sessions::Session;
    use super::super::settings::Settings;
    use super::*;
    use crate::lease::{BootClock, Clock};
    use crate::store::Claim;

    /// A member that lags behind reports it when the key is another claim's.
    #[tokio::test]
    async fn the_end_of_an_earlier_claim_with_the_same_key_ends_nothing() {
        let url: crate::url::StoreUrl = "etcd://127.0.0.1:1/lock".parse().unwrap();
        let backend = Backend::new(Settings::read(&url).unwrap()).unwrap();
        let claim = Claim::of_mutex(ClaimId::from_bits(1), "one", Duration::from_secs(60));
        let claim = Arc::new(claim);
        let session = Session::new(7, BootClock.now(), Duration::from_secs(60));
        let key = backend
            .keys
            .for_claim(&backend.lines.names, &claim)
            .unwrap();
        backend.hold(&claim, Slot::new(Arc::clone(&key), 20, session), false);
        let is_verified = |to: Option<bool>| {
            let mut claims = backend.claims.lock();
            let own = claims.own.get_mut(&claim.id).unwrap();
            to.inspect(|to| own.watch.is_verified = *to);
            own.watch.is_verified
        };
        is_verified(Some(true));
        for (deleted_at, believed) in [(19, true), (21, false)] {
            let kv = KeyValue {
                key: key.bytes.clone(),
                mod_revision: deleted_at,
                ..KeyValue::default()
            };
            backend.on_own_key(claim.id, &WatchEvent::Deleted(kv));
            assert_eq!(
                is_verified(None),
                believed,
                "deleted at {deleted_at}, created at 20"
            );
        }
    }
}
