//! Semaphores: Redisson's `RSemaphore`, and `RPermitExpirableSemaphore` with `expirable=yes` in the
//! URL.
//!
//! An `RSemaphore` is a number, which knows no holder. Ours note their permits beside it, with their
//! leases, so that the next client of ours takes back those of a dead one. What a dead client of
//! Redisson held is lost there, as among Redisson's own. An `RPermitExpirableSemaphore` has a lease
//! for each permit, and both sides take back what has ended.

use super::keys::Keys;
use super::{CLAIM_PERMITS, Redisson};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{Claim, Mode};
use crate::stores::redis::client::{Call, Script};

/// The most permits of one claim where each has an entry of its own: the server adds them in one
/// step.
const MOST_EXPIRABLE: u32 = 1000;

impl Redisson {
    pub(super) fn permits_claim_call(
        &self,
        keys: &Keys,
        claim: &Claim,
        limit: u32,
    ) -> Result<Call> {
        let count = count(claim);
        if self.backend.settings.expirable && count > MOST_EXPIRABLE {
            return Err(Error::config(format!(
                "{count} permits at once are too many with expirable=yes; take at most {MOST_EXPIRABLE}"
            )));
        }
        Ok(self
            .permits_call(&CLAIM_PERMITS, keys, claim, None)
            .number(limit.into()))
    }

    pub(super) fn permits_call(
        &self,
        script: &'static Script,
        keys: &Keys,
        claim: &Claim,
        fence: Option<Fence>,
    ) -> Call {
        self.call(script, keys, Some(claim), fence)
            .number(count(claim).into())
    }
}

fn count(claim: &Claim) -> u32 {
    match claim.mode {
        Mode::Permits(count) => count,
        Mode::Exclusive | Mode::Shared => 1,
    }
}
