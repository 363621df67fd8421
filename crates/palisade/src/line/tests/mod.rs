//! Examples to read, and properties over random histories.

mod examples;
mod history;
mod observer;
mod properties;

use std::sync::Arc;
use std::time::Duration;

use super::*;

/// Whole seconds are enough: ties, where mistakes live, come up all the time.
fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn at(second: u64) -> StoreTime {
    StoreTime::at(secs(second))
}

fn id(number: u128) -> ClaimId {
    // The high bits are the ones that Debug shows.
    ClaimId::from_bits(number << 104)
}

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn some_claim(number: u128, kind: Kind, mode: Mode, lease: u64) -> Claim {
    Claim {
        kind,
        mode,
        owner: Arc::from(format!("owner {number}")),
        ..Claim::of_mutex(id(number), "orders/42", secs(lease))
    }
}
