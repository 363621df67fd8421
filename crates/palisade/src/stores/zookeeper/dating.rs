//! From when a session's time counts, by our clock: what an answer proves.
//!
//! The leader ends sessions, and it hears of their requests only through the server that the client is connected to, which tells it
//! every half tick whose sessions it has heard of. So an answer of that server alone proves nothing: cut off from the leader, it goes
//! on answering. What comes back from the leader proves that the two were connected, in order, up to then: the leader has
//! heard of every request that the server had passed on before. A session lasts at least two ticks, so a quarter of it, and a
//! little for the server's own delays, is enough for that. It counts from the answer: only by then the server surely had the request.
//!
//! The first answer of a connection is another matter: for it the leader itself was asked, and it counted from then.

use std::collections::VecDeque;
use std::time::Duration;

use crate::lease::Moment;

/// As a part of the session: by when the leader has heard of a request.
pub(super) const PASSED_ON: u32 = 4;
/// As a part of the session: how much longer that may take.
const DELAYED: u32 = 16;
/// As a part of the session: requests that are closer together count as one.
const APART: u32 = 64;

#[derive(Debug)]
pub(super) struct Dating {
    length: Duration,
    counted_from: Moment,
    /// The requests of this connection that have been answered, from the earliest on.
    touches: VecDeque<Touch>,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: Moment,
    answered: Moment,
}

impl Dating {
    pub(super) fn new(sent: Moment, length: Duration) -> Dating {
        Dating { length, counted_from: sent, touches: VecDeque::new() }
    }

    /// The session was taken up by another connection, which asked the leader.
    pub(super) fn connected(&mut self, sent: Moment, length: Duration) {
        self.length = length;
        self.counted_from = self.counted_from.max(sent);
        // What the server before has heard, it may never have passed on.
        self.touches.clear();
    }

    /// A request that was sent then has been answered now.
    pub(super) fn answered(&mut self, sent: Moment, now: Moment, by_leader: bool) {
        if by_leader {
            let known = sent.before(self.length / PASSED_ON + self.length / DELAYED);
            while let Some(touch) = self.touches.front().copied().filter(|touch| touch.answered <= known) {
                self.counted_from = self.counted_from.max(touch.sent);
                self.touches.pop_front();
            }
        }
        if self.touches.back().is_none_or(|last| last.sent + self.length / APART <= sent) {
            self.touches.push_back(Touch { sent, answered: now });
        }
    }

    pub(super) fn counted_from(&self) -> Moment {
        self.counted_from
    }

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

    fn dating() -> Dating {
        Dating::new(at(1_000), Duration::from_secs(12))
    }

    #[test]
    fn an_answer_of_the_server_alone_proves_nothing() {
        let mut dating = dating();
        for second in 2..30 {
            dating.answered(at(second * 1_000), at(second * 1_000 + 1), false);
        }
        assert_eq!(dating.counted_from(), at(1_000));
    }

    /// It may have reached the server only then.
    #[test]
    fn a_request_counts_when_it_was_answered_in_time() {
        let mut dating = dating();
        dating.answered(at(5_000), at(6_000), true);
        dating.answered(at(9_000), at(9_001), true);
        assert_eq!(dating.counted_from(), at(1_000), "answered too late for this one");
        dating.answered(at(9_800), at(9_801), true);
        assert_eq!(dating.counted_from(), at(5_000));
    }

    #[test]
    fn a_heartbeat_counts_from_the_one_before() {
        let mut dating = dating();
        dating.answered(at(5_000), at(5_001), true);
        assert_eq!(dating.counted_from(), at(1_000), "the leader may not have heard of this one");
        dating.answered(at(9_000), at(9_001), true);
        assert_eq!(dating.counted_from(), at(5_000));
        dating.answered(at(9_500), at(9_501), true);
        assert_eq!(dating.counted_from(), at(5_000), "too close to the one before");
        dating.answered(at(13_000), at(13_001), false);
        dating.answered(at(17_000), at(17_001), true);
        assert_eq!(dating.counted_from(), at(13_000), "the leader has heard of every request");
    }

    #[test]
    fn another_connection_begins_anew() {
        let mut dating = dating();
        dating.answered(at(5_000), at(5_001), false);
        dating.connected(at(6_000), Duration::from_secs(12));
        assert_eq!(dating.counted_from(), at(6_000));
        dating.answered(at(12_000), at(12_001), true);
        assert_eq!(dating.counted_from(), at(6_000));
    }

    #[test]
    fn a_busy_session_keeps_few_dates() {
        let mut dating = dating();
        (0..100_000).for_each(|millis| dating.answered(at(1_000 + millis), at(1_001 + millis), true));
        assert!(dating.touches.len() <= 64, "{}", dating.touches.len());
        assert!(dating.counted_from() >= at(96_500));
    }
}
