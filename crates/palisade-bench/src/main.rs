//! Palisade beside the raw limit, in one run. One figure per line: what, value, unit.
//!
//! `palisade-bench overhead` — what every store pays: acquire and release on `memory:` through the
//! public API. `palisade-bench sqlite` — the embedded store beside raw SQLite, between processes.
//! `palisade-bench redis [all|cycle|tasks|handoff|hold|cli|redisson] [SECONDS]` — the Redis store beside
//! what a private server can do, and beside Redisson. `palisade-bench redlock [all|cycle|hung] [SECONDS]` — Redlock beside
//! what five private servers can do, and beside rslock. `palisade-bench etcd [all|cycle|tasks|handoff|hold] [SECONDS]` —
//! the etcd store beside what a private server can do, and beside others. `palisade-bench zookeeper
//! [all|cycle|tasks|handoff] [SECONDS]` — the ZooKeeper store beside Apache Curator, on a private
//! server. `palisade-bench postgres|mysql [all|cycle|tasks|handoff|names] [SECONDS]` — the stores in
//! SQL beside plain statements, on a private server. With `--rtt TIME` behind them, a relay between
//! all clients and the server takes so long there and back: `redis --rtt 200us`. `palisade-bench
//! cli [URL]` — what a run under a lock costs beside the bare command. `palisade-bench hold [GUARDS]
//! [SECONDS]` — many guards held by one client: losses, CPU and memory.

mod cli;
mod compare;
mod etcd;
mod hold;
mod overhead;
mod redis;
mod redlock;
mod sql;
mod sqlite;
mod usage;
mod zookeeper;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str, default| text.parse().unwrap_or(default);
    match words.as_slice() {
        ["overhead"] => overhead::run(),
        ["cli"] => cli::run(None),
        ["cli", url] => cli::run(Some(url)),
        ["sqlite"] => sqlite::run(),
        ["worker", words @ ..] => sqlite::worker(words),
        ["redis", words @ ..] => redis::run(words),
        ["redis-worker", words @ ..] => redis::worker(words),
        ["redlock", words @ ..] => redlock::run(words),
        ["etcd", words @ ..] => etcd::run(words),
        ["etcd-worker", words @ ..] => etcd::worker(words),
        ["zookeeper", words @ ..] => zookeeper::run(words),
        ["zookeeper-worker", words @ ..] => zookeeper::worker(words),
        ["postgres", words @ ..] => sql::run(sql::POSTGRES, words),
        ["mysql", words @ ..] => sql::run(sql::MYSQL, words),
        ["postgres-session", words @ ..] => sql::run(sql::POSTGRES_SESSION, words),
        ["mysql-session", words @ ..] => sql::run(sql::MYSQL_SESSION, words),
        ["sql-worker", words @ ..] => sql::worker(words),
        ["relay", words @ ..] => compare::network::relay(words),
        ["hold"] => hold::run(10_000, 60),
        ["hold", guards] => hold::run(number(guards, 10_000), 60),
        ["hold", guards, seconds] => hold::run(number(guards, 10_000), number(seconds, 60)),
        _ => {
            eprintln!(
                "usage: palisade-bench overhead | sqlite | redis|redlock|etcd|zookeeper|postgres|mysql [PART] [SECONDS] [--rtt TIME] | postgres-session|mysql-session [cycle|handoff] [SECONDS] [--rtt TIME] | cli [URL] | hold [GUARDS] [SECONDS]"
            );
            ExitCode::from(64)
        }
    }
}

/// Prints one figure.
fn figure(what: &str, value: f64, unit: &str) {
    println!("{what:<52} {value:>12.3} {unit}");
}
