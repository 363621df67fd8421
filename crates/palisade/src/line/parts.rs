//! What a line is made of: plain data, so that a store can write it down and read it back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::StoreTime;
use crate::error::{Error, ErrorKind};
use crate::fence::Fence;
use crate::store::{Claim, ClaimId, Gone, Grant, Kind, Lease, Mode};

/// A claim that was granted, for as long as it occupies the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderEntry {
    /// The claim that was granted.
    pub claim: ClaimId,
    /// How it holds.
    pub mode: Mode,
    /// Who holds, for people to read.
    pub owner: Arc<str>,
    /// Why, for people to read.
    pub reason: Option<Arc<str>>,
    /// How far each renewal moves the expiry.
    pub lease: Duration,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub granted_at: StoreTime,
    /// When it ends without renewal.
    pub expiry: StoreTime,
    /// Until when its min-hold keeps the name closed, whatever its owner does; the store's zero without a min-hold.
    pub keep_until: StoreTime,
    /// Whether its owner is gone (released or expired), so that all it still does is to keep the name closed.
    pub ghost: bool,
    /// The once-per mark that this grant replaced: an undo puts it back.
    pub mark_before: Option<Mark>,
}

impl HolderEntry {
    /// Until when it stands in the way of others, if nothing but time passes.
    pub fn occupies_until(&self) -> StoreTime {
        if self.ghost {
            self.keep_until
        } else {
            self.expiry.max(self.keep_until)
        }
    }

    /// When the passing of time alone next changes it.
    pub(super) fn next_change(&self) -> StoreTime {
        if self.ghost {
            self.keep_until
        } else {
            self.expiry
        }
    }

    /// Whether this is a grant of the claim, by the given fence if one is given.
    pub(super) fn is_grant_of(&self, claim: ClaimId, fence: Option<Fence>) -> bool {
        self.claim == claim && fence.is_none_or(|fence| fence == self.fence)
    }

    /// Extends the lease, never shortens it.
    pub(super) fn renew(&mut self, now: StoreTime) -> Grant {
        self.expiry = self.expiry.max(now + self.lease);
        Grant {
            fence: self.fence,
            lease: Lease::of(self.lease),
        }
    }
}

/// A claim that stands in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterEntry {
    /// The claim that waits.
    pub claim: ClaimId,
    /// How it wants to hold.
    pub mode: Mode,
    /// Who waits, for people to read.
    pub owner: Arc<str>,
    /// Why, for people to read.
    pub reason: Option<Arc<str>>,
    /// The lease it will hold by; while it waits a renewal moves the expiry by [`wait_lease`](WaiterEntry::wait_lease).
    pub lease: Duration,
    /// When it was queued.
    pub queued_at: StoreTime,
    /// When it ends without renewal. It keeps this expiry when it is granted, until its next renewal.
    pub expiry: StoreTime,
    /// For how long its grant keeps the name closed.
    pub min_hold: Option<Duration>,
    /// How much time must have passed since the last once-per grant when it is granted.
    pub once_per: Option<Duration>,
}

impl WaiterEntry {
    pub(super) fn new(now: StoreTime, claim: &Claim) -> WaiterEntry {
        WaiterEntry {
            claim: claim.id,
            mode: claim.mode,
            owner: Arc::clone(&claim.owner),
            reason: claim.reason.clone(),
            lease: claim.lease,
            queued_at: now,
            expiry: now + claim.wait_lease(),
            min_hold: claim.min_hold,
            once_per: claim.once_per,
        }
    }

    /// How long it lives without renewal while it waits.
    pub fn wait_lease(&self) -> Duration {
        self.lease.min(Claim::LONGEST_WAIT_LEASE)
    }

    /// Extends the lease of the place, never shortens it.
    pub(super) fn renew(&mut self, now: StoreTime) {
        self.expiry = self.expiry.max(now + self.wait_lease());
    }

