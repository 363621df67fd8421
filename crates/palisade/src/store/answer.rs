//! The answers of a store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Capability, ClaimRef, Holder, Lease, Mode};
use crate::error::Error;
use crate::fence::Fence;
use crate::lease::LossReason;

/// The store's yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Higher than that of every earlier grant of the name.
    pub fence: Fence,
    /// Its lease.
    pub lease: Lease,
}

/// The place of a waiting claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many waiters are before it, where the store knows.
    pub ahead: Option<u32>,
    /// After how long time alone admits this claim, if no claim before it renews. No push follows
    /// then, so the claim asks.
    pub ask_in: Option<Duration>,
    /// How long it keeps its place without renewal.
    pub lease: Lease,
    /// The holder of the name, where the store knows it without a further request.
    pub holder: Option<Holder>,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds.
    Granted(Grant),
    /// It waits in line.
    Queued(Place),
    /// The name is taken, or closed, and the claim was not queued.
    Busy(Busy),
    /// The name was sealed: its work is done.
    Sealed,
}

/// Why a claim was turned away.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Busy {
    /// The holder of the name, where the store knows.
    pub holder: Option<Holder>,
    /// After how long time alone may free the name, where the store knows.
    pub ask_in: Option<Duration>,
    /// Whether it was refused because such a claim was granted less than its `once_per` ago. Then
    /// `ask_in` is the time until it is due.
    pub too_soon: bool,
    /// Whether no claim holds the name, and a `min_hold` keeps it closed.
    pub closed: bool,
    /// Whether a [push](super::ClientHandle::ask_again) follows when the name is free, though the
    /// store [cannot](super::Wakes::Poll) push in general.
    pub woken: bool,
}

/// The state of a claim after a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Still in line.
    Waiting(Place),
    /// It holds, with the full lease.
    Held(Grant),
    /// The store does not have it any more, and never will again.
    Gone(Gone),
}

/// Why the store does not have a claim any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gone {
    /// Its lease ran out: the store has seen it.
    Expired,
    /// The store remembers a grant as late as this one, and does not have this one any more: it was
    /// released, or its lease ran out.
    Ended,
    /// The store has no record of it: it lost its data, another server gave the grant, or the grant
    /// has ended so long ago that the store has forgotten it.
    Unknown,
    /// Another claim holds the name.
    Taken,
    /// An operator ended it.
    Revoked,
    /// The session it lived in ended.
    SessionEnded,
    /// It waited, and the name was sealed meanwhile.
    Sealed,
    /// It waited, and such a claim was granted less than its `once_per` ago.
    TooSoon,
}

impl Gone {
    /// What is known of a grant with this fence that the store does not have, and has given fences
    /// up to `last`: it has ended, or the store never gave it or has lost it with all its data.
    pub fn by_last_fence(fence: Option<Fence>, last: Fence) -> Gone {
        match fence {
            Some(fence) if fence <= last => Gone::Ended,
            _ => Gone::Unknown,
        }
    }

    /// The same, where the holders of the name were read: an exclusive grant that has ended while
    /// a later grant holds was taken.
    pub fn by_holders<'a>(
        claim: &ClaimRef,
        last: Fence,
        mut holders: impl Iterator<Item = &'a Fence>,
    ) -> Gone {
        let is_later = |holder: &Fence| claim.fence.is_some_and(|fence| fence < *holder);
        match Gone::by_last_fence(claim.fence, last) {
            Gone::Ended if claim.claim.mode == Mode::Exclusive && holders.any(is_later) => {
                Gone::Taken
            }
            gone => gone,
        }
    }

    /// The loss of a holder in this mode whose claim the store had confirmed. Readers and permits
    /// hold beside others: another holder took nothing from them.
    pub fn as_loss(self, mode: Mode) -> LossReason {
        match self {
            Gone::Taken if mode != Mode::Exclusive => LossReason::Ended,
            Gone::Expired => LossReason::Expired,
            Gone::Ended | Gone::Sealed | Gone::TooSoon => LossReason::Ended,
            Gone::Unknown => LossReason::Forgotten,
            Gone::Taken => LossReason::Taken,
            Gone::Revoked => LossReason::Revoked,
            Gone::SessionEnded => LossReason::SessionEnded,
        }
    }
}

/// How a claim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Released.
    Release,
    /// Released as if it had never been granted: its once-per mark and its min-hold are removed.
    Undo,
    /// Released, and no claim is granted for this long: the work of `once` is done.
    Seal(Duration),
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// The store released it: it was held until now.
    Done,
    /// It was not held any more: lost, expired or revoked before.
    AlreadyLost,
    /// The store could not be asked in time. It is tried again in the background; the lease ends it
    /// at the latest.
    Unknown,
}

/// The outcome of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The grant was ended.
    Done,
    /// Another grant holds the name now: nothing was changed.
    OtherHolder {
        /// The fence of the present grant.
        fence: Fence,
    },
    /// The name has no holder.
    NotHeld,
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// The value that it proclaims.
    pub value: String,
    /// The fence of its leadership: higher than that of every leader before.
    pub fence: Fence,
}

/// A change of a holder's claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A writer becomes a reader in one step, keeping its fence; readers next in line come in with
    /// it. The claim still says exclusive: a store goes by its own record.
    Downgrade,
    /// The grant outlives this client: only its lease ends it. For claims that were made
    /// [detachable](super::Claim::detachable), or that have a lease of their own.
    Detach,
    /// The leader of an election proclaims another value.
    Proclaim(std::sync::Arc<str>),
}

impl Change {
    /// The error of a store that cannot make this change.
    pub(crate) fn refused_by(&self, capability: &Capability) -> Error {
        Error::unsupported(match self {
            Change::Detach => format!("{capability} ends a grant with the client that has it"),
            Change::Downgrade => format!("{capability} cannot turn a write lock into a read lock"),
            Change::Proclaim(_) => format!(
                "{capability} cannot change a leader's value; resign, and campaign with the other"
            ),
        })
    }
}
