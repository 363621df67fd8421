//! Contests that must go wrong: the judge sees what the usual mistakes do to honest participants.

use std::time::Duration;

use palisade_interop::check::Violation;
use palisade_interop::redis::Library;
use palisade_interop::sabotage::{Mistake, Saboteur};
use palisade_interop::{Contest, Fault, Outcome, Participant, Witness};
use palisade_testkit::redis::Redis;

use crate::contestants;
use crate::contests::show;

const HONEST: [Library; 2] = [Library::Raw, Library::Redsync];

/// A mistake need not show in the first contest. It must in one of these.
const CONTESTS: u32 = 20;

fn sabotaged(mistake: Mistake) -> Result<Outcome, Fault> {
    let redis = Redis::start();
    let url = redis.url();
    among(&HONEST, &url, &url, mistake)
}

/// A contest that the saboteur has spoilt, with these honest participants at these servers.
pub(crate) fn among(
    honest: &[Library],
    url: &str,
    witness: &str,
    mistake: Mistake,
) -> Result<Outcome, Fault> {
    let saboteur: Box<dyn Participant> = Box::new(Saboteur::connect(url, mistake)?);
    let mut participants = contestants(honest, url)?;
    participants.push(("saboteur".into(), saboteur));
    // Long enough inside to overlap.
    let contest = Contest {
        stay: Duration::from_millis(5),
        ..Contest::new("contested", Duration::from_millis(500))
    };
    for _ in 0..CONTESTS {
        let outcome = contest.run(&mut participants, &Witness::new(witness)?)?;
        if finds(&outcome, |violation| {
            matches!(violation, Violation::Together { .. })
        }) && finds(&outcome, |violation| {
            matches!(violation, Violation::Lost { .. })
        }) {
            show(&format!("sabotage, {mistake:?}"), &outcome);
            return Ok(outcome);
        }
    }
    panic!("the judge did not see in {CONTESTS} contests a saboteur that {mistake:?}");
}

fn finds(outcome: &Outcome, wanted: impl Fn(&Violation) -> bool) -> bool {
    outcome.violations.iter().any(wanted)
}

#[test]
fn ignoring_the_answer_is_seen() -> Result<(), Fault> {
    sabotaged(Mistake::IgnoresTheAnswer).map(drop)
}

#[test]
fn deleting_without_comparing_is_seen() -> Result<(), Fault> {
    let outcome = sabotaged(Mistake::DeletesWithoutComparing)?;
    let told = finds(
        &outcome,
        |violation| matches!(violation, Violation::Dispossessed(visit) if !visit.starts_with("saboteur")),
    );
    assert!(
        told,
        "no honest participant was told that its lock is gone: {outcome}"
    );
    Ok(())
}

#[test]
fn a_lease_that_is_too_short_is_seen() -> Result<(), Fault> {
    sabotaged(Mistake::LeaseTooShort).map(drop)
}

/// The same contest without a saboteur: it is the mistakes that the judge sees, and not the
/// contest.
#[test]
fn nothing_is_seen_where_nothing_is() -> Result<(), Fault> {
    let redis = Redis::start();
    let mut participants = contestants(&HONEST, &redis.url())?;
    let contest = Contest {
        stay: Duration::from_millis(5),
        ..Contest::new("contested", Duration::from_secs(1))
    };
    let outcome = contest.run(&mut participants, &Witness::new(&redis.url())?)?;
    show("without sabotage", &outcome);
    outcome.assert_fair(1);
    Ok(())
}
