//! Redlock beside the servers' limit, in one run on five private servers.
//!
//! `ours` is the public API at the servers' URL, or at `PALISADE_BENCH_URL` if that is set; `raw`
//! sends the two commands of a lock to all servers at the same time and goes on with the majority,
//! without any other lock logic; `rslock` is the crate of that name.

mod cycle;
mod hung;
mod lock;
mod raw;
mod servers;

use std::process::ExitCode;
use std::time::Duration;

use servers::Servers;

use crate::compare::verdict::Verdicts;
use crate::compare::{Chosen, Result, our_url, report};

/// The length of a round.
const SECONDS: f64 = 1.5;

const PARTS: [(&str, Part); 2] = [("cycle", cycle::run), ("hung", hung::run)];

type Part = fn(&Setting, &mut Verdicts) -> Result<()>;

/// Shared by all parts.
struct Setting {
    servers: Servers,
    /// Where ours connects to.
    ours: String,
    /// How long a round lasts.
    round: Duration,
    /// The round-trip time between clients and servers, for all sides alike.
    rtt: Option<Duration>,
}

/// Runs one part, or all of them, with rounds of so many seconds.
pub(crate) fn run(words: &[&str]) -> ExitCode {
    match Chosen::by(words, &PARTS, SECONDS) {
        Some(chosen) => report(measure(&chosen)),
        None => {
            eprintln!("usage: palisade-bench redlock [all|cycle|hung] [SECONDS] [--rtt TIME]");
            ExitCode::from(64)
        }
    }
}

fn measure(chosen: &Chosen<Part>) -> Result<Verdicts> {
    let servers = Servers::start(chosen.rtt)?;
    let setting = Setting {
        ours: our_url(|| servers.our_url(), chosen.rtt)?,
        servers,
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
