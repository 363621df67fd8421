//! Pauses between attempts to reach a server: each longer than the one before, and at random, so
//! that many clients do not come back in step.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            longest,
            next: first,
        }
    }

    /// # Cancel safety
    ///
    /// Dropped half-way, the next pause is longer all the same.
    pub(crate) async fn pause(&mut self) {
        let pause = self.next.mul_f64(0.5 + 0.5 * fastrand::f64());
        self.next = (self.next * 2).min(self.longest);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for longest in [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis) {
            let begun = tokio::time::Instant::now();
            backoff.pause().await;
            let took = begun.elapsed();
            assert!(
                took >= longest / 2 && took <= longest + Duration::from_millis(1),
                "{took:?} of {longest:?}"
            );
        }
    }
}
