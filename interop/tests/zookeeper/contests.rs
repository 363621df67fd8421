//! Everybody who can, at once.

use std::io::Write;
use std::time::Duration;

use palisade_interop::zookeeper::Program;
use palisade_interop::{Contest, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use crate::{LONG, PATIENCE, contestants};

/// What every participant must reach, per second of a contest. Far less than any has on a busy machine, and more than nothing.
const LEAST_PER_SECOND: f64 = 0.3;

/// `PALISADE_INTEROP_SECONDS` changes how long the contest of all takes.
fn seconds() -> u64 {
    match std::env::var("PALISADE_INTEROP_SECONDS") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("PALISADE_INTEROP_SECONDS={text} is no number of seconds")),
        Err(_) => 10,
    }
}

#[test]
fn all_together() -> Result<(), Fault> {
    let (ours, new, old) = (Program::Ours, Program::Curator, Program::SystemCurator);
    contest("ours and Curator", &[ours, ours, new, old], seconds())
}

#[test]
fn kazoo() -> Result<(), Fault> {
    let (ours, kazoo) = (Program::OursAsKazoo, Program::Kazoo);
    contest("ours and kazoo", &[ours, ours, kazoo, kazoo], 4)
}

fn contest(title: &str, programs: &[Program], seconds: u64) -> Result<(), Fault> {
    let redis = Redis::start();
    let length = Duration::from_secs(seconds);
    let contest = Contest { wait: PATIENCE, lease: LONG, ..Contest::new(shared::name("contested"), length) };
    let outcome = contest.run(&mut contestants(programs)?, &Witness::new(&redis.url())?)?;
    show(title, &outcome);
    outcome.assert_fair((seconds as f64 * LEAST_PER_SECOND).ceil() as u64);
    Ok(())
}

/// Past the test harness, which shows only what failing tests print.
pub(crate) fn show(title: &str, outcome: &Outcome) {
    writeln!(std::io::stderr(), "{title}: {outcome}").ok();
}
