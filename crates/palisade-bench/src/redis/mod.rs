//! The Redis store beside the server's limit, in one run on one private server.
//!
//! `ours` is the public API at the server's URL, or at `PALISADE_BENCH_URL` if that is set; `raw`
//! is a fast client without any lock logic; `floor` is the least that a lock with a fence can do in
//! one script for each verb. With `format=redisson`, ours is beside Redisson itself.

mod cli;
mod cycle;
mod floor;
mod handoff;
mod hold;
pub(crate) mod lock;
pub(crate) mod raw;
mod redisson;
pub(crate) mod server;
mod tasks;

pub(crate) use handoff::worker;

use std::process::ExitCode;
use std::time::Duration;

use server::Server;
use verdict::Verdicts;

use crate::compare::{Chosen, Result, our_url, report, round, spread, verdict};

/// The length of a round: thousands of hand-offs, and short enough that both sides see the same
/// machine.
const SECONDS: f64 = 1.5;

const PARTS: [(&str, Part); 6] = [
    ("cycle", cycle::run),
    ("tasks", tasks::run),
    ("handoff", handoff::run),
    ("hold", hold::run),
    ("cli", cli::run),
    ("redisson", redisson::run),
];

type Part = fn(&Setting, &mut Verdicts) -> Result<()>;

/// Shared by all parts.
struct Setting {
    server: Server,
    /// Where ours connects to.
    ours: String,
    /// How long a round lasts.
    round: Duration,
    /// The round-trip time between clients and server, for all sides alike.
    rtt: Option<Duration>,
}

/// Runs one part, or all of them, with rounds of so many seconds. The `hold` part takes ten times
/// as long.
pub(crate) fn run(words: &[&str]) -> ExitCode {
    match Chosen::by(words, &PARTS, SECONDS) {
        Some(chosen) => report(measure(&chosen)),
        None => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: palisade-bench redis [all|cycle|tasks|handoff|hold|cli|redisson] [SECONDS] [--rtt TIME]"
    );
    ExitCode::from(64)
}

fn measure(chosen: &Chosen<Part>) -> Result<Verdicts> {
    let server = Server::start(chosen.rtt)?;
    let ours = our_url(|| server.url().to_owned(), chosen.rtt)?;
    let setting = Setting {
        server,
        ours,
        round: chosen.round,
        rtt: chosen.rtt,
    };
    let mut verdicts = Verdicts::default();
    for (name, part) in &chosen.parts {
        println!("== {name}");
        part(&setting, &mut verdicts).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(verdicts)
}
