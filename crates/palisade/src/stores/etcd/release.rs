//! How claims end: by their owner, by an operator, or by becoming something else.

use std::sync::Arc;
use std::time::Duration;

use super::client::cluster::{Again, Failed};
use super::client::proto::{Compare, TxnRequest};
use super::client::txn;
use super::entry::{Entry, Purpose};
use super::key_pool::LockKey;
use super::queue_rules::holders;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimRef, Ending, Gone, Mode, Released, Revoked, Standing};

/// Our key, by its fence where it is known. Where it is not, the request could change whatever stands there when it arrives.
pub(super) fn ours(seat: &LockKey, fence: Option<Fence>) -> Compare {
    match fence.and_then(|fence| i64::try_from(fence.get()).ok()) {
        Some(revision) => txn::made_at(&seat.key, revision),
        None => {
            seat.sent();
            txn::exists(&seat.key)
        }
    }
}

fn done(done: bool) -> Released {
    if done { Released::Done } else { Released::AlreadyLost }
}

impl Shared {
    pub(super) async fn release(self: &Arc<Self>, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        let id = claim.claim.id;
        let seat = self.seat(&claim.claim.name, id);
        // First, so that the end of its key is not taken for a revocation. But a release by another fence is none of this claim.
        let other = |revision: i64| claim.fence.is_some_and(|fence| fence != super::renew::fence_of(revision));
        let is_other = self.claims.lock().known.get(&id).is_some_and(|known| other(known.revision));
        if is_other {
            return Ok(Released::AlreadyLost);
        }
        let known = self.forget(id);
        let made = known.as_ref().map(|known| known.revision);
        let is_plain = known.as_ref().is_some_and(|known| known.closed_until.is_none());
        if let Some(until) = known.filter(|known| known.waiting.is_none()).and_then(|known| known.closed_until) {
            self.closing(id, until);
        }
        let left = self.closed_for(id).filter(|left| !left.is_zero());
        let released = match (ending, left) {
            (Ending::Seal(span), _) => self.seal(claim, &seat, span).await?,
            (Ending::Release, Some(left)) => {
                let closed = self.close(claim, &seat, left).await?;
                self.closed(id);
                return Ok(done(closed));
            }
            (Ending::Release | Ending::Undo, _) => {
                let deleted = match made.filter(|_| seat.is_private()) {
                    Some(revision) => self.delete_own(&seat, revision).await,
                    None => self.delete_if_ours(&seat, claim.fence).await,
                };
                match deleted {
                    Ok(deleted) => done(deleted),
                    Err(failed) => {
                        // Whoever asks us may give up before the store answers.
                        self.delete_later(id, &seat, Duration::ZERO);
                        return Err(failed.into());
                    }
                }
            }
        };
        self.closed(id);
        self.end_owned(id);
        self.withdrawn(id, &seat);
        match ending {
            // Whoever seals again must find it. It is forgotten in time.
            Ending::Seal(_) => {}
            Ending::Release | Ending::Undo => {
                // Somebody who asked where it stands may have taken it up again meanwhile.
                drop(self.forget(id));
                self.leave(&claim.claim.name, id, &seat, is_plain && released == Released::Done);
            }
        }
        Ok(released)
    }

    /// Deletes the key of a claim that is not known here: another process's grant, or one that was asked for and never answered.
    async fn delete_if_ours(&self, seat: &LockKey, fence: Option<Fence>) -> Result<bool, Failed> {
        let deleting =
            TxnRequest { compare: vec![ours(seat, fence)], success: vec![txn::delete(&seat.key)], failure: Vec::new() };
        let response = self.txn(deleting, Again::Never).await?;
        if fence.is_none() {
            seat.arrived();
        }
        Ok(response.succeeded && txn::deleted_by(&response) > 0)
    }

    /// Gives a grant back whose minimum hold is not over: the key stays, on a session as long as that, and is deleted when the time
    /// has come; by the end of the session if we are gone then.
    async fn close(self: &Arc<Self>, claim: &ClaimRef, seat: &Arc<LockKey>, left: Duration) -> Result<bool, Failed> {
        let Some(own) = self.read_own(seat).await? else { return Ok(false) };
        if own.purpose == Purpose::Closed {
            // Asked again, and it is done.
            return Ok(claim.fence.is_none_or(|fence| fence == own.fence()));
        }
        let value = own.rewritten(Purpose::Closed, own.mode);
        let session = match self.disown(claim.claim.id).filter(|session| session.id == own.lease) {
            Some(span) => span,
            None => self.sessions.open(left).await?,
        };
        let closing = TxnRequest {
            compare: vec![ours(seat, claim.fence)],
            success: vec![txn::put(&seat.key, value, session.id)],
            failure: Vec::new(),
        };
        let closed = self.txn(closing, Again::Freely).await?.succeeded;
        let (shared, left) = (Arc::downgrade(self), if closed { left } else { Duration::ZERO });
        self.cluster.lanes.spawn(async move {
            tokio::time::sleep(left).await;
            // And with it the key. If it cannot be told, it ends by itself.
            if let Some(shared) = shared.upgrade() {
                drop(shared.sessions.revoke(&session).await);
            }
        });
        Ok(closed)
    }

