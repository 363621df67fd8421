//! The clock rule, as pure functions: until when a confirmation is valid, by our clock alone.
//!
//! `valid_until = t_send + lease·(1 − drift) − 2 ms`, counted from *before* the request was sent.
//! The store cannot have begun the lease earlier, so it cannot end it earlier: the holder knows
//! before the store may admit another.

use std::time::Duration;

use super::{LossReason, Moment};
use crate::store::Lease;

/// Covers the granularity of timers on both sides.
const SLACK: Duration = Duration::from_millis(2);

/// A lower bound, so that the last retries of a failed renewal do not become a storm.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(5);

/// By how much the store's clock may run faster than ours, as a part of the lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Drift(f64);

impl Drift {
    /// The share of a lease that is given up for the difference between two clocks' rates; kept
    /// within 0 to 0.5.
    pub(crate) fn new(share: f64) -> Drift {
        Drift(if share.is_finite() {
            share.clamp(0.0, 0.5)
        } else {
            Self::default().0
        })
    }

    /// The lease less the drift.
    fn shorten(self, lease: Duration) -> Duration {
        // A day has 8.64e13 ns: an f64 counts it exactly, and a longer lease is cut, not stretched.
        lease.saturating_sub(
            Duration::try_from_secs_f64(lease.as_secs_f64() * self.0).unwrap_or(lease),
        )
    }
}

impl Default for Drift {
    /// One per cent: ten times what two slewed clocks can differ.
    fn default() -> Drift {
        Drift(0.01)
    }
}

/// The latest confirmation, and until when it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// When it was asked for.
    sent: Moment,
    /// From when the confirmed length counts.
    counted_from: Moment,
    /// The confirmed length: the shorter of what was asked and what was granted.
    length: Duration,
    /// From this moment on, another claim may hold.
    valid_until: Moment,
}

impl Deadline {
    /// The validity of a confirmation that was asked for at `sent`, with the length `asked`.
    pub(crate) fn of(sent: Moment, asked: Duration, lease: Lease, drift: Drift) -> Deadline {
        let counted_from = lease.counted_from.map_or(sent, |from| from.min(sent));
        let length = lease.length.min(asked);
        Deadline {
            sent,
            counted_from,
            length,
            valid_until: (counted_from + drift.shorten(length)).before(SLACK),
        }
    }

    /// The better of two confirmations: a late answer to an early request never shortens what is
    /// known.
    #[must_use]
    pub(crate) fn or_later(self, other: Deadline) -> Deadline {
        if other.valid_until > self.valid_until {
            other
        } else {
            self
        }
    }

    pub(crate) fn sent(&self) -> Moment {
        self.sent
    }

    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// How long it is still valid.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.valid_until.since(now)
    }

    /// Whether less than half of the confirmed length remains: one renewal, at least, is overdue.
    pub(crate) fn is_at_risk(&self, now: Moment) -> bool {
        self.remaining(now) < self.length / 2
    }

    /// The margin for stopping: as asked for, but at most two fifths of the confirmed length. More
    /// would stop a holder between two renewals.
    pub(crate) fn margin(&self, asked: Duration) -> Duration {
        asked.min(self.length.mul_f64(0.4))
    }

    /// When to renew: every third of the length, so that two attempts may fail. A lease that counts
    /// from long before its request is overdue at once, and is not asked for again at once.
    pub(crate) fn renew_at(&self) -> Moment {
        (self.counted_from + self.length / 3).max(self.sent + self.length / 9)
    }

    /// How long to wait for the answer to a renewal before the next is sent. An expired waiter has
    /// no time left to divide.
    pub(crate) fn attempt(&self, now: Moment) -> Duration {
        let third = self.length / 3;
        let half = self.remaining(now) / 2;
        if half.is_zero() {
            third
        } else {
            third.min(half).max(SHORTEST_ATTEMPT)
        }
    }

    /// Whether so little is left that a new holder must renew before it begins.
    pub(crate) fn is_too_short_to_begin(
        &self,
        now: Moment,
        stop_margin: Duration,
        wait_lease: Duration,
    ) -> bool {
        self.remaining(now) < (stop_margin * 2).max(wait_lease / 2)
    }
}

/// When a holder is told to stop, when it is told of its loss, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// When to stop: `on_lost` fires.
    pub(crate) stop_at: Moment,
    /// When it is over: `lost` fires.
    pub(crate) lost_at: Moment,
    /// Why it will be over.
    pub(crate) reason: LossReason,
}

