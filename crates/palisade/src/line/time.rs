//! The store's clock, as the line reads it.

use std::ops::Add;
use std::time::Duration;

/// A point on the *store's* clock. Not comparable with a point on ours
/// ([`Moment`](crate::lease::Moment)), by type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StoreTime(Duration);

impl StoreTime {
    /// A time so late that it never comes.
    pub const NEVER: StoreTime = StoreTime(Duration::MAX);

    /// The time that lies this long after the store's zero.
    pub const fn at(since_zero: Duration) -> StoreTime {
        StoreTime(since_zero)
    }

    /// How long after the store's zero this time lies.
    pub const fn since_zero(self) -> Duration {
        self.0
    }

    /// How long after `earlier` this time lies; zero when it does not.
    pub fn since(self, earlier: StoreTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for StoreTime {
    type Output = StoreTime;

    /// Saturates: a lease that would end past the end of time never ends.
    fn add(self, span: Duration) -> StoreTime {
        StoreTime(self.0.saturating_add(span))
    }
}
