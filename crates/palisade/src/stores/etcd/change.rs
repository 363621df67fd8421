//! How a grant becomes something else: a reader's, another process's, or that of a leader with another value.

use std::sync::Arc;

use super::client::cluster::Resend;
use super::client::txn;
use super::entry::{Purpose, check_value};
use super::locks::Locks;
use super::release::is_ours;
use crate::error::{Error, Result};
use crate::store::{Change, ClaimRef, Gone, Kind, Mode, Standing};

impl Locks {
    pub(super) async fn change(self: &Arc<Self>, claim: &ClaimRef, to: Change) -> Result<Standing> {
        match to {
            Change::Downgrade => self.downgrade(claim).await,
            Change::Detach => self.detach(claim).await,
            Change::Proclaim(value) => self.proclaim(claim, &value).await,
        }
    }

    /// Turns a writer into a reader: its value changes, its place in line does not.
    async fn downgrade(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let key = self.key(&claim.claim.name, claim.claim.id);
        let Some(own) = self.read_own(&key).await? else {
            return self.renew_one(claim).await;
        };
        if own.mode == Mode::Exclusive && own.purpose == Purpose::Claim {
            let value = own.rewritten(Purpose::Claim, Mode::Shared);
            let turning = txn::only_if(is_ours(&key, claim.fence), txn::rewrite(&key.bytes, value));
            self.txn(turning, Resend::IfUnsure).await?;
        }
        if let Some(own) = self.claims.lock().own.get_mut(&claim.claim.id) {
            (own.kind, own.mode) = (Kind::RwLock, Mode::Shared);
        }
        self.renew_one(claim).await
    }

    /// Makes a grant outlive this client. It has a session of its own already; from now on it is not ours to watch or to end.
    async fn detach(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let standing = self.renew_one(claim).await?;
        if let Standing::Held(_) = standing {
            self.forget(claim.claim.id);
            self.sessions.disown(claim.claim.id);
        }
        Ok(standing)
    }

    /// Writes another value. The key is compared by its create revision, as Go does it, and its lease stays.
    async fn proclaim(self: &Arc<Self>, claim: &ClaimRef, value: &str) -> Result<Standing> {
        check_value(value)?;
        let key = self.key(&claim.claim.name, claim.claim.id);
        let writing = txn::only_if(
            is_ours(&key, claim.fence),
            txn::rewrite(&key.bytes, value.as_bytes().to_vec()),
        );
        let is_written = self.txn(writing, Resend::IfUnsure).await?.succeeded;
        if let (true, Some(slot)) = (is_written, self.claims.slot(claim.claim.id)) {
            // That renewed nothing: it is held for as long as before.
            return Ok(Standing::Held(slot.grant()));
        }
        match self.renew_one(claim).await? {
            // Our key was not there, whatever happened since.
            Standing::Held(_) | Standing::Waiting(_) if !is_written => {
                Ok(Standing::Gone(Gone::Expired))
            }
            standing => Ok(standing),
        }
    }

    async fn renew_one(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let mut answers = self.renew(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| {
            Err(Error::protocol(
                "the store does not say where the grant stands",
            ))
        })
    }
}
