//! Rules between two programs, in both directions, for each exclusive lock.

use std::io::Write;
use std::time::{Duration, Instant};

use palisade_interop::redisson::{Library, Lock, Program};
use palisade_interop::{Acquired, Extended, Fault, Fenced, Participant, Peer, Released};
use palisade_testkit::shared;

use super::{
    A_WHILE, LONG, PATIENCE, PEERS, begin, gets, gives_back, gone, is_refused, ours, player, takes,
    waits,
};

/// How often each wakes the other.
const WAKES: usize = 5;

/// In which a waiter must have been woken, in the median of a few cases. One that is not woken sleeps
/// for a second at least.
pub(super) const PROMPT: Duration = Duration::from_millis(100);

/// A lease that a live program renews, as long as that of Redisson's driver: the machine may stop it
/// for seconds.
const RENEWED: Duration = Duration::from_secs(6);

/// Nothing wakes at a spin lock: each asks again at its own pace.
const AT_A_SPIN_LOCK: Duration = Duration::from_millis(2500);

/// All of it both ways, between ours and each peer.
fn exclude(lock: Lock) -> Result<(), Fault> {
    for program in PEERS {
        let (mut our, mut their) = (
            player(Library(ours(), lock))?,
            player(Library(program, lock))?,
        );
        holds(&mut our, &mut their)?;
        holds(&mut their, &mut our)?;
        let limit = if lock == Lock::Spin {
            AT_A_SPIN_LOCK
        } else {
            PROMPT
        };
        wake(&Library(program, lock), &mut our, &mut their, limit)?;
    }
    Ok(())
}

/// The other is refused, waits in vain, and gets the lock after the release.
fn holds(holder: &mut Peer, other: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("shared");
    takes(holder, &name)?;
    is_refused(other, &name)?;
    assert_eq!(other.acquire(&name, Some(LONG), A_WHILE)?, Acquired::Busy);
    begin(other, &name)?;
    waits(other)?;
    gives_back(holder)?;
    gets(other)?;
    is_refused(holder, &name)?;
    gives_back(other)?;
    gone(&name);
    Ok(())
}

fn wake(title: &Library, our: &mut Peer, their: &mut Peer, limit: Duration) -> Result<(), Fault> {
    let name = shared::name("woken");
    to_and_fro(&name, &title.to_string(), our, their, limit)?;
    gone(&name);
    Ok(())
}

/// The lock goes to and fro, and the one that waits has it soon after the release.
pub(super) fn to_and_fro(
    name: &str,
    title: &str,
    our: &mut Peer,
    their: &mut Peer,
    limit: Duration,
) -> Result<(), Fault> {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    takes(our, name)?;
    for _ in 0..WAKES {
        theirs.push(hand_over(name, our, their)?);
        ours.push(hand_over(name, their, our)?);
    }
    gives_back(our)?;
    for woken in [&mut theirs, &mut ours] {
        woken.sort();
    }
    let figures = |woken: &[Duration]| format!("{:?}, median {:?}", woken[0], woken[WAKES / 2]);
    let said = format!(
        "{title}: woken by ours after {}; ours by it after {}",
        figures(&theirs),
        figures(&ours)
    );
    writeln!(std::io::stderr(), "{said}").ok();
    assert!(
        theirs[WAKES / 2] < limit && ours[WAKES / 2] < limit,
        "{said}"
    );
    Ok(())
}

fn hand_over(name: &str, from: &mut Peer, to: &mut Peer) -> Result<Duration, Fault> {
    begin(to, name)?;
    waits(to)?;
    let released = Instant::now();
    gives_back(from)?;
    gets(to)?;
    Ok(released.elapsed())
}

