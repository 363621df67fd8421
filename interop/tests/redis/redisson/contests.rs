//! All programs contend at once, for each lock.

use std::time::Duration;

use palisade_interop::check::Rule;
use palisade_interop::redisson::{Library, Lock, Program};
use palisade_interop::{Contest, Contestant, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use super::{LONG, PATIENCE, contestants, ours};
use crate::contests::{seconds, show};

/// What every participant must reach, per second of a contest. Far less than any has on a busy
/// machine, and more than nothing.
const LEAST_PER_SECOND: f64 = 0.3;

/// How long a contest takes, but for that of the plain lock.
const USUAL: u64 = 4;

/// The participants in each lock.
fn players(lock: Lock) -> Vec<Library> {
    let of = |programs: &[Program], lock| {
        programs
            .iter()
            .map(|program| Library(*program, lock))
            .collect::<Vec<_>>()
    };
    let (new, old) = (Program::New, Program::Old);
    match lock {
        Lock::Read | Lock::Write => [
            of(&[ours(), new, old], Lock::Read),
            of(&[ours(), new, old], Lock::Write),
        ]
        .concat(),
        lock => of(&[ours(), ours(), new, new, old], lock),
    }
}

/// The participants that may be inside together.
pub(super) fn rule(lock: Lock, participants: &[Contestant]) -> Rule {
    match lock {
        Lock::Semaphore | Lock::Permit => Rule::Few(2),
        Lock::Read | Lock::Write => {
            let names = participants
                .iter()
                .map(|(name, _)| name)
                .filter(|name| name.contains("-read"));
            Rule::Readers(names.cloned().collect())
        }
        _ => Rule::One,
    }
}

fn contest(lock: Lock) -> Result<Outcome, Fault> {
    let redis = Redis::start();
    let mut participants = contestants(&players(lock))?;
    let rule = rule(lock, &participants);
    let seconds = if lock == Lock::Lock {
        seconds()
    } else {
        seconds_or(USUAL)
    };
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
    show(&format!("ours and Redisson, {lock:?}"), &outcome);
    outcome.assert_fair(((seconds as f64 * LEAST_PER_SECOND) as u64).max(1));
    Ok(outcome)
}

/// The soak asks for longer contests; the tests for as long as is usual.
fn seconds_or(usual: u64) -> u64 {
    match std::env::var_os("PALISADE_INTEROP_SECONDS") {
        Some(_) => seconds(),
        None => usual,
    }
}

#[test]
fn lock() -> Result<(), Fault> {
    contest(Lock::Lock).map(drop)
}

#[test]
fn fair() -> Result<(), Fault> {
    contest(Lock::Fair).map(drop)
}

#[test]
fn fenced() -> Result<(), Fault> {
    contest(Lock::Fenced).map(drop)
}

#[test]
fn several_locks_at_once() -> Result<(), Fault> {
    contest(Lock::Multi).map(drop)
}

#[test]
fn readers_and_writers() -> Result<(), Fault> {
    let outcome = contest(Lock::Write)?;
    assert!(outcome.most > 1, "no two readers met: {outcome}");
    Ok(())
}

#[test]
fn semaphore() -> Result<(), Fault> {
    let outcome = contest(Lock::Semaphore)?;
    assert_eq!(outcome.most, 2, "both permits are used: {outcome}");
    Ok(())
}

#[test]
fn permits_that_expire() -> Result<(), Fault> {
    let outcome = contest(Lock::Permit)?;
    assert_eq!(outcome.most, 2, "both permits are used: {outcome}");
    Ok(())
}
