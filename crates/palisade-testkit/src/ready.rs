//! Waiting for a condition, never for a time.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Failure, OrPanic, Result};

/// How long a server may take to get ready. Far more than any needs, for machines with much else to
/// do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again until `ask` has an answer, and returns that.
///
/// # Panics
///
/// With the last reason of `ask`, when `limit` is over.
#[track_caller]
pub fn eventually<T>(what: &str, limit: Duration, ask: impl FnMut() -> Result<T, String>) -> T {
    within(what, limit, ask).or_panic()
}

pub(crate) fn within<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> Result<T, String>,
) -> Result<T> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(2);
    loop {
        match ask() {
            Ok(value) => return Ok(value),
            Err(why) if Instant::now() >= end => {
                return Err(Failure::new(format!("{what}: not within {limit:?}: {why}")));
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reason_is_told() {
        let mut asked = 0;
        let failure = within(
            "a cat",
            Duration::from_millis(20),
            || -> Result<(), String> {
                asked += 1;
                Err(format!("asked {asked} times"))
            },
        )
        .unwrap_err();
        assert_eq!(
            failure.to_string(),
            format!("a cat: not within 20ms: asked {asked} times")
        );
        assert!(asked > 1, "asked once only");
    }
}