    /// What it becomes when it is granted: nothing is renewed by that, so the expiry stays.
    pub(super) fn granted(
        self,
        now: StoreTime,
        fence: Fence,
        mark_before: Option<Mark>,
    ) -> HolderEntry {
        HolderEntry {
            claim: self.claim,
            mode: self.mode,
            owner: self.owner,
            reason: self.reason,
            lease: self.lease,
            fence,
            granted_at: now,
            expiry: self.expiry,
            keep_until: self
                .min_hold
                .map_or(StoreTime::default(), |span| now + span),
            ghost: false,
            mark_before,
        }
    }
}

/// The last grant of a once-per claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When it was granted.
    pub at: StoreTime,
    /// That claim's own `once_per`: the mark is forgotten when so much has passed.
    pub span: Duration,
    /// The fence of that grant: only this grant can take the mark back.
    pub fence: Fence,
}

impl Mark {
    /// When it is forgotten.
    pub fn until(&self) -> StoreTime {
        self.at + self.span
    }
}

/// What closes a name because what was to be done once is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Until when no claim is granted.
    pub until: StoreTime,
    /// The claim that set it: it may send the same again.
    pub by: ClaimId,
}

/// Why a claim is gone, kept until the claim would have ended anyway, so that its owner hears the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The claim that is gone.
    pub claim: ClaimId,
    /// Why.
    pub why: Gone,
    /// The expiry that the claim had: the tombstone vanishes then.
    pub until: StoreTime,
}

/// What somebody other than the claim that made the event must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A waiter was granted by hand-off.
    Granted {
        /// The waiter.
        claim: ClaimId,
        /// The fence of its grant.
        fence: Fence,
    },
    /// A waiter was turned away, or a holder revoked.
    Gone {
        /// The waiter or holder.
        claim: ClaimId,
        /// Why.
        why: Gone,
    },
}

impl Told {
    /// Who must be told.
    pub fn claim(&self) -> ClaimId {
        match self {
            Told::Granted { claim, .. } | Told::Gone { claim, .. } => *claim,
        }
    }
}

/// Why a claim can neither be granted nor queued, and asking again does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// The name is in use as something else.
    KindConflict {
        /// What it is in use as.
        in_use: Kind,
        /// What was asked for.
        asked: Kind,
    },
    /// No claim of this kind can ever hold in this mode.
    ModeMisfit {
        /// What was asked for.
        kind: Kind,
        /// How it was to be held.
        mode: Mode,
    },
    /// The last fence is the highest there can be. Another grant could not be told from an older one.
    FencesSpent,
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimError::KindConflict { in_use, asked } => write!(
                f,
                "the name is in use as a {in_use}, and this claim asks for a {asked}; \
                 ask for a {in_use}, take another name, or wait until nobody uses it"
            ),
            ClaimError::ModeMisfit {
                kind: Kind::Semaphore { limit },
                mode,
            } => {
                write!(
                    f,
                    "a semaphore of {limit} cannot be held as {mode}; ask for 1 to {limit} permits"
                )
            }
            ClaimError::ModeMisfit {
                kind: Kind::Mutex,
                mode,
            } => {
                write!(f, "a mutex cannot be held as {mode}; ask for exclusive")
            }
            ClaimError::ModeMisfit { kind, mode } => {
                write!(
                    f,
                    "a {kind} cannot be held as {mode}; ask for exclusive or shared"
                )
            }
            ClaimError::FencesSpent => {
                write!(
                    f,
                    "the last fence of the name is {}, the highest there can be; take another name",
                    Fence::MAX
                )
            }
        }
    }
}

impl std::error::Error for ClaimError {}

impl From<ClaimError> for Error {
    fn from(error: ClaimError) -> Error {
        let kind = match error {
            ClaimError::KindConflict { .. } | ClaimError::ModeMisfit { .. } => ErrorKind::Config,
            // No store counts so far by itself: what it wrote down cannot be right.
            ClaimError::FencesSpent => ErrorKind::Protocol,
        };
        Error::new(kind, error.to_string())
    }
}
