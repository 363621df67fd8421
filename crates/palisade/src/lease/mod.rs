//! Leases on our side: the clock, the arithmetic of deadlines, the keeper that renews, and the warden that tells of the loss.

pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod keeper;
pub(crate) mod registry;
pub(crate) mod tracked;
pub(crate) mod warden;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};

pub use clock::{BootClock, Clock, ManualClock, Moment, OnJump};
pub(crate) use deadline::Drift;

/// How a guard stands, computed from the clock at the moment of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// At least half of the last confirmed lease remains, and the store answers.
    Held,
    /// Still held, but renewals fail, or less than half of the lease remains.
    AtRisk,
    /// Not held any more, for good.
    Lost(LossReason),
}

/// Why a guard does not hold any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ran out before a renewal was confirmed.
    Expired,
    /// The store says that somebody else holds the name.
    Taken,
    /// An operator ended the grant.
    Revoked,
    /// The session that the grant lived in ended.
    SessionEnded,
    /// The limit set by `max_hold` was reached.
    MaxHold,
    /// Another member of the same multi-lock was lost.
    MemberLost,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::Expired => "the lease ran out before a renewal was confirmed",
            LossReason::Taken => "somebody else holds it now",
            LossReason::Revoked => "an operator ended the grant",
            LossReason::SessionEnded => "the session in the store ended",
            LossReason::MaxHold => "the longest hold was reached",
            LossReason::MemberLost => "another lock of the same group was lost",
        })
    }
}

/// Runs wakers of the user's runtime. One that panics must end neither the thread that runs it nor what else is to be told.
pub(crate) fn wake(wakers: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(wakers)).is_err() {
        tracing::error!("the waker of a task that waits for a lock has panicked");
    }
}
