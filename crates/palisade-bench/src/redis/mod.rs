//! The Redis store beside what the server can do at the most, in one run on one private server.
//!
//! `ours` is the public API at the server's URL, or at `PALISADE_BENCH_URL` if that is set; `raw` is a fast client without any
//! lock logic; `floor` is the least that a lock with a fence can do in one script for each verb. They take turns in short rounds, so
//! that whatever else the machine does hits all. Every figure is the median of
//! the rounds with the least and the greatest; a ratio is the median of the rounds' own ratios.

mod cli;
mod cycle;
mod floor;
mod handoff;
mod hold;
mod lock;
mod raw;
mod round;
mod server;
mod spread;
mod tasks;
mod verdict;
mod way;

pub(crate) use handoff::worker;

use std::process::ExitCode;
use std::time::Duration;

use server::Server;
use verdict::Verdicts;

/// What goes wrong ends the run with its message.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Of each side.
const ROUNDS: usize = 5;

/// Of a round. Long enough for thousands of hand-offs, short enough that both sides see the same machine.
const SECONDS: f64 = 1.5;

const PARTS: [(&str, Part); 5] =
    [("cycle", cycle::run), ("tasks", tasks::run), ("handoff", handoff::run), ("hold", hold::run), ("cli", cli::run)];

type Part = fn(&Setting, &mut Verdicts) -> Result<()>;

/// What all parts share.
struct Setting {
    server: Server,
    /// Where ours connects to.
    ours: String,
    /// How long a round lasts.
    round: Duration,
}

/// Runs one part, or all of them, with rounds of so many seconds; what is held is held for ten times as long.
pub(crate) fn run(words: &[&str]) -> ExitCode {
    let (part, seconds) = match words {
        [] => ("all", None),
        [part] => (*part, None),
        [part, seconds] => (*part, Some(*seconds)),
        _ => return usage(),
    };
    let parts: Vec<(&str, Part)> = PARTS.into_iter().filter(|(name, _)| part == "all" || part == *name).collect();
    let seconds = seconds.map_or(Ok(SECONDS), str::parse);
    match seconds.map(Duration::try_from_secs_f64) {
        Ok(Ok(round)) if !parts.is_empty() && !round.is_zero() => report(measure(&parts, round)),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: palisade-bench redis [all|cycle|tasks|handoff|hold|cli] [SECONDS]");
    ExitCode::from(64)
}

fn measure(parts: &[(&str, Part)], round: Duration) -> Result<Verdicts> {
    let server = Server::start()?;
    let ours = std::env::var("PALISADE_BENCH_URL").unwrap_or_else(|_| server.url().to_owned());
    let setting = Setting { server, ours, round };
    let mut verdicts = Verdicts::default();
    for (name, part) in parts {
        println!("== {name}");
        part(&setting, &mut verdicts).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(verdicts)
}

/// A miss is no failure: how fast a machine is on a given day is for the reader to judge. A lost lock is one.
fn report(measured: Result<Verdicts>) -> ExitCode {
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
