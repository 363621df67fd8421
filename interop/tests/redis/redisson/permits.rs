//! A shared semaphore of two: the third waits, in every mix of programs.

use palisade_interop::redisson::{Library, Lock, Program};
use palisade_interop::{Acquired, Fault, Participant, Peer};
use palisade_testkit::shared;

use super::{
    PEERS, SHORT, alone, begin, gets, gives_back, gone, is_refused, ours, player, takes, waits,
};
use crate::PATIENCE;

/// Two hold, and each that leaves lets one of the others in.
fn third_waits(holders: [&mut Peer; 2], [third, fourth]: [&mut Peer; 2]) -> Result<(), Fault> {
    let name = shared::name("semaphore");
    let [one, two] = holders;
    takes(one, &name)?;
    takes(two, &name)?;
    is_refused(third, &name)?;
    begin(third, &name)?;
    waits(third)?;
    gives_back(two)?;
    gets(third)?;
    begin(fourth, &name)?;
    waits(fourth)?;
    gives_back(one)?;
    gets(fourth)?;
    is_refused(one, &name)?;
    gives_back(third)?;
    gives_back(fourth)?;
    gone(&name);
    Ok(())
}

fn shared_by(lock: Lock) -> Result<(), Fault> {
    for program in PEERS {
        let [mut our, mut our_second] = [
            player(Library(ours(), lock))?,
            player(Library(ours(), lock))?,
        ];
        let [mut their, mut their_second] = [
            player(Library(program, lock))?,
            player(Library(program, lock))?,
        ];
        third_waits([&mut our, &mut their], [&mut our_second, &mut their_second])?;
        third_waits([&mut their, &mut our], [&mut their_second, &mut our_second])?;
        third_waits([&mut our, &mut our_second], [&mut their, &mut their_second])?;
        third_waits([&mut their, &mut their_second], [&mut our, &mut our_second])?;
    }
    Ok(())
}

#[test]
fn semaphore() -> Result<(), Fault> {
    shared_by(Lock::Semaphore)
}

#[test]
fn permits_that_expire() -> Result<(), Fault> {
    shared_by(Lock::Permit)
}

/// The third gets the permit of a killed holder when its lease ends.
#[test]
fn a_permit_of_a_killed_holder_expires() -> Result<(), Fault> {
    let lock = Lock::Permit;
    for (dies, stays) in [(ours(), Program::New), (Program::New, ours())] {
        let name = shared::name("semaphore");
        let mut dies = alone(Library(dies, lock))?;
        let (mut other, mut third) = (player(Library(stays, lock))?, player(Library(stays, lock))?);
        assert_eq!(dies.acquire(&name, Some(SHORT), PATIENCE)?, Acquired::Yes);
        takes(&mut other, &name)?;
        begin(&mut third, &name)?;
        dies.crash();
        gets(&mut third)?;
        gives_back(&mut third)?;
        gives_back(&mut other)?;
        gone(&name);
    }
    Ok(())
}
