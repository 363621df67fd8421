//! From when the length of a session counts, by our clock: what an answer proves.
//!
//! The leader ends sessions, and it hears of their requests only through the server that the client
//! is connected to, which tells it every half tick which sessions it has heard of. So an answer of
//! that server alone proves nothing: cut off from the leader, it goes on answering. What comes back
//! from the leader proves that the two were connected, in order, up to then: the leader has heard
//! of every request that the server had passed on before. A session lasts at least two ticks, so a
//! quarter of it, and a little for the server's own delays, is enough for that. It counts from the
//! answer: only by then the server surely had the request.
//!
//! A new session is a transaction, so its length counts from the request. A session that is taken
//! up again is not: a leader that was deposed without its knowledge takes it up alone. That request
//! counts only once a transaction was answered on the same connection: then the leader had a
//! majority behind it, and no other leader had begun to count.

use std::collections::VecDeque;
use std::time::Duration;

use crate::lease::Moment;

/// As a part of the session: by when the leader has heard of a request.
const PASSED_ON: u32 = 4;
/// As a part of the session: how much longer that may take.
const DELAYED: u32 = 16;
/// As a part of the session: requests that are closer together count as one.
const APART: u32 = 64;

#[derive(Debug)]
pub(super) struct SessionDeadline {
    length: Duration,
    counted_from: Moment,
    /// When this connection asked to take the session up, until a transaction has proven that it
    /// counts.
    taken_up: Option<Moment>,
    /// The requests of this connection that have been answered, from the earliest on.
    touches: VecDeque<Touch>,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: Moment,
    answered: Moment,
}

impl SessionDeadline {
    /// The deadline of a new session.
    pub(super) fn new(sent: Moment, length: Duration) -> SessionDeadline {
        SessionDeadline {
            length,
            counted_from: sent,
            taken_up: None,
            touches: VecDeque::new(),
        }
    }

    /// The deadline of a session that another client had: nothing is proven yet.
    pub(super) fn of_other(sent: Moment, length: Duration) -> SessionDeadline {
        SessionDeadline {
            length,
            counted_from: Moment::default(),
            taken_up: Some(sent),
            touches: VecDeque::new(),
        }
    }

    /// The session was taken up by another connection.
    pub(super) fn connected(&mut self, sent: Moment, length: Duration) {
        self.length = length;
        self.taken_up = Some(sent);
        // The server before may never have passed on what it heard.
        self.touches.clear();
    }

    /// A request that was sent then has been answered now.
    pub(super) fn answered(&mut self, sent: Moment, now: Moment, by_leader: bool) {
        if by_leader {
            if let Some(taken_up) = self.taken_up.take() {
                self.counted_from = self.counted_from.max(taken_up);
            }
            let known = sent.before(self.length / PASSED_ON + self.length / DELAYED);
            while let Some(touch) = self
                .touches
                .front()
                .copied()
                .filter(|touch| touch.answered <= known)
            {
                self.counted_from = self.counted_from.max(touch.sent);
                self.touches.pop_front();
            }
        }
        if self
            .touches
            .back()
            .is_none_or(|last| last.sent + self.length / APART <= sent)
        {
            self.touches.push_back(Touch {
                sent,
                answered: now,
            });
        }
    }

    /// The part of its length that can be counted on: an answer proves no more at a time.
    pub(super) fn proven_length(&self) -> Duration {
        self.length - self.length / PASSED_ON
    }

    pub(super) fn counted_from(&self) -> Moment {
        self.counted_from
    }

    /// The length that the server granted.
    pub(super) fn length(&self) -> Duration {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::at(Duration::from_millis(millis))
    }

    fn deadline() -> SessionDeadline {
        SessionDeadline::new(at(1_000), Duration::from_secs(12))
    }

    #[test]
    fn an_answer_of_the_server_alone_proves_nothing() {
        let mut deadline = deadline();
        for second in 2..30 {
            deadline.answered(at(second * 1_000), at(second * 1_000 + 1), false);
        }
        assert_eq!(deadline.counted_from(), at(1_000));
    }

    /// It may have reached the server only then.
    #[test]
    fn a_request_counts_when_it_was_answered_in_time() {
        let mut deadline = deadline();
        deadline.answered(at(5_000), at(6_000), true);
        deadline.answered(at(9_000), at(9_001), true);
        assert_eq!(
            deadline.counted_from(),
            at(1_000),
            "answered too late for this one"
        );
        deadline.answered(at(9_800), at(9_801), true);
        assert_eq!(deadline.counted_from(), at(5_000));
    }

    #[test]
    fn a_heartbeat_counts_from_the_one_before() {
        let mut deadline = deadline();
        deadline.answered(at(5_000), at(5_001), true);
        assert_eq!(
            deadline.counted_from(),
            at(1_000),
            "the leader may not have heard of this one"
        );
        deadline.answered(at(9_000), at(9_001), true);
        assert_eq!(deadline.counted_from(), at(5_000));
        deadline.answered(at(9_500), at(9_501), true);
        assert_eq!(
            deadline.counted_from(),
            at(5_000),
            "too close to the one before"
        );
        deadline.answered(at(13_000), at(13_001), false);
        deadline.answered(at(17_000), at(17_001), true);
        assert_eq!(
            deadline.counted_from(),
            at(13_000),
            "the leader has heard of every request"
        );
    }

    #[test]
    fn another_connection_begins_anew() {
        let mut deadline = deadline();
        deadline.answered(at(5_000), at(5_001), false);
        deadline.connected(at(6_000), Duration::from_secs(12));
        deadline.answered(at(6_500), at(6_501), true);
        assert_eq!(deadline.counted_from(), at(6_000));
        deadline.answered(at(9_000), at(9_001), true);
        assert_eq!(
            deadline.counted_from(),
            at(6_000),
            "the server before may not have passed on what it heard"
        );
    }

    #[test]
    fn a_session_that_is_taken_up_counts_with_the_first_transaction() {
        let mut deadline = deadline();
        deadline.connected(at(6_000), Duration::from_secs(12));
        deadline.answered(at(7_000), at(7_001), false);
        assert_eq!(
            deadline.counted_from(),
            at(1_000),
            "a deposed leader takes a session up alone"
        );
        deadline.answered(at(8_000), at(8_001), true);
        assert_eq!(deadline.counted_from(), at(6_000));
        // The proof is of this connection only.
        deadline.connected(at(9_000), Duration::from_secs(12));
        deadline.connected(at(10_000), Duration::from_secs(12));
        assert_eq!(deadline.counted_from(), at(6_000));
    }

    #[test]
    fn the_session_of_another_client_proves_nothing_by_itself() {
        let mut deadline = SessionDeadline::of_other(at(5_000), Duration::from_secs(12));
        assert_eq!(deadline.counted_from(), Moment::default());
        deadline.answered(at(5_100), at(5_101), true);
        assert_eq!(deadline.counted_from(), at(5_000));
    }

    #[test]
    fn a_busy_session_keeps_few_dates() {
        let mut deadline = deadline();
        (0..100_000)
            .for_each(|millis| deadline.answered(at(1_000 + millis), at(1_001 + millis), true));
        assert!(deadline.touches.len() <= 64, "{}", deadline.touches.len());
        assert!(deadline.counted_from() >= at(96_500));
    }
}
