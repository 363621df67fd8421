//! What all comparisons share: sides that take turns in short rounds, processes that contend, and what was wanted.
//!
//! Turns are short, so that whatever else the machine does hits all sides. Every figure is the median of the rounds with the
//! least and the greatest; a ratio is the median of the rounds' own ratios.

pub(crate) mod apart;
pub(crate) mod contest;
mod order;
pub(crate) mod round;
pub(crate) mod spread;
pub(crate) mod turns;
pub(crate) mod verdict;
pub(crate) mod way;
pub(crate) mod worker;

use std::panic::{UnwindSafe, catch_unwind, set_hook, take_hook};
use std::process::ExitCode;
use std::time::Duration;

use verdict::Verdicts;

/// What goes wrong ends the run with its message.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Of each side.
pub(crate) const ROUNDS: usize = 5;

/// The private server that all sides use.
pub(crate) trait Server {
    /// Its process.
    fn pid(&self) -> u32;

    /// CPU time that it has used so far.
    fn cpu(&self) -> Result<Duration>;

    /// What else it counts, so far; nothing, unless it says so.
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
        let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        said.unwrap_or("the server did not start").to_owned().into()
    })
}

/// The parts that are meant by the words of the command, and how long a round lasts. `None` when they mean nothing.
pub(crate) fn chosen<'a, P: Copy>(words: &[&str], parts: &[(&'a str, P)], seconds: f64) -> Option<(Vec<(&'a str, P)>, Duration)> {
    let (part, seconds) = match words {
        [] => ("all", seconds),
        [part] => (*part, seconds),
        [part, seconds] => (*part, seconds.parse().ok()?),
        _ => return None,
    };
    let round = Duration::try_from_secs_f64(seconds).ok().filter(|round| !round.is_zero())?;
    let parts: Vec<(&str, P)> = parts.iter().copied().filter(|(name, _)| part == "all" || part == *name).collect();
    (!parts.is_empty()).then_some((parts, round))
}

/// A miss is no failure: how fast a machine is on a given day is for the reader to judge. A lost lock is one.
pub(crate) fn report(measured: Result<Verdicts>) -> ExitCode {
    match measured {
        Ok(verdicts) => {
            verdicts.print();
            if verdicts.are_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("palisade-bench: {error}");
            ExitCode::from(69)
        }
    }
}
