//! The stores in SQL beside plain statements, in one run on one private server.
//!
//! `ours` is the public API at the server's URL, or at `PALISADE_BENCH_URL` if that is set; `raw` is
//! the plain lock table: a row that is inserted if it is absent, and deleted by name and owner.
//! Where the name is taken, raw tries again every millisecond: the poller. Its statements are
//! prepared, and every commit is durable, on both sides.

mod cycle;
mod handoff;
mod lock;
mod raw;
mod server;
mod tasks;

pub(crate) use handoff::worker;

use std::process::ExitCode;
use std::time::Duration;

use server::Server;

use crate::compare::verdict::Verdicts;
use crate::compare::{Chosen, Result, our_url, report};

/// The length of a round. Every commit waits for the disk, so a second has only hundreds of
/// hand-offs.
const SECONDS: f64 = 2.0;

const SESSION: &str = "session";

/// Those of session locks: neither side has a table.
const SESSION_PARTS: [(&str, Part); 2] = [("cycle", cycle::run), ("handoff", handoff::run)];

const PARTS: [(&str, Part); 4] = [
    ("cycle", cycle::run),
    ("tasks", tasks::run),
    ("handoff", handoff::run),
    ("names", tasks::run_contended),
];

type Part = fn(&Setting, &mut Verdicts) -> Result<()>;

/// A database that has a store, and how fast that must be beside raw.
#[derive(Clone, Copy)]
pub(crate) struct Database {
    /// The word of the command.
    pub(crate) name: &'static str,
    /// The scheme of its URL.
    scheme: &'static str,
    /// The format of ours. Raw locks in the same way: `session` has no table.
    format: &'static str,
    cycle: f64,
    tasks: f64,
    handoff: f64,
    names: f64,
}

pub(crate) const POSTGRES: Database = Database {
    name: "postgres",
    scheme: "postgres",
    format: "table",
    cycle: 0.8,
    tasks: 0.9,
    handoff: 1.5,
    names: 0.8,
};

pub(crate) const MYSQL: Database = Database {
    name: "mysql",
    scheme: "mysql",
    format: "table",
    cycle: 0.6,
    tasks: 0.5,
    handoff: 1.3,
    names: 0.5,
};

/// The database's own session locks: no statement waits for the disk.
pub(crate) const POSTGRES_SESSION: Database = Database {
    name: "postgres-session",
    format: SESSION,
    cycle: 0.9,
    handoff: 0.8,
    ..POSTGRES
};

pub(crate) const MYSQL_SESSION: Database = Database {
    name: "mysql-session",
    format: SESSION,
    cycle: 0.9,
    handoff: 0.8,
    ..MYSQL
};

/// Shared by all parts.
struct Setting {
    database: Database,
    server: Server,
    /// Where ours connects to.
    ours: String,
    /// How long a round lasts.
    round: Duration,
    /// The round-trip time between clients and server, for all sides alike.
    rtt: Option<Duration>,
}

/// Runs one part, or all of them, with rounds of so many seconds.
pub(crate) fn run(database: Database, words: &[&str]) -> ExitCode {
    let parts: &[(&'static str, Part)] = if database.format == SESSION {
        &SESSION_PARTS
    } else {
        &PARTS
    };
    match Chosen::by(words, parts, SECONDS) {
        Some(chosen) => report(measure(database, &chosen)),
        None => {
            eprintln!(
                "usage: palisade-bench {} [all|cycle|tasks|handoff|names] [SECONDS] [--rtt TIME]",
                database.name
            );
            ExitCode::from(64)
        }
    }
}

fn measure(database: Database, chosen: &Chosen<Part>) -> Result<Verdicts> {
    let server = Server::start(database, chosen.rtt)?;
    // Sixteen processes log in at once.
    let ours = || format!("{}&connect_timeout=10s", server.url());
    let ours = our_url(ours, chosen.rtt)?;
    let setting = Setting {
        database,
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