/// A live holder keeps the others out for longer than its lease, because its program renews it.
/// Redisson does where no lease is asked for, with its own of six seconds.
#[test]
fn a_live_holder_is_renewed() -> Result<(), Fault> {
    let mut pairs = Vec::new();
    for program in PEERS {
        for (held, wanted) in [
            (Lock::Lock, Lock::Lock),
            (Lock::Fair, Lock::Fair),
            (Lock::Fenced, Lock::Fenced),
            (Lock::Write, Lock::Write),
            (Lock::Read, Lock::Write),
            (Lock::Multi, Lock::Multi),
        ] {
            for (holder, other) in [(ours(), program), (program, ours())] {
                let name = shared::name("renewed");
                let lease = Some(RENEWED).filter(|_| holder == Program::Ours);
                let mut holding = player(Library(holder, held))?;
                assert_eq!(holding.acquire(&name, lease, PATIENCE)?, Acquired::Yes);
                let mut waiting = player(Library(other, wanted))?;
                begin(&mut waiting, &name)?;
                pairs.push((name, holding, waiting));
            }
        }
    }
    let begun = Instant::now();
    while begun.elapsed() < RENEWED.mul_f64(1.3) {
        for (_, _, waiting) in &mut pairs {
            assert_eq!(
                waiting.awaited::<Acquired>(Duration::from_millis(10))?,
                None
            );
        }
    }
    for (name, mut holding, mut waiting) in pairs {
        assert_eq!(holding.extend(RENEWED)?, Extended::Yes);
        gives_back(&mut holding)?;
        gets(&mut waiting)?;
        gives_back(&mut waiting)?;
        gone(&name);
    }
    Ok(())
}

/// A holder whose lock was deleted by an operator cannot release what another holds by then.
#[test]
fn the_wrong_one_releases_in_vain() -> Result<(), Fault> {
    for program in PEERS {
        for lock in [Lock::Lock, Lock::Fair, Lock::Fenced, Lock::Write] {
            for (loser, holder) in [(ours(), program), (program, ours())] {
                let (mut loser, mut holder) = (
                    player(Library(loser, lock))?,
                    player(Library(holder, lock))?,
                );
                let name = shared::name("shared");
                takes(&mut loser, &name)?;
                assert_eq!(shared::redis().call(&["DEL", &name]).int(), Some(1));
                takes(&mut holder, &name)?;
                assert_ne!(loser.release()?, Released::Yes);
                assert_eq!(holder.extend(LONG)?, Extended::Yes);
                is_refused(&mut loser, &name)?;
                gives_back(&mut holder)?;
                gone(&name);
            }
        }
    }
    Ok(())
}

/// A holder that has entered twice must leave twice.
#[test]
fn what_was_entered_again_is_left_again() -> Result<(), Fault> {
    for program in PEERS {
        for (holder, other) in [(ours(), program), (program, ours())] {
            let (mut holder, mut other) = (
                player(Library(holder, Lock::Again))?,
                player(Library(other, Lock::Again))?,
            );
            let name = shared::name("again");
            for _ in 0..3 {
                takes(&mut holder, &name)?;
            }
            begin(&mut other, &name)?;
            for _ in 0..2 {
                gives_back(&mut holder)?;
                waits(&mut other)?;
            }
            assert_eq!(holder.extend(LONG)?, Extended::Yes);
            gives_back(&mut holder)?;
            gets(&mut other)?;
            is_refused(&mut holder, &name)?;
            gives_back(&mut other)?;
            gone(&name);
        }
    }
    Ok(())
}

/// Every grant of either program has a higher number than the one before.
#[test]
fn fences_rise_across_both() -> Result<(), Fault> {
    let name = shared::name("fenced");
    let mut players = [ours(), Program::New, ours(), Program::Old]
        .map(|program| player(Library(program, Lock::Fenced)))
        .into_iter()
        .collect::<Result<Vec<_>, Fault>>()?;
    let mut last = 0;
    for _ in 0..3 {
        for player in &mut players {
            takes(player, &name)?;
            let Fenced::By(fence) = player.fence()? else {
                panic!("it holds the lock");
            };
            assert!(fence > last, "{fence} after {last}");
            last = fence;
            gives_back(player)?;
        }
    }
    gone(&name);
    Ok(())
}

macro_rules! locks {
    ($($test:ident: $lock:ident;)+) => {
        $(
            #[test]
            fn $test() -> Result<(), Fault> {
                exclude(Lock::$lock)
            }
        )+
    };
}

locks! {
    lock: Lock;
    fair: Fair;
    fenced: Fenced;
    spin: Spin;
    write: Write;
    multi: Multi;
}
