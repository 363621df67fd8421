//! How fast a side was in one round, as far as it can be said of a side in another process.

use std::time::{Duration, Instant};

use crate::compare::round::spread;
use crate::compare::{Result, Server};

pub(super) struct Pace {
    pub(super) per_second: f64,
    /// CPU of the server for each, in microseconds.
    server: f64,
}

impl Pace {
    /// Of something that says how often it was done, and how long that took if it was not all the time.
    pub(super) fn measure(server: &impl Server, work: impl FnOnce() -> Result<(f64, Option<Duration>)>) -> Result<Pace> {
        let (before, begun) = (server.cpu()?, Instant::now());
        let (count, took) = work()?;
        let elapsed = took.unwrap_or_else(|| begun.elapsed());
        let served = server.cpu()?.saturating_sub(before);
        Ok(Pace { per_second: count / elapsed.as_secs_f64(), server: served.as_secs_f64() * 1e6 / count })
    }
}

/// Prints all figures of a side.
pub(super) fn print(who: &str, paces: &[Pace]) {
    spread(paces, |pace| pace.per_second).print(who, "cycles/s");
    spread(paces, |pace| pace.server).print(&format!("{who}, server CPU"), "µs/cycle");
}
