//! Our clock: it counts through suspend, and tests can move it by hand.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A point on *our* clock. Not comparable with a store's time
/// ([`StoreTime`](crate::line::StoreTime)), by type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// A moment so late that it never comes.
    pub const NEVER: Moment = Moment(Duration::MAX);

    /// The moment that lies this long after the clock's zero.
    pub const fn at(since_zero: Duration) -> Moment {
        Moment(since_zero)
    }

    /// How long after the clock's zero this moment lies.
    pub const fn since_zero(self) -> Duration {
        self.0
    }

    /// How long after `earlier` this moment lies; zero when it does not.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment this much earlier; the clock's zero at the earliest.
    #[must_use]
    pub fn before(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(span))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    /// Saturates: a lease that would end past the end of time never ends.
    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(span))
    }
}

/// Called when a clock was moved by hand.
pub type OnJump = Arc<dyn Fn() + Send + Sync>;

/// The clock that deadlines are read from.
///
/// It must never go back and must count while the machine sleeps; see [`BootClock`].
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Moment;

    /// Asks to be told when the clock jumps. A clock that moves by itself never calls it.
    fn on_jump(&self, tell: OnJump) {
        drop(tell);
    }
}

/// CLOCK_BOOTTIME: monotonic, and unlike `Instant` it counts through suspend.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = rustix::time::ClockId::Boottime;
        // Elsewhere the monotonic clock is the nearest there is; docs say that suspend is not
        // covered there.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(clock);
        // Neither field is negative on these clocks.
        Moment(Duration::new(
            time.tv_sec.unsigned_abs(),
            time.tv_nsec.unsigned_abs() as u32,
        ))
    }
}

/// A clock that stands still until a test moves it.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Manual>);

#[derive(Default)]
struct Manual {
    nanos: AtomicU64,
    tell: Mutex<Vec<OnJump>>,
}

impl ManualClock {
    /// A clock that stands at its zero.
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Moves the clock forward, and wakes every sleeper on it.
    pub fn advance(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.0.nanos.fetch_add(nanos, Ordering::SeqCst);
        let tell = self
            .0
            .tell
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        tell.iter().for_each(|tell| tell());
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment(Duration::from_nanos(self.0.nanos.load(Ordering::SeqCst)))
    }

    fn on_jump(&self, tell: OnJump) {
        self.0
            .tell
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(tell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_does_not_go_back() {
        let mut last = BootClock.now();
        for _ in 0..10_000 {
            let now = BootClock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn moments_saturate() {
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(
            Moment::default().before(Duration::from_secs(1)),
            Moment::default()
        );
        assert_eq!(Moment::default().since(Moment::NEVER), Duration::ZERO);
    }
}
