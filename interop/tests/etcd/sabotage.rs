//! Contests that must go wrong: the judge sees what the usual mistakes do to honest participants.

use std::time::Duration;

use palisade_interop::check::Violation;
use palisade_interop::etcd::Library;
use palisade_interop::{Contest, Contestant, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use crate::contests::show;
use crate::{PATIENCE, contestants};

const HONEST: [Library; 2] = [Library::Ours, Library::Go];

/// A mistake need not show in the first contest. It must in one of these.
const CONTESTS: u32 = 20;

/// Long enough inside to overlap.
fn contest(seconds: f64) -> Contest {
    let length = Duration::from_secs_f64(seconds);
    Contest {
        stay: Duration::from_millis(5),
        wait: PATIENCE,
        ..Contest::new(shared::name("contested"), length)
    }
}

fn run(contest: &Contest, participants: &mut [Contestant]) -> Result<Outcome, Fault> {
    let redis = Redis::start();
    contest.run(participants, &Witness::new(&redis.url())?)
}

fn sabotaged(saboteur: Library) -> Result<Outcome, Fault> {
    let mut participants = contestants(&[HONEST.as_slice(), &[saboteur]].concat())?;
    let contest = contest(0.5);
    for _ in 0..CONTESTS {
        let outcome = run(&contest, &mut participants)?;
        if finds(&outcome, |violation| {
            matches!(violation, Violation::Together { .. })
        }) && finds(&outcome, |violation| {
            matches!(violation, Violation::Lost { .. })
        }) {
            show(&format!("sabotage, {}", saboteur.name()), &outcome);
            return Ok(outcome);
        }
    }
    panic!(
        "the judge did not see in {CONTESTS} contests that a saboteur {}",
        saboteur.name()
    );
}

fn finds(outcome: &Outcome, wanted: impl Fn(&Violation) -> bool) -> bool {
    outcome.violations.iter().any(wanted)
}

#[test]
fn ignoring_the_answer_is_seen() -> Result<(), Fault> {
    sabotaged(Library::IgnoresTheAnswer).map(drop)
}

#[test]
fn deleting_without_comparing_is_seen() -> Result<(), Fault> {
    let saboteur = Library::DeletesWithoutComparing;
    let outcome = sabotaged(saboteur)?;
    let told = finds(
        &outcome,
        |violation| matches!(violation, Violation::Dispossessed(visit) if !visit.starts_with(saboteur.name())),
    );
    assert!(
        told,
        "no honest participant was told that its lock is gone: {outcome}"
    );
    Ok(())
}

#[test]
fn looking_and_then_writing_is_seen() -> Result<(), Fault> {
    sabotaged(Library::LooksThenWrites).map(drop)
}

/// The same contest without a saboteur: it is the mistakes that the judge sees, and not the
/// contest.
#[test]
fn nothing_is_seen_where_nothing_is() -> Result<(), Fault> {
    let mut participants = contestants(&HONEST)?;
    let outcome = run(&contest(1.0), &mut participants)?;
    show("without sabotage", &outcome);
    outcome.assert_fair(1);
    Ok(())
}
