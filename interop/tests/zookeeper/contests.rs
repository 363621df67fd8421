//! All programs contend at once.

use std::io::Write;
use std::time::Duration;

use palisade_interop::check::Rule;
use palisade_interop::zookeeper::{Library, Program, Recipe};
use palisade_interop::{Contest, Contestant, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use crate::{LONG, PATIENCE, contestants};

/// What every participant must reach, per second of a contest. Far less than any has on a busy
/// machine, and more than nothing.
const LEAST_PER_SECOND: f64 = 0.3;

/// `PALISADE_INTEROP_SECONDS` changes how long the contests of all take.
fn seconds(usual: u64) -> u64 {
    match std::env::var("PALISADE_INTEROP_SECONDS") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("PALISADE_INTEROP_SECONDS={text} is no number of seconds")),
        Err(_) => usual,
    }
}

/// The participants in each recipe.
fn players(recipe: Recipe) -> Vec<Library> {
    let (ours, new, old) = (Program::Ours, Program::Curator, Program::SystemCurator);
    let of = |programs: &[Program], recipe| {
        programs
            .iter()
            .map(|program| Library(*program, recipe))
            .collect::<Vec<_>>()
    };
    match recipe {
        Recipe::Read | Recipe::Write => [
            of(&[ours, ours, new], Recipe::Read),
            of(&[ours, new], Recipe::Write),
        ]
        .concat(),
        Recipe::Mutex | Recipe::Semaphore => of(&[ours, ours, new, old], recipe),
        Recipe::SemaphoreMutex | Recipe::Multi => of(&[ours, ours, new], recipe),
    }
}

/// The participants that may be inside together.
pub(crate) fn rule(recipe: Recipe, participants: &[Contestant]) -> Rule {
    match recipe {
        Recipe::Mutex | Recipe::SemaphoreMutex | Recipe::Multi => Rule::One,
        Recipe::Semaphore => Rule::Few(2),
        Recipe::Read | Recipe::Write => {
            let names = participants
                .iter()
                .map(|(name, _)| name)
                .filter(|name| name.contains(&format!("-{}", Recipe::Read)));
            Rule::Readers(names.cloned().collect())
        }
    }
}

#[test]
fn all_together() -> Result<(), Fault> {
    contest(
        "ours and Curator",
        Recipe::Mutex,
        &players(Recipe::Mutex),
        seconds(10),
    )
    .map(drop)
}

#[test]
fn kazoo() -> Result<(), Fault> {
    let (ours, kazoo) = (
        Library(Program::OursAsKazoo, Recipe::Mutex),
        Library(Program::Kazoo, Recipe::Mutex),
    );
    contest(
        "ours and kazoo",
        Recipe::Mutex,
        &[ours, ours, kazoo, kazoo],
        4,
    )
    .map(drop)
}

#[test]
fn readers_and_writers() -> Result<(), Fault> {
    let outcome = contest(
        "readers and writers",
        Recipe::Write,
        &players(Recipe::Write),
        seconds(4),
    )?;
    assert!(outcome.most > 1, "no two readers met: {outcome}");
    Ok(())
}

#[test]
fn permits() -> Result<(), Fault> {
    let outcome = contest(
        "permits",
        Recipe::Semaphore,
        &players(Recipe::Semaphore),
        seconds(4),
    )?;
    assert_eq!(outcome.most, 2, "both permits are used: {outcome}");
    Ok(())
}

#[test]
fn several_locks_at_once() -> Result<(), Fault> {
    contest(
        "several locks at once",
        Recipe::Multi,
        &players(Recipe::Multi),
        seconds(4),
    )
    .map(drop)
}

fn contest(
    title: &str,
    recipe: Recipe,
    libraries: &[Library],
    seconds: u64,
) -> Result<Outcome, Fault> {
    let redis = Redis::start();
    let mut participants = contestants(libraries)?;
    let rule = rule(recipe, &participants);
    let contest = Contest {
        wait: PATIENCE,
        lease: LONG,
        // Where several may be inside, they have the time to meet.
        stay: if rule == Rule::One {
            Duration::ZERO
        } else {
            Duration::from_millis(5)
        },
        rule,
        ..Contest::new(shared::name("contested"), Duration::from_secs(seconds))
    };
    let outcome = contest.run(&mut participants, &Witness::new(&redis.url())?)?;
    show(title, &outcome);
    outcome.assert_fair(((seconds as f64 * LEAST_PER_SECOND) as u64).max(1));
    Ok(outcome)
}

/// Past the test harness, which shows only what failing tests print.
pub(crate) fn show(title: &str, outcome: &Outcome) {
    writeln!(std::io::stderr(), "{title}: {outcome}").ok();
}
