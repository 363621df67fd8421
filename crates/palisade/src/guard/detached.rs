//! Grants without a guard.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::held_claim::HeldClaim;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimId, Kind, Mode};

/// A grant on its own: it can be stored, carried to another process and
/// [adopted](crate::Client::adopt) there.
///
/// A secret: a process that has it can release the lock. It names no server and carries no
/// password.
#[derive(Clone, Serialize, Deserialize)]
pub struct DetachedGrant {
    pub(crate) name: Name,
    pub(crate) store: String,
    pub(crate) claim: String,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) fence: Fence,
    pub(crate) lease_ms: u64,
    pub(crate) owner: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl DetachedGrant {
    pub(super) fn of(held: &HeldClaim) -> DetachedGrant {
        let claim = &held.tracked.claim;
        DetachedGrant {
            name: claim.name.clone(),
            store: held.core.capability().store.to_owned(),
            claim: claim.id.reveal(),
            kind: claim.kind,
            mode: held.tracked.mode(),
            fence: held.fence(),
            lease_ms: u64::try_from(claim.lease.as_millis()).unwrap_or(u64::MAX),
            owner: claim.owner.to_string(),
            reason: claim.reason.as_deref().map(str::to_owned),
        }
    }

    /// The name that is held.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The grant's number.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The length of the lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub(crate) fn claim_id(&self) -> Result<ClaimId> {
        ClaimId::parse(&self.claim).ok_or_else(|| {
            Error::config("the grant's claim is not 32 hex digits; was it cut short?")
        })
    }
}

impl fmt::Debug for DetachedGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedGrant")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .field("mode", &self.mode)
            .field("lease", &self.lease())
            .finish_non_exhaustive()
    }
}
