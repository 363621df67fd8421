//! The ZooKeeper store beside Apache Curator and beside the server's limit, in one run on one
//! private server.
//!
//! `ours` is the public API at the server's URL, or at `PALISADE_BENCH_URL` if that is set;
//! `Curator` is its `InterProcessMutex` in a Java that has been warmed up; `raw` is a client
//! without any lock logic, which creates an ephemeral node and deletes it: ZooKeeper's own in such
//! a Java, or a bare one of ours, which is faster. The server runs as in production, and has been
//! warmed up, too.

mod cycle;
mod handoff;
mod own_thread;
mod server;
mod tasks;

pub(crate) use handoff::worker;

use std::process::ExitCode;
use std::time::Duration;

use server::Server;

use crate::compare::java::Java;
use crate::compare::verdict::Verdicts;
use crate::compare::{Chosen, Result, our_url, report};

/// The length of a round. Every write waits for the disk, so a second has only hundreds of
/// hand-offs.
const SECONDS: f64 = 2.0;

/// As Curator's sessions here.
const LEASE: Duration = Duration::from_secs(10);

const PARTS: [(&str, Part); 3] = [
    ("cycle", cycle::run),
    ("tasks", tasks::run),
    ("handoff", handoff::run),
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

/// Runs one part, or all of them, with rounds of so many seconds.
pub(crate) fn run(words: &[&str]) -> ExitCode {
    match Chosen::by(words, &PARTS, SECONDS) {
        Some(chosen) => report(measure(&chosen)),
        None => {
            eprintln!(
                "usage: palisade-bench zookeeper [all|cycle|tasks|handoff] [SECONDS] [--rtt TIME]"
            );
            ExitCode::from(64)
        }
    }
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

/// Curator's mutex, which does this for a while first.
fn curator(url: &str, warm: &str) -> Result<Java> {
    Java::start("zookeeper-java", ["curator-mutex", url], warm)
}

/// What makes nodes and deletes them, without any lock.
fn bare(url: &str, warm: &str) -> Result<Java> {
    Java::start("zookeeper-java", ["bare", url], warm)
}
