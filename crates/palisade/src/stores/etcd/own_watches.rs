//! The watches of this client's own keys, by which a holder learns that another client has ended its claim.
//!
//! A key is watched only after a while: most holds and most waits are shorter, and a watch would cost more than the lock. Until then a
//! read tells whether the key is there: when a waiter is granted, and at every renewal.

use std::sync::Arc;

use super::claims::Slot;
use super::client::cluster::{Failed, Resend};
use super::client::proto::Response;
use super::client::watch::WatchEvent;
use super::client::{spawn, txn};
use super::locks::Locks;
use super::position::MANY;
use crate::store::{ClaimId, Gone};
use crate::stores::kit::session::holders::{FreshHolders, WatchesHolders, watch_soon};

/// A claim whose key is to be read, and whether the watch of the key was open before.
pub(super) struct Unverified {
    pub(super) claim: ClaimId,
    pub(super) slot: Slot,
    pub(super) is_open: bool,
}

impl WatchesHolders for Locks {
    fn fresh(&self) -> &FreshHolders {
        &self.fresh
    }

    /// Opens the watches of these claims, and reads their keys once the watch is open: the next renewal may be far away, and not
    /// every holder renews.
    async fn watch(self: &Arc<Self>, claims: Vec<ClaimId>) {
        let unverified = self.watch_or_verify(&claims);
        // If the store cannot be asked now, the next opening of the watch reads again.
        let Ok(there) = self.verify(&unverified).await else {
            return;
        };
        for (lost, _) in unverified.iter().zip(there).filter(|(_, there)| !there) {
            self.classify_loss(lost.claim, &lost.slot).await;
        }
    }
}

impl Locks {
    /// Opens the watches of these claims. The answer has those that hold and whose watch is open, but whose key was not read since.
    fn watch_or_verify(self: &Arc<Self>, due: &[ClaimId]) -> Vec<Unverified> {
        let mut unverified = Vec::new();
        for claim in due {
            let mut claims = self.claims.lock();
            let Some(own) = claims.own.get_mut(claim) else {
                continue;
            };
            if own.watch.id.is_none() {
                own.watch.id = Some(self.watch_own(*claim, &own.slot.key.bytes));
            } else if own.waiting.is_none() && own.watch.is_open && !own.watch.is_verified {
                unverified.push(Unverified {
                    claim: *claim,
                    slot: own.slot.clone(),
                    is_open: true,
                });
            }
        }
        unverified
    }

    fn watch_own(self: &Arc<Self>, claim: ClaimId, key: &[u8]) -> i64 {
        let weak = Arc::downgrade(self);
        self.watches.open(key.to_vec(), Vec::new(), move |event| {
            if let Some(locks) = weak.upgrade() {
                locks.on_own_key(claim, &event);
            }
        })
    }

    /// The watch of a claim's own key has reported something.
    fn on_own_key(self: &Arc<Self>, claim: ClaimId, event: &WatchEvent<'_>) {
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
            // The end of an earlier claim with the same key: a member that lags behind reports it only now.
            WatchEvent::Deleted(kv) if kv.mod_revision <= own.slot.revision => {}
            WatchEvent::Deleted(_) => {
                own.watch.is_verified = false;
                if let Some(waiting) = &mut own.waiting {
                    // Its next look finds out.
                    return self.look(waiting);
                }
                let (weak, slot) = (Arc::downgrade(self), own.slot.clone());
                spawn(async move {
                    if let Some(locks) = weak.upgrade() {
                        locks.classify_loss(claim, &slot).await;
                    }
                });
            }
        }
    }

    /// Reads whether the keys of these claims are still there.
    pub(super) async fn verify(&self, claims: &[Unverified]) -> Result<Vec<bool>, Failed> {
        let mut there = Vec::with_capacity(claims.len());
        for batch in claims.chunks(MANY) {
            let reads = batch
                .iter()
                .map(|claim| txn::look(&claim.slot.key.bytes))
                .collect();
            let response = self.txn(txn::always(reads), Resend::IfUnsure).await?;
            let mut found = response.responses.into_iter().map(|op| match op.response {
                Some(Response::Range(range)) => range.kvs.first().map(|kv| kv.create_revision),
                _ => None,
            });
            for Unverified {
                claim,
                slot,
                is_open,
            } in batch
            {
                let is_there = found.next().flatten() == Some(slot.revision);
                there.push(is_there);
                if let Some(own) = self.claims.lock().own.get_mut(claim).filter(|_| is_there) {
                    // Only if the watch was open before the read, and has been since.
                    own.watch.is_verified = *is_open && own.watch.is_open;
                }
            }
        }
        Ok(there)
    }

    /// The key of a holder was deleted by another client: finds out whether its session has ended, or only this claim.
    async fn classify_loss(&self, claim: ClaimId, slot: &Slot) {
        let left = self.cluster.lease_left(slot.session.id).await;
        // The same claim may have been made again meanwhile, and that one is not gone.
        let is_other = !self.claims.knows(claim, slot.revision);
        match left {
            Ok(None) => self.session_ended(&slot.session),
            Ok(Some(_)) | Err(_) if is_other => {}
            Ok(Some(_)) => self.ended(claim, Gone::Revoked),
            // It is gone in any case; why is not known.
            Err(_) => self.ended(claim, Gone::Expired),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::client::proto::KeyValue;
    use super::super::session::Session;
    use super::super::settings::Settings;
    use super::*;
    use crate::lease::{BootClock, Clock};
    use crate::store::Claim;

    /// A member that lags behind reports it when the key is another claim's.
    #[tokio::test]
    async fn the_end_of_an_earlier_claim_with_the_same_key_ends_nothing() {
        let url: crate::url::StoreUrl = "etcd://127.0.0.1:1/lock".parse().unwrap();
        let locks = Locks::new(Settings::read(&url).unwrap()).unwrap();
        let claim = Claim::of_mutex(ClaimId::from_bits(1), "one", Duration::from_secs(60));
        let session = Session::new(7, BootClock.now(), Duration::from_secs(60));
        let key = locks.keys.for_claim(&locks.names, &claim).unwrap();
        locks.hold(&claim, Slot::new(Arc::clone(&key), 20, session), false);
        let is_verified = |to: Option<bool>| {
            let mut claims = locks.claims.lock();
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
            locks.on_own_key(claim.id, &WatchEvent::Deleted(&kv));
            assert_eq!(
                is_verified(None),
                believed,
                "deleted at {deleted_at}, created at 20"
            );
        }
    }
}
