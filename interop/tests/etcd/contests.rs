//! All programs contend at once.

use std::io::Write;
use std::time::Duration;

use palisade_interop::etcd::Library;
use palisade_interop::{Contest, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use crate::{PATIENCE, contestants, ours};

/// What every participant must reach, per second of a contest. Far less than any has on a busy
/// machine, and more than nothing.
const LEAST_PER_SECOND: f64 = 0.3;

/// `PALISADE_INTEROP_SECONDS` changes how long the contest of all takes.
fn seconds() -> u64 {
    match std::env::var("PALISADE_INTEROP_SECONDS") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("PALISADE_INTEROP_SECONDS={text} is no number of seconds")),
        Err(_) => 10,
    }
}

#[test]
fn all_together() -> Result<(), Fault> {
    let [go, holds, runs] = Library::PEERS;
    contest(
        "all together",
        &[ours(), ours(), ours(), go, go, holds, runs],
        seconds(),
    )
}

/// Without ours: a failure here is one of the drivers, or of a peer.
#[test]
fn the_peers_alone() -> Result<(), Fault> {
    contest("the peers alone", &Library::PEERS, 3)
}

/// A participant without a place in line gets the lock only when the line is empty: seldom, and
/// never beside another.
#[test]
fn plain_beside_the_line() -> Result<(), Fault> {
    let outcome = play(
        &[Library::OurPlain, Library::OurPlain, ours(), Library::Go],
        3,
    )?;
    show("plain beside the line", &outcome);
    assert!(outcome.violations.is_empty(), "{outcome}");
    Ok(())
}

pub(crate) fn pair(ours: Library, peer: Library) -> Result<(), Fault> {
    contest(
        &format!("{} and {}", ours.name(), peer.name()),
        &[ours, peer],
        3,
    )
}

fn contest(title: &str, libraries: &[Library], seconds: u64) -> Result<(), Fault> {
    let outcome = play(libraries, seconds)?;
    show(title, &outcome);
    outcome.assert_fair((seconds as f64 * LEAST_PER_SECOND).ceil() as u64);
    Ok(())
}

fn play(libraries: &[Library], seconds: u64) -> Result<Outcome, Fault> {
    let redis = Redis::start();
    let mut participants = contestants(libraries)?;
    // etcdctl that gives up at the moment of its grant leaves its key until its lease ends, so no
    // attempt gives up here.
    let contest = Contest {
        wait: PATIENCE,
        ..Contest::new(shared::name("contested"), Duration::from_secs(seconds))
    };
    contest.run(&mut participants, &Witness::new(&redis.url())?)
}

/// Past the test harness, which shows only what failing tests print.
pub(crate) fn show(title: &str, outcome: &Outcome) {
    writeln!(std::io::stderr(), "{title}: {outcome}").ok();
}