/// The end of a hold, from its deadline, its longest hold and its stop margin.
pub(crate) fn end(valid_until: Moment, held_until: Moment, stop_margin: Duration) -> End {
    let (lost_at, reason) = if held_until <= valid_until {
        (held_until, LossReason::MaxHold)
    } else {
        (valid_until, LossReason::Expired)
    };
    End {
        stop_at: lost_at.before(stop_margin),
        lost_at,
        reason,
    }
}

/// The stop margin of a user who set none.
pub(crate) fn default_stop_margin(lease: Duration, max_hold: Option<Duration>) -> Duration {
    (lease.min(max_hold.unwrap_or(lease)) / 10).min(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn ms(millis: u64) -> Moment {
        Moment::at(Duration::from_millis(millis))
    }

    /// A store with a clock of its own rate, and the network between: the ground truth that the
    /// rule must be safe against.
    struct Truth {
        sent: Moment,
        /// When the store began the lease, on our clock.
        begun: Moment,
        /// When the store may admit another, on our clock.
        freed: Moment,
    }

    fn truth(sent: u64, flight: u64, length: u64, rate: f64) -> Truth {
        let begun = ms(sent + flight);
        Truth {
            sent: ms(sent),
            begun,
            freed: begun + Duration::from_secs_f64(length as f64 / 1000.0 / rate),
        }
    }

    proptest! {
        /// Promise 2: with any delay on the network and a clock that runs up to 1 % fast, we stop
        /// before the store lets go.
        #[test]
        fn the_holder_stops_first(sent in 0u64..1 << 40, flight in 0u64..100_000, length in 100u64..86_400_000, rate in 0.9f64..1.01) {
            let truth = truth(sent, flight, length, rate);
            let asked = Duration::from_millis(length);
            let deadline = Deadline::of(truth.sent, asked, Lease::of(asked), Drift::default());
            prop_assert!(deadline.valid_until() < truth.freed);
        }

        /// A grant that arrives later, by push, is dated by the last request after which the claim
        /// still waited.
        #[test]
        fn a_pushed_grant_is_dated_by_the_earlier_request(
            sent in 0u64..1 << 40, flight in 0u64..1000, length in 100u64..5_000, handed_over in 0u64..5_000, rate in 0.9f64..1.01,
        ) {
            let waiting = truth(sent, flight, length, rate);
            // The store grants at some point of the waiter's life and keeps the waiter's expiry.
            let granted = waiting.begun + Duration::from_millis(handed_over.min(length));
            let deadline =
                Deadline::of(waiting.sent, Duration::from_millis(length), Lease::of(Duration::from_millis(length)), Drift::default());
            prop_assert!(deadline.valid_until() < waiting.freed);
            prop_assert!(granted >= waiting.begun);
        }

        /// A session that was renewed before the claim: the lease counts from that renewal, not
        /// from the claim.
        #[test]
        fn a_session_counts_from_its_own_renewal(renewed in 0u64..100_000, later in 0u64..100_000, length in 2_000u64..60_000) {
            let session = truth(renewed, 1, length, 1.01);
            let lease = Lease { length: Duration::from_millis(length), counted_from: Some(session.sent) };
            let deadline = Deadline::of(ms(renewed + later), Duration::from_secs(3600), lease, Drift::default());
            prop_assert!(deadline.valid_until() < session.freed);
        }

        /// A wrong `counted_from` in the future must not lengthen anything.
        #[test]
        fn nothing_counts_from_after_the_request(sent in 0u64..100_000, ahead in 0u64..100_000, length in 100u64..60_000) {
            let length = Duration::from_millis(length);
            let plain = Deadline::of(ms(sent), length, Lease::of(length), Drift::default());
            let odd = Deadline::of(ms(sent), length, Lease { length, counted_from: Some(ms(sent + ahead)) }, Drift::default());
            prop_assert_eq!(plain, odd);
        }

        /// Answers come in any order; what is known only grows.
        #[test]
        fn a_late_answer_never_shortens(a in 0u64..100_000, b in 0u64..100_000, long in 100u64..60_000, short in 100u64..60_000) {
            let of = |sent, length| {
                let length = Duration::from_millis(length);
                Deadline::of(ms(sent), length, Lease::of(length), Drift::default())
            };
            let (one, two) = (of(a, long), of(b, short));
            prop_assert_eq!(one.or_later(two).valid_until(), one.valid_until().max(two.valid_until()));
            prop_assert_eq!(two.or_later(one).valid_until(), one.or_later(two).valid_until());
        }

        /// Two attempts fit before half of the lease is gone, and an attempt never outlasts the
        /// lease that it is to save.
        #[test]
        fn two_renewals_may_fail(length in 100u64..86_400_000) {
            let length = Duration::from_millis(length);
            let deadline = Deadline::of(ms(0), length, Lease::of(length), Drift::default());
            let first = deadline.renew_at();
            let second = first + deadline.attempt(first);
            let third = second + deadline.attempt(second);
            prop_assert!(first < second && second < third && third < deadline.valid_until());
            prop_assert!(deadline.attempt(first) <= length / 3);
            prop_assert!(deadline.attempt(second) <= (deadline.remaining(second) / 2).max(SHORTEST_ATTEMPT));
        }

        /// However old a session's last renewal is, a claim is not asked about in a busy loop.
        #[test]
        fn an_old_session_does_not_make_the_keeper_spin(sent in 100_000u64..200_000, age in 0u64..100_000, length in 1_000u64..60_000) {
            let lease = Lease { length: Duration::from_millis(length), counted_from: Some(ms(sent - age)) };
            let deadline = Deadline::of(ms(sent), lease.length, lease, Drift::default());
            prop_assert!(deadline.renew_at() >= ms(sent) + lease.length / 9);
            prop_assert!(deadline.attempt(ms(sent)) >= SHORTEST_ATTEMPT);
        }

        /// Whichever comes first, lease or longest hold, ends the hold and gives its reason; the
        /// stop is never after the end.
        #[test]
        fn the_nearer_end_wins(valid in 0u64..100_000, held in 0u64..100_000, margin in 0u64..10_000) {
            let end = end(ms(valid), ms(held), Duration::from_millis(margin));
            prop_assert_eq!(end.lost_at, ms(valid.min(held)));
            prop_assert_eq!(end.reason == LossReason::MaxHold, held <= valid);
            prop_assert!(end.stop_at <= end.lost_at);
        }
    }

    #[test]
    fn the_rule_in_figures() {
        let lease = Duration::from_secs(30);
        let deadline = Deadline::of(ms(1_000), lease, Lease::of(lease), Drift::default());
        assert_eq!(deadline.valid_until(), ms(1_000 + 29_700 - 2));
        assert_eq!(deadline.renew_at(), ms(11_000));
        assert_eq!(
            deadline.attempt(ms(11_000)),
            (ms(30_698).since(ms(11_000)) / 2).min(MS * 10_000)
        );
        assert!(!deadline.is_at_risk(ms(15_698)));
        assert!(deadline.is_at_risk(ms(15_699)));
        assert_eq!(deadline.remaining(ms(30_697)), MS);
        assert_eq!(deadline.remaining(ms(30_698)), Duration::ZERO);
        assert_eq!(deadline.attempt(ms(30_697)), SHORTEST_ATTEMPT);
        assert_eq!(
            deadline.attempt(ms(30_698)),
            MS * 10_000,
            "a waiter that is too late asks now and then"
        );
    }

    #[test]
    fn the_shorter_of_asked_and_granted_counts() {
        let asked = Duration::from_secs(10);
        let granted = Lease::of(Duration::from_secs(60));
        assert_eq!(
            Deadline::of(ms(0), asked, granted, Drift::default()).length(),
            asked
        );
        assert_eq!(
            Deadline::of(
                ms(0),
                Duration::from_secs(60),
                Lease::of(asked),
                Drift::default()
            )
            .length(),
            asked
        );
    }

    #[test]
    fn a_new_holder_needs_time_to_begin() {
        let lease = Duration::from_secs(5);
        let deadline = Deadline::of(ms(0), lease, Lease::of(lease), Drift::default());
        assert!(!deadline.is_too_short_to_begin(ms(2_000), MS * 500, lease));
        assert!(
            deadline.is_too_short_to_begin(ms(2_500), MS * 500, lease),
            "half of the wait lease"
        );
        assert!(
            deadline.is_too_short_to_begin(ms(1_000), MS * 2_000, lease),
            "twice the stop margin"
        );
    }

    #[test]
    fn extreme_lengths_do_not_overflow() {
        for length in [Duration::ZERO, MS, Duration::MAX] {
            for sent in [Moment::default(), Moment::NEVER] {
                for drift in [
                    Drift::new(0.0),
                    Drift::default(),
                    Drift::new(0.5),
                    Drift::new(f64::NAN),
                ] {
                    let deadline = Deadline::of(sent, length, Lease::of(length), drift);
                    let _ = (
                        deadline.renew_at(),
                        deadline.attempt(sent),
                        deadline.is_at_risk(sent),
                    );
                }
            }
        }
    }
}
