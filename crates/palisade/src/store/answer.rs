//! What a store answers, and what it tells by itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Holder, Lease};
use crate::fence::Fence;
use crate::lease::LossReason;

/// The store's yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Higher than that of every earlier grant of the name.
    pub fence: Fence,
    /// How long it lasts.
    pub lease: Lease,
}

/// Where a waiting claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many claims stand before it, holders not counted, where the store knows.
    pub ahead: Option<u32>,
    /// After how long the passing of time alone admits this claim, if nobody before it renews: nothing wakes it then. So the
    /// first in line asks when a lease has run out, and who stands behind dead waiters asks when they are gone.
    pub ask_in: Option<Duration>,
    /// How long it keeps its place without renewal.
    pub lease: Lease,
    /// Who holds the name, where the store knows it without a further request.
    pub holder: Option<Holder>,
}

/// What the store says to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds.
    Granted(Grant),
    /// It stands in line.
    Queued(Place),
    /// The name is taken, or closed, and the claim was not queued.
    Busy(Busy),
    /// The name was sealed: what was to be done once is done.
    Sealed,
}

/// Why a claim was turned away.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Busy {
    /// Who holds the name, where the store knows.
    pub holder: Option<Holder>,
    /// After how long the passing of time alone may free the name, where the store knows.
    pub ask_in: Option<Duration>,
    /// Whether it was refused because such a claim was granted less than its `once_per` ago.
    pub too_soon: bool,
    /// Whether the store [tells](super::ClientHandle::ask_again) when the name is free, though it [cannot](super::Wakes::Poll) in general.
    pub woken: bool,
}

/// Where a claim stands after a renewal.
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
    /// Its lease ran out, or the store lost it.
    Expired,
    /// Somebody else holds the name.
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
    /// What the holder of such a claim is told.
    pub fn as_loss(self) -> LossReason {
        match self {
            Gone::Expired | Gone::Sealed | Gone::TooSoon => LossReason::Expired,
            Gone::Taken => LossReason::Taken,
            Gone::Revoked => LossReason::Revoked,
            Gone::SessionEnded => LossReason::SessionEnded,
        }
    }
}

/// How a claim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Given back.
    Release,
    /// Given back as if it had never been granted: its once-per mark and its min-hold are taken back.
    Undo,
    /// Given back, and no claim is granted for so long: what was to be done once is done.
    Seal(Duration),
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// The store gave it back: it was held until now.
    Done,
    /// It was not held any more: lost, expired or revoked before.
    AlreadyLost,
    /// The store could not be asked in time. It is tried again in the background; the lease ends it at the latest.
    Unknown,
}

/// What became of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The grant was ended.
    Done,
    /// Somebody else holds the name now: nothing was changed.
    OtherHolder {
        /// The fence of the grant that stands there now.
        fence: Fence,
    },
    /// Nobody holds the name.
    NotHeld,
}

/// Who leads an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// What it proclaims.
    pub value: String,
    /// The fence of its leadership: higher than that of every leader before.
    pub fence: Fence,
}

/// What a holder's claim is turned into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A writer becomes a reader in one step, keeping its fence; readers next in line come in with it. The claim still says
    /// exclusive: a store goes by what it has on record.
    Downgrade,
    /// The grant outlives this client: from now on nothing but its lease ends it. Asked of claims that were made
    /// [detachable](super::Claim::detachable), and of all where each claim has a lease of its own.
    Detach,
    /// The leader of an election proclaims another value.
    Proclaim(std::sync::Arc<str>),
}
