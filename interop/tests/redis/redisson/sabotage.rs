//! Contests that must go wrong: the judge sees what the usual mistakes do to honest participants.

use std::time::Duration;

use palisade_interop::check::Violation;
use palisade_interop::redisson::{Library, Lock, Mistake, Program};
use palisade_interop::{Contest, Contestant, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use super::contests::rule;
use super::{LONG, PATIENCE, contestants, ours};
use crate::contests::show;

/// A mistake need not show in the first contest. It must in one of these.
const CONTESTS: u32 = 20;

/// Long enough inside to overlap.
fn run(
    lock: Lock,
    participants: &mut [Contestant],
    witness: &Redis,
    length: Duration,
) -> Result<Outcome, Fault> {
    let contest = Contest {
        stay: Duration::from_millis(5),
        wait: PATIENCE,
        lease: LONG,
        rule: rule(lock, participants),
        ..Contest::new(shared::name("contested"), length)
    };
    contest.run(participants, &Witness::new(&witness.url())?)
}

fn finds(outcome: &Outcome, wanted: impl Fn(&Violation) -> bool) -> bool {
    outcome.violations.iter().any(wanted)
}

/// The honest participants pass without the saboteurs first.
fn is_seen(lock: Lock, honest: &[Library], mistakes: &[Mistake]) -> Result<(), Fault> {
    let redis = Redis::start();
    let mut participants = contestants(honest)?;
    let outcome = run(lock, &mut participants, &redis, Duration::from_secs(1))?;
    show(&format!("without sabotage, Redisson, {lock:?}"), &outcome);
    outcome.assert_fair(1);
    for mistake in mistakes {
        let saboteur = Library(Program::Saboteur(*mistake), lock);
        participants.extend(contestants(&[saboteur, saboteur])?);
        let seen = (0..CONTESTS).find_map(|_| {
            let outcome = run(lock, &mut participants, &redis, Duration::from_millis(700));
            match outcome {
                Ok(outcome) => {
                    let together =
                        |violation: &Violation| matches!(violation, Violation::Together { .. });
                    finds(&outcome, together).then_some(Ok(outcome))
                }
                Err(fault) => Some(Err(fault)),
            }
        });
        let outcome = seen.unwrap_or_else(|| {
            panic!("the judge did not see in {CONTESTS} contests a saboteur that {mistake:?}")
        })?;
        show(
            &format!("sabotage, Redisson, {lock:?}, {mistake:?}"),
            &outcome,
        );
        participants.truncate(honest.len());
    }
    Ok(())
}

#[test]
fn mistakes_are_seen() -> Result<(), Fault> {
    let lock = Lock::Lock;
    is_seen(
        lock,
        &[Library(ours(), lock), Library(Program::New, lock)],
        &[
            Mistake::IgnoresTheAnswer,
            Mistake::DeletesTheLock,
            Mistake::HasOneOwner,
        ],
    )
}

/// It shares all with other readers but the leases. A writer meets it.
#[test]
fn readers_without_leases_are_seen() -> Result<(), Fault> {
    is_seen(
        Lock::Read,
        &[
            Library(ours(), Lock::Read),
            Library(Program::New, Lock::Read),
            Library(ours(), Lock::Write),
            Library(Program::New, Lock::Write),
        ],
        &[Mistake::ReadsWithoutALease],
    )
}

/// Where several may be inside, one too many is seen all the same.
#[test]
fn one_too_many_is_seen() -> Result<(), Fault> {
    for (lock, locks) in [
        (Lock::Write, [Lock::Read, Lock::Write]),
        (Lock::Permit, [Lock::Permit; 2]),
        (Lock::Multi, [Lock::Multi; 2]),
    ] {
        let honest = [Library(ours(), locks[0]), Library(Program::New, locks[1])];
        is_seen(lock, &honest, &[Mistake::IgnoresTheAnswer])?;
    }
    Ok(())
}
