//! Rules between two programs, in both directions, for each exclusive recipe.

use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use palisade_interop::zookeeper::{Library, Program, Recipe};
use palisade_interop::{Acquired, Extended, Fault, Participant, Peer, Released};
use palisade_testkit::shared;
use palisade_testkit::zookeeper::Raw;

use crate::{
    A_WHILE, LONG, ONCE, PATIENCE, SHORT, become_again, begin, begin_with, gets, gives_back, nodes,
    ours, start, takes, waits,
};

/// All of it both ways, between ours and one peer.
fn exclude(program: Program, recipe: Recipe) -> Result<(), Fault> {
    let (mut our, mut their) = (start(ours(program), recipe)?, start(program, recipe)?);
    holds(&mut our, &mut their)?;
    holds(&mut their, &mut our)?;
    crashes(our, &mut their)?;
    let mut our = start(ours(program), recipe)?;
    crashes(their, &mut our)
}

/// The other is refused, waits in vain, and gets the lock after the release.
fn holds(holder: &mut Peer, other: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("shared");
    takes(holder, &name)?;
    let held = nodes(&name);
    assert_ne!(held, [""; 0], "a lock is a node");
    assert_eq!(other.acquire(&name, Some(LONG), ONCE)?, Acquired::Busy);
    become_again(&name, &held);
    assert_eq!(other.acquire(&name, Some(LONG), A_WHILE)?, Acquired::Busy);
    become_again(&name, &held);

    begin(other, &name)?;
    waits(other, "the other")?;
    gives_back(holder)?;
    gets(other)?;
    assert!(
        held.iter().all(|node| !nodes(&name).contains(node)),
        "the holder's nodes are gone: {:?}",
        nodes(&name)
    );
    assert_eq!(holder.acquire(&name, Some(LONG), ONCE)?, Acquired::Busy);
    gives_back(other)?;
    become_again(&name, &[]);
    Ok(())
}

/// A live holder keeps the other out for longer than the session lasts.
fn extends(holder: &mut Peer, other: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("shared");
    let asked = Instant::now();
    assert_eq!(holder.acquire(&name, Some(SHORT), PATIENCE)?, Acquired::Yes);
    begin(other, &name)?;
    while asked.elapsed() < SHORT.mul_f64(1.5) {
        waits(other, "the other")?;
    }
    assert_eq!(holder.extend(SHORT)?, Extended::Yes);
    gives_back(holder)?;
    gets(other)?;
    gives_back(other)?;
    become_again(&name, &[]);
    Ok(())
}

/// The waiter gets the lock of a killed holder after the session, and not before.
fn crashes(mut holder: Peer, other: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("shared");
    let asked = Instant::now();
    assert_eq!(holder.acquire(&name, Some(SHORT), PATIENCE)?, Acquired::Yes);
    let held = nodes(&name);
    begin(other, &name)?;
    holder.crash();
    gets(other)?;
    let after = asked.elapsed();
    assert!(
        after >= SHORT,
        "the lock was free after {after:?} of a session of {SHORT:?}"
    );
    assert!(
        held.iter().all(|node| !nodes(&name).contains(node)),
        "the dead one's nodes are gone: {:?}",
        nodes(&name)
    );
    gives_back(other)?;
    become_again(&name, &[]);
    Ok(())
}

/// A waiter that is killed is passed over.
fn crashes_in_line(mut dies: Peer, holder: &mut Peer, last: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("shared");
    takes(holder, &name)?;
    begin_with(&mut dies, &name, SHORT)?;
    let dead = nodes(&name)[1].clone();
    begin(last, &name)?;
    dies.crash();
    gives_back(holder)?;
    gets(last)?;
    assert!(
        !nodes(&name).contains(&dead),
        "it was served before the one that died"
    );
    gives_back(last)?;
    become_again(&name, &[]);
    Ok(())
}

/// A holder whose node was deleted by an operator cannot release what another holds by then.
fn releases_in_vain(loser: &mut Peer, holder: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("shared");
    takes(loser, &name)?;
    let lost = nodes(&name);
    let mut operator = Raw::open(shared::zookeeper().address(), LONG).map_err(Fault::of)?;
    assert!(operator.delete(&lost[0]).map_err(Fault::of)?, "{lost:?}");
    takes(holder, &name)?;
    let held = nodes(&name);
    assert_ne!(loser.release()?, Released::Yes);
    assert_eq!(nodes(&name), held, "the wrong one changed the lock");
    assert_eq!(holder.extend(LONG)?, Extended::Yes);
    gives_back(holder)?;
    become_again(&name, &[]);
    Ok(())
}

/// The cases that need a third program, or an operator.
fn be_forgotten(program: Program) -> Result<(), Fault> {
    let recipe = Recipe::Mutex;
    let (mut our, mut our_last, mut their) = (
        start(ours(program), recipe)?,
        start(ours(program), recipe)?,
        start(program, recipe)?,
    );
    releases_in_vain(&mut our, &mut their)?;
    releases_in_vain(&mut their, &mut our)?;
    extends(&mut our, &mut their)?;
    crashes_in_line(start(ours(program), recipe)?, &mut our, &mut their)?;
    crashes_in_line(their, &mut our, &mut our_last)
}

/// They wait most of the time, so they do it together.
fn all(program: Program, recipes: &[Recipe]) -> Result<(), Fault> {
    thread::scope(|scope| {
        let named = |name: String| thread::Builder::new().name(name);
        let mut checks = Vec::new();
        for recipe in recipes {
            let name = Library(program, *recipe).to_string();
            checks.push(
                named(name)
                    .spawn_scoped(scope, move || exclude(program, *recipe))
                    .map_err(Fault::of)?,
            );
        }
        let name = format!("losers of {}", Library(program, Recipe::Mutex));
        checks.push(
            named(name)
                .spawn_scoped(scope, move || be_forgotten(program))
                .map_err(Fault::of)?,
        );
        let ended: Vec<_> = checks
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        ended
            .into_iter()
            .try_for_each(|check| check.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

const OF_CURATOR: [Recipe; 4] = [
    Recipe::Mutex,
    Recipe::SemaphoreMutex,
    Recipe::Write,
    Recipe::Multi,
];

#[test]
fn curator() -> Result<(), Fault> {
    all(Program::Curator, &OF_CURATOR)
}

#[test]
fn system_curator() -> Result<(), Fault> {
    all(Program::SystemCurator, &OF_CURATOR)
}

#[test]
fn kazoo() -> Result<(), Fault> {
    all(Program::Kazoo, &[Recipe::Mutex, Recipe::Write])
}
