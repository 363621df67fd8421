//! How claims end: by their owner, or by an operator.

use std::sync::Arc;
use std::time::Duration;

use super::client::cluster::{Failed, Resend};
use super::client::proto::Compare;
use super::client::{spawn, txn};
use super::entry::{Entry, Purpose, Snapshot};
use super::key_pool::LockKey;
use super::locks::Locks;
use super::queue_rules::holders;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimRef, Ending, Gone, Released, Revoked};
use crate::stores::kit::session::sessions::OpensSessions;

/// The condition that a key is a claim's: by its fence. Without one, its existence has to do: no other claim has this key.
pub(super) fn is_ours(key: &LockKey, fence: Option<Fence>) -> Compare {
    match fence.and_then(|fence| i64::try_from(fence.get()).ok()) {
        Some(revision) => txn::created_at(&key.bytes, revision),
        None => txn::exists(&key.bytes),
    }
}

fn released(done: bool) -> Released {
    if done {
        Released::Done
    } else {
        Released::AlreadyLost
    }
}

impl Locks {
    pub(super) async fn release(
        self: &Arc<Self>,
        claim: &ClaimRef,
        ending: Ending,
    ) -> Result<Released> {
        let id = claim.claim.id;
        let key = self.key(&claim.claim.name, id);
        // A release by another fence does not mean this claim.
        if self
            .claims
            .slot(id)
            .is_some_and(|slot| claim.fence.is_some_and(|fence| fence != slot.fence()))
        {
            return Ok(Released::AlreadyLost);
        }
        // Forgotten first, so that the end of its key is not taken for a revocation.
        let own = self.forget(id);
        let fence = claim.fence.or(own.as_ref().map(|own| own.slot.fence()));
        let is_plain = own.as_ref().is_some_and(|own| own.closed_until.is_none());
        if let Some(until) = own
            .filter(|own| own.waiting.is_none())
            .and_then(|own| own.closed_until)
        {
            self.keys.close_until(id, &key, until);
        }
        let done = match (ending, self.keys.closed_for(id)) {
            (Ending::Seal(span), _) => self.seal(claim, &key, fence, span).await?,
            (Ending::Release, Some(left)) => {
                let closed = self.close(claim, &key, fence, left).await?;
                self.keys.discard(&[id]);
                return Ok(released(closed));
            }
            (Ending::Release | Ending::Undo, _) => self.delete_own(claim, &key, fence).await?,
        };
        self.sessions.end_owned(id);
        match ending {
            // A second seal by the same claim must find it. The key pool drops it in time.
            Ending::Seal(_) => {}
            Ending::Release | Ending::Undo => {
                // A renewal in flight may have found it again meanwhile.
                drop(self.forget(id));
                self.give_back_key(id, &key, is_plain && done);
            }
        }
        Ok(released(done))
    }

    /// Deletes the key of a claim. If that is not answered, it is tried again in the background: the caller may give up.
    async fn delete_own(
        self: &Arc<Self>,
        claim: &ClaimRef,
        key: &Arc<LockKey>,
        fence: Option<Fence>,
    ) -> Result<bool, Failed> {
        if fence.is_none() {
            key.write_begins();
        }
        let deleting = txn::only_if(is_ours(key, fence), txn::delete(&key.bytes));
        match self.send_release(key, deleting).await {
            Ok((response, _)) => {
                if fence.is_none() {
                    key.write_resolved();
                }
                Ok(response.succeeded && txn::deleted_by(&response) > 0)
            }
            Err(failed) => {
                let revision = fence.and_then(|fence| i64::try_from(fence.get()).ok());
                self.delete_later(claim.claim.id, key, revision, Duration::ZERO);
                Err(failed)
            }
        }
    }

    /// Gives a grant back whose minimum hold is not over: the key stays, on a session of that length, and is deleted when the time
    /// has come; by the end of the session if we are gone then.
    async fn close(
        self: &Arc<Self>,
        claim: &ClaimRef,
        key: &LockKey,
        fence: Option<Fence>,
        left: Duration,
    ) -> Result<bool, Failed> {
        let Some(own) = self.read_own(key).await? else {
            return Ok(false);
        };
        if own.purpose == Purpose::Closed {
            // Sent again, and it is done.
            return Ok(fence.is_none_or(|fence| fence == own.fence()));
        }
        let value = own.rewritten(Purpose::Closed, own.mode);
        let session = match self
            .sessions
            .disown(claim.claim.id)
            .filter(|session| session.id == own.lease)
        {
            Some(span) => span,
            None => self.sessions.open(left).await?,
        };
        let closing = txn::only_if(is_ours(key, fence), txn::put(&key.bytes, value, session.id));
        let closed = self.txn(closing, Resend::IfUnsure).await?.succeeded;
        let (sessions, left) = (
            Arc::downgrade(&self.sessions),
            if closed { left } else { Duration::ZERO },
        );
        spawn(async move {
            tokio::time::sleep(left).await;
            // And with it the key.
            if let Some(sessions) = sessions.upgrade() {
                sessions.system.close(session).await;
            }
        });
        Ok(closed)
    }

    /// Turns our key into a seal, on a session of the seal's length.
    async fn seal(
        &self,
        claim: &ClaimRef,
        key: &LockKey,
        fence: Option<Fence>,
        span: Duration,
    ) -> Result<bool, Failed> {
        let Some(own) = self.read_own(key).await? else {
            return Ok(false);
        };
        if own.purpose == Purpose::Sealed && claim.fence.is_none_or(|fence| fence == own.fence()) {
            return Ok(true);
        }
        let session = self.sessions.open(span).await?;
        let value = own.rewritten(Purpose::Sealed, own.mode);
        let sealing = txn::only_if(is_ours(key, fence), txn::put(&key.bytes, value, session.id));
        let sealed = self.txn(sealing, Resend::IfUnsure).await?.succeeded;
        if !sealed {
            self.sessions.system.close(session).await;
        }
        Ok(sealed)
    }

    pub(super) async fn read_own(&self, key: &LockKey) -> Result<Option<Entry>, Failed> {
        let response = self
            .txn(txn::always(vec![txn::read(&key.bytes)]), Resend::IfUnsure)
            .await?;
        Ok(Snapshot::of(response)?.entries.pop())
    }

    pub(super) async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let line = self.names.line(name).into_bytes();
        let mut entries = self.read_line(&line).await?.entries;
        entries.retain(|entry| entry.purpose != Purpose::Sealed);
        entries.truncate(holders(&entries));
        let Some(victim) = entries.iter().find(|entry| entry.fence() == fence) else {
            let other = entries
                .iter()
                .find(|entry| entry.purpose == Purpose::Claim)
                .or(entries.first());
            return Ok(
                other.map_or(Revoked::NotHeld, |other| Revoked::OtherHolder {
                    fence: other.fence(),
                }),
            );
        };
        if !self.delete(&victim.key, victim.revision).await? {
            return Ok(Revoked::NotHeld);
        }
        // If it is one of ours, its holder need not wait for the watch.
        let ours = {
            let claims = self.claims.lock();
            let is_victim = |slot: &super::claims::Slot| {
                slot.key.bytes == victim.key && slot.revision == victim.revision
            };
            claims
                .own
                .iter()
                .find(|(_, own)| is_victim(&own.slot))
                .map(|(claim, _)| *claim)
        };
        if let Some(claim) = ours {
            self.ended(claim, Gone::Revoked);
        }
        Ok(Revoked::Done)
    }
}
