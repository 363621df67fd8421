//! The etcd store beside the server's limit and beside its own locks, in one run on one private
//! server.
//!
//! `ours` is the public API at the server's URL, or at `PALISADE_BENCH_URL` if that is set; `raw`
//! is a client without any lock logic, which creates a key on a lease if it is absent, and deletes
//! it. The server is compacted before each round.

mod cycle;
mod handoff;
mod hold;
mod lock;
mod proto;
mod raw;
mod server;
mod tasks;

pub(crate) use handoff::worker;

use std::process::ExitCode;
use std::time::Duration;

use server::Server;

use crate::compare::verdict::Verdicts;
use crate::compare::{Chosen, Result, our_url, report};

/// The length of a round. Every write waits for the disk, so a second has only hundreds of
/// hand-offs.
const SECONDS: f64 = 2.0;

const PARTS: [(&str, Part); 4] = [
    ("cycle", cycle::run),
    ("tasks", tasks::run),
    ("handoff", handoff::run),
    ("hold", hold::run),
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
        None => {
            eprintln!(
                "usage: palisade-bench etcd [all|cycle|tasks|handoff|hold] [SECONDS] [--rtt TIME]"
            );
            ExitCode::from(64)
        }
    }
}

fn measure(chosen: &Chosen<Part>) -> Result<Verdicts> {
    let server = Server::start(chosen.rtt)?;
    let ours = our_url(|| server.ours(), chosen.rtt)?;
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
