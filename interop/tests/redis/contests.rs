//! All libraries contend at once.

use std::io::Write;
use std::time::Duration;

use palisade_interop::redis::Library;
use palisade_interop::{Contest, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;

use crate::{contestants, ours};

/// What every participant must reach, per second of a contest. Far less than any has on a busy
/// machine, and more than nothing.
const LEAST_PER_SECOND: f64 = 0.9;

/// `PALISADE_INTEROP_SECONDS` changes how long the contest of all takes.
pub(crate) fn seconds() -> u64 {
    match std::env::var("PALISADE_INTEROP_SECONDS") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("PALISADE_INTEROP_SECONDS={text} is no number of seconds")),
        Err(_) => 10,
    }
}

#[test]
fn all_together() -> Result<(), Fault> {
    let libraries: Vec<Library> = [ours(), ours(), Library::Raw]
        .into_iter()
        .chain(Library::PEERS)
        .collect();
    contest("all together", &libraries, seconds())
}

/// Without ours: a failure here is one of the drivers, or of a peer.
#[test]
fn the_peers_alone() -> Result<(), Fault> {
    contest("the peers alone", &Library::PEERS, 3)
}

pub(crate) fn pair(ours: Library, peer: Library) -> Result<(), Fault> {
    contest(
        &format!("{} and {}", ours.name(), peer.name()),
        &[ours, peer],
        3,
    )
}

fn contest(title: &str, libraries: &[Library], seconds: u64) -> Result<(), Fault> {
    let redis = Redis::start();
    let mut participants = contestants(libraries, &redis.url())?;
    let contest = Contest::new("contested", Duration::from_secs(seconds));
    let outcome = contest.run(&mut participants, &Witness::new(&redis.url())?)?;
    show(title, &outcome);
    outcome.assert_fair((seconds as f64 * LEAST_PER_SECOND) as u64);
    Ok(())
}

/// Past the test harness, which shows only what failing tests print.
pub(crate) fn show(title: &str, outcome: &Outcome) {
    writeln!(std::io::stderr(), "{title}: {outcome}").ok();
}
