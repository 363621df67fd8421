//! The pause between two attempts.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(100);

/// Sleeps for a random part of a time that doubles, so that two writers do not collide again.
pub(super) async fn pause(tried: u32) {
    let longest = FIRST.saturating_mul(1 << tried.min(10)).min(LONGEST);
    tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
}
