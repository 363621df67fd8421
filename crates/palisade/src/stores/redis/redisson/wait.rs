//! Waits on the channels of Redisson.

use std::time::Duration;

use super::super::backend::Backend;
use super::super::channels::Waiters;
use super::super::client::SHARD_MOVED;
use super::keys::LOCK_CHANNELS;

/// A lock may become free, or its lease shorter, without a message: waiters ask again after this
/// time at the latest.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// A dead waiter at the head of a queue must not make the others spin.
const SHORTEST_SLEEP: Duration = Duration::from_millis(50);

/// After how long to ask again for a lock that time alone frees in so many ms: below zero, where it
/// does not say.
pub(super) fn ask_in(millis: i64) -> Duration {
    u64::try_from(millis)
        .map_or(LONGEST_SLEEP, Duration::from_millis)
        .clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
}

/// A message on one of the channels.
pub(in crate::stores::redis) fn announced(backend: &Backend, channel: &[u8], payload: &[u8]) {
    if payload == SHARD_MOVED {
        backend.channels.ended(channel, backend);
    } else {
        let one_can_hold = channel.starts_with(LOCK_CHANNELS) && payload == b"0";
        let waiters = match one_can_hold {
            true => Waiters::One,
            false => Waiters::All,
        };
        backend.channels.announced(channel, waiters, backend);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_waiter_spins_or_sleeps_for_long() {
        assert_eq!(ask_in(-1), LONGEST_SLEEP, "a lock without an end");
        assert_eq!(ask_in(30_000), LONGEST_SLEEP);
        assert_eq!(ask_in(0), SHORTEST_SLEEP);
        assert_eq!(ask_in(300), Duration::from_millis(300));
    }
}
