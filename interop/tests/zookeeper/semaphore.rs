//! A shared semaphore of two: the third waits, in every mix of programs.

use palisade_interop::zookeeper::{Program, Recipe};
use palisade_interop::{Acquired, Fault, Participant, Peer};
use palisade_testkit::shared;

use crate::{
    A_WHILE, LONG, ONCE, PATIENCE, SHORT, become_again, begin, gets, gives_back, nodes, start,
    takes, waits,
};

/// Two hold, and the others are served in the order of asking, one for each that leaves.
fn third_waits(holders: [&mut Peer; 2], [third, fourth]: [&mut Peer; 2]) -> Result<(), Fault> {
    let name = shared::name("semaphore");
    let [one, two] = holders;
    takes(one, &name)?;
    takes(two, &name)?;
    let held = nodes(&name);
    assert_eq!(third.acquire(&name, Some(LONG), ONCE)?, Acquired::Busy);
    become_again(&name, &held);
    assert_eq!(third.acquire(&name, Some(LONG), A_WHILE)?, Acquired::Busy);
    become_again(&name, &held);
    begin(third, &name)?;
    begin(fourth, &name)?;
    waits(third, "the third")?;
    waits(fourth, "the fourth")?;
    gives_back(two)?;
    gets(third)?;
    waits(fourth, "the fourth")?;
    gives_back(one)?;
    gets(fourth)?;
    assert_eq!(one.acquire(&name, Some(LONG), ONCE)?, Acquired::Busy);
    gives_back(third)?;
    gives_back(fourth)?;
    become_again(&name, &[]);
    Ok(())
}

/// The third gets the permit of a killed holder.
fn crashes(mut dies: Peer, stays: &mut Peer, third: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("semaphore");
    assert_eq!(dies.acquire(&name, Some(SHORT), PATIENCE)?, Acquired::Yes);
    takes(stays, &name)?;
    begin(third, &name)?;
    dies.crash();
    gets(third)?;
    gives_back(third)?;
    gives_back(stays)?;
    become_again(&name, &[]);
    Ok(())
}

fn shared_by(program: Program) -> Result<(), Fault> {
    let recipe = Recipe::Semaphore;
    let (mut our, mut our_second) = (start(Program::Ours, recipe)?, start(Program::Ours, recipe)?);
    let (mut their, mut their_second) = (start(program, recipe)?, start(program, recipe)?);
    third_waits([&mut our, &mut their], [&mut our_second, &mut their_second])?;
    third_waits([&mut their, &mut our], [&mut their_second, &mut our_second])?;
    third_waits([&mut our, &mut our_second], [&mut their, &mut their_second])?;
    third_waits([&mut their, &mut their_second], [&mut our, &mut our_second])?;
    crashes(our_second, &mut our, &mut their)?;
    crashes(their_second, &mut their, &mut our)
}

#[test]
fn with_curator() -> Result<(), Fault> {
    shared_by(Program::Curator)
}

#[test]
fn with_system_curator() -> Result<(), Fault> {
    shared_by(Program::SystemCurator)
}
