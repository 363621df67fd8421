//! Rounds: both sides in turns, and the result of each turn.

use std::time::{Duration, Instant};

use super::spread::Spread;
use super::{ROUNDS, Result, Server};
use crate::usage;

/// The result of one side in one round. Times are in microseconds.
pub(crate) struct Round {
    pub(crate) per_second: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// CPU of the client for each cycle.
    pub(crate) client: f64,
    /// CPU of the server for each cycle.
    pub(crate) server: f64,
}

impl Round {
    /// From the length of each cycle, and of all together.
    pub(crate) fn new(
        mut times: Vec<Duration>,
        elapsed: Duration,
        client: Duration,
        server: Duration,
    ) -> Round {
        times.sort();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let at = |share: usize| {
            times
                .get(times.len() * share / 100)
                .copied()
                .map_or(f64::NAN, micros)
        };
        let count = times.len() as f64;
        Round {
            per_second: count / elapsed.as_secs_f64(),
            p50: at(50),
            p99: at(99),
            client: micros(client) / count,
            server: micros(server) / count,
        }
    }

    /// Runs cycles in this process, which must do nothing else meanwhile.
    pub(crate) fn measure(
        server: &impl Server,
        cycles: impl FnOnce() -> Result<Vec<Duration>>,
    ) -> Result<Round> {
        let server_before = server.cpu()?;
        let (client_before, begun) = (usage::cpu(), Instant::now());
        let times = cycles()?;
        let (elapsed, client) = (begun.elapsed(), usage::cpu().saturating_sub(client_before));
        Ok(Round::new(
            times,
            elapsed,
            client,
            server.cpu()?.saturating_sub(server_before),
        ))
    }
}

/// Gives every side its turns, in a loop, and collects the rounds of each.
pub(crate) fn take_turns<S, R, const N: usize>(
    sides: &[S; N],
    mut round: impl FnMut(&S) -> Result<R>,
) -> Result<[Vec<R>; N]> {
    let mut rounds = std::array::from_fn(|_| Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        for (side, rounds) in sides.iter().zip(&mut rounds) {
            rounds.push(round(side)?);
        }
    }
    Ok(rounds)
}

/// One figure of all rounds.
pub(crate) fn spread<R>(rounds: &[R], figure: impl Fn(&R) -> f64) -> Spread {
    Spread::of(rounds.iter().map(figure))
}

/// The ratio of two sides in one figure, round by round.
pub(crate) fn ratio<R>(of: &[R], to: &[R], figure: impl Fn(&R) -> f64) -> Spread {
    Spread::of(of.iter().zip(to).map(|(of, to)| figure(of) / figure(to)))
}

/// Prints all figures of a side.
pub(crate) fn print(who: &str, rounds: &[Round], cycle: &str) {
    spread(rounds, |round| round.per_second).print(who, &format!("{cycle}s/s"));
    spread(rounds, |round| round.p50).print(&format!("{who}, p50"), "µs");
    spread(rounds, |round| round.p99).print(&format!("{who}, p99"), "µs");
    spread(rounds, |round| round.client)
        .print(&format!("{who}, client CPU"), &format!("µs/{cycle}"));
    spread(rounds, |round| round.server)
        .print(&format!("{who}, server CPU"), &format!("µs/{cycle}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns() {
        let mut seen = String::new();
        let rounds = take_turns(&['a', 'b'], |side| {
            seen.push(*side);
            Ok(seen.len())
        })
        .expect("no side fails");
        assert_eq!(seen, "ababababab");
        assert_eq!(rounds, [vec![1, 3, 5, 7, 9], vec![2, 4, 6, 8, 10]]);
    }

    #[test]
    fn a_round_is_counted_per_cycle() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let round = Round::new(
            times,
            Duration::from_secs(2),
            Duration::from_millis(2),
            Duration::from_millis(1),
        );
        assert_eq!(
            (
                round.per_second,
                round.p50,
                round.p99,
                round.client,
                round.server
            ),
            (100.0, 101.0, 199.0, 10.0, 5.0)
        );
    }
}
