//! Leases on our side: the clock, the arithmetic of deadlines, the keeper that renews, and the
//! warden that tells holders of a loss.

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

/// The state of a guard, computed from the clock at the moment of the call.
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
    /// The store ended the grant before the deadline that this client counts with: another process
    /// released it, or the lease ran out by the store's clock.
    Ended,
    /// This client has released the grant, which was presented again.
    Released,
    /// The store had confirmed the grant, and has no record of it any more: it was flushed,
    /// restarted without its data, or failed over to a server that never had it.
    Forgotten,
    /// The store has no record of the grant, and never confirmed it to this client.
    Unknown,
    /// The store says that another claim holds the name.
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
            LossReason::Ended => "the grant was released, or its lease ran out",
            LossReason::Released => "this client has released the grant",
            LossReason::Forgotten => {
                "the store has no record of it any more: flushed, restarted without its data, or failed over"
            }
            LossReason::Unknown => {
                "this store has no record of the grant: another server gave it, it ended long ago, or the store lost its data"
            }
            LossReason::Taken => "another claim holds it now",
            LossReason::Revoked => "an operator ended the grant",
            LossReason::SessionEnded => "the session in the store ended",
            LossReason::MaxHold => "the longest hold was reached",
            LossReason::MemberLost => "another lock of the same group was lost",
        })
    }
}

/// Runs wakers of the user's runtime. A panicking one must end neither the thread that runs it nor
/// the other notifications.
pub(crate) fn wake(wakers: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(wakers)).is_err() {
        tracing::error!("the waker of a task that waits for a lock has panicked");
    }
}
