//! How keys leave their line: deleted, or kept to close or to seal the name.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::claims::OwnClaim;
use super::client::cluster::Failed;
use super::client::proto::Compare;
use super::client::{spawn, txn};
use super::entry::{Entry, Purpose};
use super::key_pool::LockKey;
use super::queue_rules::holders;
use super::sessions::Session;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimRef, Ending};
use crate::stores::kit::session::release::{Holding, Leave};
use crate::stores::kit::session::sessions::OpensSessions;

/// The condition that a key is a claim's: by its fence. Without one, its existence has to do: no
/// other claim has this key.
pub(super) fn is_ours(key: &LockKey, fence: Option<Fence>) -> Compare {
    match fence.and_then(|fence| i64::try_from(fence.get()).ok()) {
        Some(revision) => txn::created_at(&key.bytes, revision),
        None => txn::exists(&key.bytes),
    }
}

impl Leave for Backend {
    type Entry = Entry;

    async fn delete(
        self: &Arc<Self>,
        claim: &ClaimRef,
        own: Option<OwnClaim>,
        ending: Ending,
    ) -> Result<bool> {
        let id = claim.claim.id;
        own.iter().for_each(|own| self.close_watches(own));
        let key = match &own {
            Some(own) => Arc::clone(&own.slot.key),
            None => self.key(&claim.claim.name, id),
        };
        let fence = claim.fence.or(own.as_ref().map(|own| own.slot.fence()));
        let is_plain = own.as_ref().is_some_and(|own| own.closed_until.is_none());
        if let Some(until) = own
            .filter(|own| own.waiting.is_none())
            .and_then(|own| own.closed_until)
        {
            self.keys.close_until(id, &key, until);
        }
        match (ending, self.keys.closed_for(id)) {
            // A second seal by the same claim must find it. The key pool drops it in time.
            (Ending::Seal(span), _) => Ok(self.seal(claim, &key, fence, span).await?),
            (Ending::Release, Some(left)) => {
                let closed = self.close(claim, &key, fence, left).await?;
                self.keys.discard(&[id]);
                Ok(closed)
            }
            (Ending::Release | Ending::Undo, _) => {
                let done = self.delete_own(claim, &key, fence).await?;
                // A renewal in flight may have found it again meanwhile.
                self.forget(id);
                self.give_back_key(id, &key, is_plain && done);
                Ok(done)
            }
        }
    }

    async fn holders_of(&self, name: &Name) -> Result<Vec<Holding<Entry>>> {
        let line = self.lines.names.line(name).into_bytes();
        let mut entries = self.lines.read_line(&line).await?.entries;
        entries.retain(|entry| entry.purpose != Purpose::Sealed);
        entries.truncate(holders(&entries));
        entries.sort_by_key(|entry| entry.purpose == Purpose::Closed);
        let holding = |entry: Entry| Holding {
            fence: entry.fence(),
            entry,
        };
        Ok(entries.into_iter().map(holding).collect())
    }

    async fn delete_holder(&self, entries: Vec<Entry>) -> Result<bool> {
        let mut any = false;
        for entry in entries {
            any |= self.lines.delete(&entry.key, entry.revision).await?;
        }
        Ok(any)
    }

    fn detached(&self, own: OwnClaim, _: Option<Arc<Session>>) {
        self.close_watches(&own);
    }
}

impl Backend {
    /// Deletes the key of a claim. If that is not answered, it is tried again in the background:
    /// the caller may give up.
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
        match self.send(key, deleting, None).await {
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

    /// Gives a grant back whose minimum hold is not over: the key stays, on a session of that
    /// length, and is deleted when the time has come; by the end of the session if we are gone
    /// then.
    async fn close(
        self: &Arc<Self>,
        claim: &ClaimRef,
        key: &LockKey,
        fence: Option<Fence>,
        left: Duration,
    ) -> Result<bool, Failed> {
        let Some(own) = self.lines.read_own(key).await? else {
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
        let closing = txn::put(&key.bytes, value, session.id);
        let closed = self.lines.only_if(is_ours(key, fence), closing).await?;
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
        let Some(own) = self.lines.read_own(key).await? else {
            return Ok(false);
        };
        if own.purpose == Purpose::Sealed && claim.fence.is_none_or(|fence| fence == own.fence()) {
            return Ok(true);
        }
        let session = self.sessions.open(span).await?;
        let value = own.rewritten(Purpose::Sealed, own.mode);
        let sealing = txn::put(&key.bytes, value, session.id);
        let sealed = self.lines.only_if(is_ours(key, fence), sealing).await?;
        if !sealed {
            self.sessions.system.close(session).await;
        }
        Ok(sealed)
    }
}
