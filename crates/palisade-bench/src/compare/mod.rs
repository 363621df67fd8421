//! Shared by all comparisons: interleaved short rounds, contending processes, and the targets.
//!
//! Turns are short, so that other work on the machine hits all sides. Every figure is the median of
//! the rounds with the least and the greatest; a ratio is the median of the rounds' own ratios.

pub(crate) mod caller_kind;
pub(crate) mod contest;
pub(crate) mod cpu_pinning;
pub(crate) mod interleaved;
pub(crate) mod java;
pub(crate) mod network;
pub(crate) mod ours;
mod owner_changes;
pub(crate) mod rate;
pub(crate) mod round;
pub(crate) mod spread;
pub(crate) mod verdict;
pub(crate) mod worker;

use std::panic::{UnwindSafe, catch_unwind, set_hook, take_hook};
use std::process::ExitCode;
use std::time::Duration;

use verdict::Verdicts;

/// An error ends the run with its message.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Of each side.
pub(crate) const ROUNDS: usize = 5;

/// The private server that all sides use.
pub(crate) trait Server {
    /// Its process.
    fn pid(&self) -> u32;

    /// Its processes, where it is several.
    fn pids(&self) -> Vec<u32> {
        vec![self.pid()]
    }

    /// CPU time that it has used so far.
    fn cpu(&self) -> Result<Duration>;

    /// Its other counters so far; none by default.
    fn counted(&self) -> Result<Vec<f64>> {
        Ok(Vec::new())
    }
}

/// The testkit panics when it cannot start a server, which suits tests. Here its words are enough.
pub(crate) fn start_quietly<S>(start: impl FnOnce() -> S + UnwindSafe) -> Result<S> {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let started = catch_unwind(start);
    set_hook(hook);
    started.map_err(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        said.unwrap_or("the server did not start").to_owned().into()
    })
}

/// The parsed words of a command.
#[derive(Debug)]
pub(crate) struct Chosen<'a, P> {
    pub(crate) parts: Vec<(&'a str, P)>,
    /// How long a round lasts.
    pub(crate) round: Duration,
    /// The round-trip time of a network between the clients and the server, if any.
    pub(crate) rtt: Option<Duration>,
}

impl<'a, P: Copy> Chosen<'a, P> {
    /// `None` when the words mean nothing. With a network in between only the first part is
    /// measured, unless another is named: the targets of the others are for a direct connection.
    pub(crate) fn by(
        words: &[&str],
        parts: &[(&'a str, P)],
        seconds: f64,
    ) -> Option<Chosen<'a, P>> {
        let (words, rtt) = match words {
            [words @ .., "--rtt", rtt] => (
                words,
                Some(
                    palisade::parse_duration(rtt)
                        .ok()
                        .filter(|rtt| !rtt.is_zero())?,
                ),
            ),
            words => (words, None),
        };
        let (part, seconds) = match words {
            [] if rtt.is_some() => (parts.first()?.0, seconds),
            [] => ("all", seconds),
            [part] => (*part, seconds),
            [part, seconds] => (*part, seconds.parse().ok()?),
            _ => return None,
        };
        let round = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|round| !round.is_zero())?;
        let parts: Vec<(&str, P)> = parts
            .iter()
            .copied()
            .filter(|(name, _)| part == "all" || part == *name)
            .collect();
        (!parts.is_empty()).then_some(Chosen { parts, round, rtt })
    }
}

/// Our URL: the server's, or that of `PALISADE_BENCH_URL`, which has no relay in front.
pub(crate) fn our_url(server: impl FnOnce() -> String, rtt: Option<Duration>) -> Result<String> {
    match (std::env::var("PALISADE_BENCH_URL"), rtt) {
        (Ok(_), Some(_)) => Err("PALISADE_BENCH_URL and --rtt exclude each other".into()),
        (Ok(url), None) => Ok(url),
        (Err(_), _) => Ok(server()),
    }
}

/// A missed target is no failure: the reader judges the speed of the machine. A lost lock is one.
pub(crate) fn report(measured: Result<Verdicts>) -> ExitCode {
    match measured {
        Ok(verdicts) => {
            verdicts.print();
            if verdicts.are_sound() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("palisade-bench: {error}");
            ExitCode::from(69)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_parts_rounds_and_a_network() {
        let parts = [("cycle", 1), ("tasks", 2)];
        let chosen = |words: &[&str]| {
            let chosen = Chosen::by(words, &parts, 2.0)?;
            let parts: Vec<i32> = chosen.parts.iter().map(|(_, part)| *part).collect();
            Some((
                parts,
                chosen.round.as_millis(),
                chosen.rtt.map(|rtt| rtt.as_micros()),
            ))
        };
        assert_eq!(chosen(&[]), Some((vec![1, 2], 2000, None)));
        assert_eq!(chosen(&["tasks", "0.5"]), Some((vec![2], 500, None)));
        assert_eq!(
            chosen(&["--rtt", "200us"]),
            Some((vec![1], 2000, Some(200)))
        );
        assert_eq!(
            chosen(&["all", "1", "--rtt", "1ms"]),
            Some((vec![1, 2], 1000, Some(1000)))
        );
        for words in [
            &["other"][..],
            &["cycle", "0"],
            &["--rtt"],
            &["--rtt", "soon"],
            &["--rtt", "0s"],
            &["cycle", "1", "2"],
        ] {
            assert_eq!(chosen(words), None, "{words:?}");
        }
    }
}
