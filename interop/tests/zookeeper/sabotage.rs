//! Contests that must go wrong: the judge sees what the usual mistakes do to honest participants.

use std::time::Duration;

use palisade_interop::check::Violation;
use palisade_interop::zookeeper::{Mistake, Program};
use palisade_interop::{Contest, Contestant, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use crate::contests::show;
use crate::{LONG, PATIENCE, contestants};

/// A mistake need not show in the first contest. It must in one of these.
const CONTESTS: u32 = 20;

/// Long enough inside to be surprised there.
fn run(participants: &mut [Contestant], length: Duration) -> Result<Outcome, Fault> {
    let redis = Redis::start();
    let contest = Contest {
        stay: Duration::from_millis(5),
        wait: PATIENCE,
        lease: LONG,
        ..Contest::new(shared::name("contested"), length)
    };
    contest.run(participants, &Witness::new(&redis.url())?)
}

fn finds(outcome: &Outcome, wanted: impl Fn(&Violation) -> bool) -> bool {
    outcome.violations.iter().any(wanted)
}

/// The honest ones are ours and Curator, which are seen to be honest first.
#[test]
fn mistakes_are_seen() -> Result<(), Fault> {
    let mut participants = contestants(&[Program::Ours, Program::Curator])?;
    let honest = run(&mut participants, Duration::from_secs(1))?;
    show("without sabotage", &honest);
    honest.assert_fair(1);
    for mistake in [Mistake::IgnoresTheLine, Mistake::DeletesTheLine] {
        participants.extend(contestants(&[Program::Saboteur(mistake)])?);
        let outcome = sabotaged(mistake, &mut participants)?;
        participants.pop();
        let told =
            finds(&outcome, |violation| matches!(violation, Violation::Dispossessed(visit) if visit.starts_with("palisade")));
        assert_eq!(told, mistake == Mistake::DeletesTheLine, "ours is told that its node is gone, if it is: {outcome}");
    }
    Ok(())
}

fn sabotaged(mistake: Mistake, participants: &mut [Contestant]) -> Result<Outcome, Fault> {
    for _ in 0..CONTESTS {
        let outcome = run(participants, Duration::from_millis(700))?;
        if finds(&outcome, |violation| matches!(violation, Violation::Together { .. }))
            && finds(&outcome, |violation| matches!(violation, Violation::Lost { .. }))
        {
            show(&format!("sabotage, {mistake:?}"), &outcome);
            return Ok(outcome);
        }
    }
    panic!("the judge did not see in {CONTESTS} contests that somebody {mistake:?}");
}
