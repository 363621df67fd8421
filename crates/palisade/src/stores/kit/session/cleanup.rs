//! Deletions that must not be lost.
//!
//! A session lives by its other claims. So an entry whose deletion did not arrive would stay for as
//! long as the client holds anything, and keep all others out: the deletion is repeated until the
//! store has answered it.

use std::time::Duration;

use crate::stores::backoff::Backoff;

/// Between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The store has answered, or there is nothing to do any more.
    Done,
    /// The answer is not known: try again.
    Again,
}

/// Repeats an attempt until it is done.
pub(crate) async fn until_done<F: Future<Output = Attempt>>(mut attempt: impl FnMut() -> F) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while attempt().await == Attempt::Again {
        backoff.pause().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_attempt_is_repeated_at_a_slower_and_slower_pace() {
        let (begun, mut attempts) = (tokio::time::Instant::now(), 0);
        until_done(|| {
            attempts += 1;
            std::future::ready(if attempts < 10 {
                Attempt::Again
            } else {
                Attempt::Done
            })
        })
        .await;
        let took = begun.elapsed();
        assert!(
            attempts == 10 && took > Duration::from_secs(2) && took < Duration::from_secs(8),
            "{attempts} in {took:?}"
        );
    }
}
