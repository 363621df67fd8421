//! How a grant becomes something else: a reader's, or that of a leader with another value.

use std::sync::Arc;

use super::backend::Backend;
use super::client::txn;
use super::entry::{Purpose, check_value};
use super::release::is_ours;
use crate::error::Result;
use crate::store::{ClaimRef, Gone, Kind, Mode, Standing};
use crate::stores::kit::session::renew::renew_one;

impl Backend {
    /// Turns a writer into a reader: its value changes, its place in line does not.
    pub(super) async fn downgrade(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let key = self.key(&claim.claim.name, claim.claim.id);
        let Some(own) = self.lines.read_own(&key).await? else {
            return renew_one(self, claim).await;
        };
        if own.mode == Mode::Exclusive && own.purpose == Purpose::Claim {
            let value = own.rewritten(Purpose::Claim, Mode::Shared);
            let rewriting = txn::rewrite(&key.bytes, value);
            self.lines
                .only_if(is_ours(&key, claim.fence), rewriting)
                .await?;
        }
        if let Some(own) = self.claims.lock().own.get_mut(&claim.claim.id) {
            (own.kind, own.mode) = (Kind::RwLock, Mode::Shared);
        }
        renew_one(self, claim).await
    }

    /// Writes another value. The key is compared by its create revision, as Go does it, and its
    /// lease stays.
    pub(super) async fn proclaim(
        self: &Arc<Self>,
        claim: &ClaimRef,
        value: &str,
    ) -> Result<Standing> {
        check_value(value)?;
        let key = self.key(&claim.claim.name, claim.claim.id);
        let rewriting = txn::rewrite(&key.bytes, value.as_bytes().to_vec());
        let is_written = self
            .lines
            .only_if(is_ours(&key, claim.fence), rewriting)
            .await?;
        if let (true, Some(slot)) = (is_written, self.claims.slot(claim.claim.id)) {
            // That renewed nothing: it is held for as long as before.
            return Ok(Standing::Held(slot.grant()));
        }
        match renew_one(self, claim).await? {
            // Our key was not there, whatever happened since.
            Standing::Held(_) | Standing::Waiting(_) if !is_written => {
                Ok(Standing::Gone(Gone::Expired))
            }
            standing => Ok(standing),
        }
    }
}
