//! Contests that must go wrong: the judge sees what the usual mistakes do to honest participants.

use std::time::Duration;

use palisade_interop::check::Violation;
use palisade_interop::zookeeper::{Library, Mistake, Program, Recipe};
use palisade_interop::{Contest, Contestant, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use crate::contests::{rule, show};
use crate::{LONG, PATIENCE, contestants};

/// A mistake need not show in the first contest. It must in one of these.
const CONTESTS: u32 = 20;

/// Long enough inside to overlap.
fn run(
    recipe: Recipe,
    participants: &mut [Contestant],
    length: Duration,
) -> Result<Outcome, Fault> {
    let redis = Redis::start();
    let contest = Contest {
        stay: Duration::from_millis(5),
        wait: PATIENCE,
        lease: LONG,
        rule: rule(recipe, participants),
        ..Contest::new(shared::name("contested"), length)
    };
    contest.run(participants, &Witness::new(&redis.url())?)
}

fn finds(outcome: &Outcome, wanted: impl Fn(&Violation) -> bool) -> bool {
    outcome.violations.iter().any(wanted)
}

/// The honest participants are ours and Curator, which pass without a saboteur first.
#[test]
fn mistakes_are_seen() -> Result<(), Fault> {
    let recipe = Recipe::Mutex;
    let mut participants = honest(
        recipe,
        &[
            Library(Program::Ours, recipe),
            Library(Program::Curator, recipe),
        ],
    )?;
    for mistake in [Mistake::IgnoresTheLine, Mistake::DeletesTheLine] {
        let outcome = sabotaged(recipe, mistake, &mut participants)?;
        assert!(
            finds(&outcome, |violation| matches!(
                violation,
                Violation::Lost { .. }
            )),
            "{outcome}"
        );
        let told = finds(
            &outcome,
            |violation| matches!(violation, Violation::Dispossessed(visit) if visit.starts_with("palisade")),
        );
        assert_eq!(
            told,
            mistake == Mistake::DeletesTheLine,
            "ours is told that its node is gone, if it is: {outcome}"
        );
    }
    Ok(())
}

/// Where several may be inside, one too many is seen all the same.
#[test]
fn one_too_many_is_seen() -> Result<(), Fault> {
    for (recipe, players) in [
        (
            Recipe::Write,
            [
                (Program::Ours, Recipe::Read),
                (Program::Curator, Recipe::Read),
            ],
        ),
        (
            Recipe::Semaphore,
            [
                (Program::Ours, Recipe::Semaphore),
                (Program::Curator, Recipe::Semaphore),
            ],
        ),
        (
            Recipe::Multi,
            [
                (Program::Ours, Recipe::Multi),
                (Program::Curator, Recipe::Multi),
            ],
        ),
    ] {
        let mut participants = honest(
            recipe,
            &players.map(|(program, recipe)| Library(program, recipe)),
        )?;
        sabotaged(recipe, Mistake::IgnoresTheLine, &mut participants)?;
    }
    Ok(())
}

fn honest(recipe: Recipe, libraries: &[Library]) -> Result<Vec<Contestant>, Fault> {
    let mut participants = contestants(libraries)?;
    let outcome = run(recipe, &mut participants, Duration::from_secs(1))?;
    show(&format!("without sabotage, {recipe}"), &outcome);
    outcome.assert_fair(1);
    Ok(participants)
}

/// A contest with a participant that makes this mistake.
fn sabotaged(
    recipe: Recipe,
    mistake: Mistake,
    participants: &mut Vec<Contestant>,
) -> Result<Outcome, Fault> {
    participants.extend(contestants(&[Library(Program::Saboteur(mistake), recipe)])?);
    for _ in 0..CONTESTS {
        let outcome = run(recipe, participants, Duration::from_millis(700))?;
        let adds_are_lost = finds(&outcome, |violation| {
            matches!(violation, Violation::Lost { .. })
        });
        if finds(&outcome, |violation| {
            matches!(violation, Violation::Together { .. })
        }) && (adds_are_lost || recipe != Recipe::Mutex)
        {
            show(&format!("sabotage, {recipe}, {mistake:?}"), &outcome);
            participants.pop();
            return Ok(outcome);
        }
    }
    panic!("the judge did not see in {CONTESTS} contests a saboteur that {mistake:?}");
}