    /// Turns our key into a seal, on a session as long as the seal is to last.
    async fn seal(self: &Arc<Self>, claim: &ClaimRef, seat: &LockKey, span: Duration) -> Result<Released, Failed> {
        let sealed_by_us = |own: &Entry| own.purpose == Purpose::Sealed && claim.fence.is_none_or(|fence| fence == own.fence());
        let Some(own) = self.read_own(seat).await? else { return Ok(Released::AlreadyLost) };
        if sealed_by_us(&own) {
            return Ok(Released::Done);
        }
        let session = self.sessions.open(span).await?;
        let sealing = TxnRequest {
            compare: vec![ours(seat, claim.fence)],
            success: vec![txn::put(&seat.key, own.rewritten(Purpose::Sealed, own.mode), session.id)],
            failure: Vec::new(),
        };
        let sealed = self.txn(sealing, Again::Freely).await?.succeeded;
        if !sealed {
            self.sessions.revoke(&session).await?;
        }
        Ok(done(sealed))
    }

    async fn read_own(&self, seat: &LockKey) -> Result<Option<Entry>, Failed> {
        let reading = TxnRequest { success: vec![txn::read(&seat.key)], ..TxnRequest::default() };
        let response = self.txn(reading, Again::Freely).await?;
        Ok(Entry::read_all(txn::keys_of(response))?.pop())
    }

    /// Turns a writer into a reader: its value changes, its place in line does not.
    pub(super) async fn downgrade(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let seat = self.seat(&claim.claim.name, claim.claim.id);
        let Some(own) = self.read_own(&seat).await? else { return self.standing(claim).await };
        if own.mode == Mode::Exclusive && own.purpose == Purpose::Claim {
            let turning = TxnRequest {
                compare: vec![ours(&seat, claim.fence)],
                success: vec![txn::rewrite(&seat.key, own.rewritten(Purpose::Claim, Mode::Shared))],
                failure: Vec::new(),
            };
            self.txn(turning, Again::Freely).await?;
        }
        if let Some(known) = self.claims.lock().known.get_mut(&claim.claim.id) {
            known.mode = Mode::Shared;
            known.kind = crate::store::Kind::RwLock;
        }
        self.standing(claim).await
    }

    pub(super) async fn standing(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let mut answers = self.renew(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| Err(Error::protocol("the store does not say where the grant stands")))
    }

    /// Makes a grant outlive this client. It has a session of its own already; from now on it is not ours to watch or to end.
    pub(super) async fn detach(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let standing = self.standing(claim).await?;
        if let Standing::Held(_) = standing {
            self.forget(claim.claim.id);
            self.disown(claim.claim.id);
        }
        Ok(standing)
    }

    pub(super) async fn revoke(self: &Arc<Self>, name: &Name, fence: Fence) -> Result<Revoked> {
        let line = self.settings.names.line(name).into_bytes();
        let (mut entries, _) = self.read_line(&line).await?;
        entries.retain(|entry| entry.purpose != Purpose::Sealed);
        entries.truncate(holders(&entries));
        let Some(victim) = entries.iter().find(|entry| entry.fence() == fence) else {
            let other = entries.iter().find(|entry| entry.purpose == Purpose::Claim).or(entries.first());
            return Ok(other.map_or(Revoked::NotHeld, |other| Revoked::OtherHolder { fence: other.fence() }));
        };
        if !self.delete(&victim.key, victim.revision, Again::Freely).await? {
            return Ok(Revoked::NotHeld);
        }
        // If it is one of ours, nobody needs to wait for the watch.
        let ours = {
            let book = self.claims.lock();
            book.known
                .iter()
                .find(|(_, known)| known.seat.key == victim.key && known.revision == victim.revision)
                .map(|(claim, _)| *claim)
        };
        if let Some(claim) = ours {
            self.ended(claim, Gone::Revoked);
        }
        Ok(Revoked::Done)
    }
}
