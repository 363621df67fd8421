//! The state of a line: plain data that a store can save and load.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::StoreTime;
use crate::error::{Error, ErrorKind};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Claim, ClaimId, Gone, Grant, Kind, Lease, Mode};

/// A claim that was granted, for as long as it occupies the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderEntry {
    /// The claim that was granted.
    pub claim: ClaimId,
    /// Its mode.
    pub mode: Mode,
    /// The holder, for people to read.
    pub owner: Arc<str>,
    /// The reason, for people to read.
    pub reason: Option<Arc<str>>,
    /// How far each renewal moves the expiry.
    pub lease: Duration,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub granted_at: StoreTime,
    /// When it ends without renewal.
    pub expiry: StoreTime,
    /// Until when its min-hold keeps the name closed; the store's zero without a min-hold.
    pub keep_until: StoreTime,
    /// Whether its owner is gone (released or expired), so that it only keeps the name closed.
    pub ghost: bool,
    /// The once-per mark that this grant replaced: an undo puts it back.
    pub mark_before: Option<Mark>,
}

impl HolderEntry {
    /// Until when it excludes others, without any further event.
    pub fn occupies_until(&self) -> StoreTime {
        if self.ghost {
            self.keep_until
        } else {
            self.expiry.max(self.keep_until)
        }
    }

    /// When time alone next changes it.
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
    /// The mode it asks for.
    pub mode: Mode,
    /// The waiter, for people to read.
    pub owner: Arc<str>,
    /// The reason, for people to read.
    pub reason: Option<Arc<str>>,
    /// The lease it will hold by; while it waits a renewal moves the expiry by
    /// [`wait_lease`](WaiterEntry::wait_lease).
    pub lease: Duration,
    /// When it was queued.
    pub queued_at: StoreTime,
    /// When it ends without renewal. It keeps this expiry when it is granted, until its next
    /// renewal.
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

    /// The holder entry of its grant. A grant renews nothing, so the expiry stays.
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

/// The mark that closes a name after the work of `once` is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Until when no claim is granted.
    pub until: StoreTime,
    /// The claim that set it: it may send the same again.
    pub by: ClaimId,
}

/// Why a claim is gone. Kept until the claim would have ended anyway, so that its owner can be
/// told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The claim that is gone.
    pub claim: ClaimId,
    /// Why.
    pub why: Gone,
    /// The expiry that the claim had: the tombstone vanishes then.
    pub until: StoreTime,
}

/// A message to another claim than the one that made the event.
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
    /// The claim that must be told.
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
        /// The kind that it has now.
        in_use: Kind,
        /// The kind that was asked for.
        asked: Kind,
    },
    /// No claim of this kind can ever hold in this mode.
    ModeMisfit {
        /// The kind that was asked for.
        kind: Kind,
        /// The mode that was asked for.
        mode: Mode,
    },
    /// The last fence is the highest there can be, so no grant can have a higher one.
    FencesSpent,
}

/// What is wrong, to be read behind the name.
impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimError::KindConflict { in_use, asked } => write!(
                f,
                "is in use as a {in_use}, and this claim asks for a {asked}; \
                 ask for a {in_use}, take another name, or wait until it is free"
            ),
            ClaimError::ModeMisfit {
                kind: Kind::Semaphore { limit },
                mode,
            } => {
                write!(
                    f,
                    "is a semaphore of {limit}, and cannot be held as {mode}; ask for 1 to {limit} permits"
                )
            }
            ClaimError::ModeMisfit {
                kind: Kind::Mutex,
                mode,
            } => {
                write!(
                    f,
                    "is a mutex, and cannot be held as {mode}; ask for exclusive"
                )
            }
            ClaimError::ModeMisfit { kind, mode } => {
                write!(
                    f,
                    "is a {kind}, and cannot be held as {mode}; ask for exclusive or shared"
                )
            }
            ClaimError::FencesSpent => {
                write!(
                    f,
                    "has {} as its last fence, the highest there can be; take another name",
                    Fence::MAX
                )
            }
        }
    }
}

impl std::error::Error for ClaimError {}

impl ClaimError {
    /// The error of a claim for this name.
    pub fn of(self, name: &Name) -> Error {
        let kind = match self {
            ClaimError::KindConflict { .. } | ClaimError::ModeMisfit { .. } => ErrorKind::Config,
            // No store counts so far by itself: the saved state must be wrong.
            ClaimError::FencesSpent => ErrorKind::Protocol,
        };
        Error::new(kind, format!("{name} {self}"))
    }
}
