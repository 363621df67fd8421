//! The rate of a side in one round, as far as it is known for a side in another process.

use std::time::{Duration, Instant};

use super::round::spread;
use super::{Result, Server};
use crate::usage;

pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// CPU of this process for each, in microseconds, if it is the client.
    client: Option<f64>,
    /// CPU of the server for each, in microseconds.
    server: f64,
}

impl Rate {
    /// From the count of a loop, and its time if another process measured it.
    pub(crate) fn measure(
        server: &impl Server,
        work: impl FnOnce() -> Result<(f64, Option<Duration>)>,
    ) -> Result<Rate> {
        let (server_before, client_before, begun) = (server.cpu()?, usage::cpu(), Instant::now());
        let (count, took) = work()?;
        let (elapsed, client) = (
            took.unwrap_or_else(|| begun.elapsed()),
            usage::cpu().saturating_sub(client_before),
        );
        let served = server.cpu()?.saturating_sub(server_before);
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / count;
        let client = took.is_none().then(|| each(client));
        Ok(Rate {
            per_second: count / elapsed.as_secs_f64(),
            client,
            server: each(served),
        })
    }
}

/// Prints all figures of a side.
pub(crate) fn print(who: &str, rates: &[Rate]) {
    spread(rates, |rate| rate.per_second).print(who, "cycles/s");
    if rates.iter().all(|rate| rate.client.is_some()) {
        spread(rates, |rate| rate.client.unwrap_or(f64::NAN))
            .print(&format!("{who}, client CPU"), "µs/cycle");
    }
    spread(rates, |rate| rate.server).print(&format!("{who}, server CPU"), "µs/cycle");
}
