//! Either program is killed, with all the locks that it holds or waits for.

use std::time::{Duration, Instant};

use palisade_interop::protocol::Request;
use palisade_interop::redisson::{Library, Lock, Program};
use palisade_interop::{Acquired, Fault, Host, Participant, Peer};
use palisade_testkit::shared;

use super::{
    LONG, PATIENCE, PEERS, SHORT, alone, begin, gets, gives_back, gone, ours, player, takes, url,
    waits,
};

/// What is held, and what waits for it.
const LOCKS: [(Lock, Lock); 6] = [
    (Lock::Lock, Lock::Lock),
    (Lock::Fair, Lock::Fair),
    (Lock::Fenced, Lock::Fenced),
    (Lock::Write, Lock::Read),
    (Lock::Read, Lock::Write),
    (Lock::Multi, Lock::Multi),
];

/// Redis counts in milliseconds, and by another clock than ours.
const SLACK: Duration = Duration::from_millis(20);

/// Participants of one program that are killed together.
struct Doomed {
    program: Program,
    /// Where it is one process for all.
    host: Option<Host>,
    players: Vec<Peer>,
}

impl Doomed {
    fn new(program: Program) -> Result<Self, Fault> {
        let host = match program {
            Program::New | Program::Old => Some(program.host(&url())?),
            _ => None,
        };
        Ok(Self {
            program,
            host,
            players: Vec::new(),
        })
    }

    fn player(&mut self, lock: Lock) -> Result<&mut Peer, Fault> {
        self.players.push(match &self.host {
            Some(host) => host.hand(lock.in_java())?,
            None => alone(Library(self.program, lock))?,
        });
        Ok(self.players.last_mut().expect("one was added"))
    }

    fn crash(self) {
        self.players.into_iter().for_each(Peer::crash);
    }
}

/// Each waiter gets the lock of the killed holder after its lease, and not before.
fn holders_crash(dies: Program, other: Program) -> Result<(), Fault> {
    let mut doomed = Doomed::new(dies)?;
    let mut waiters = Vec::new();
    for (held, wanted) in LOCKS {
        let name = shared::name("dead");
        let (holder, mut waiter) = (doomed.player(held)?, player(Library(other, wanted))?);
        let asked = Instant::now();
        assert_eq!(holder.acquire(&name, Some(SHORT), PATIENCE)?, Acquired::Yes);
        begin(&mut waiter, &name)?;
        waiters.push((asked, name, waiter));
    }
    doomed.crash();
    for (asked, name, mut waiter) in waiters {
        gets(&mut waiter)?;
        let after = asked.elapsed();
        assert!(
            after + SLACK >= SHORT,
            "the lock was free after {after:?} of a lease of {SHORT:?}"
        );
        gives_back(&mut waiter)?;
        gone(&name);
    }
    Ok(())
}

/// A waiter that is killed is passed over, and leaves nothing. In the fair queue it keeps its place
/// until the wait that it asked for has ended.
fn waiters_crash(dies: Program, other: Program) -> Result<(), Fault> {
    let mut doomed = Doomed::new(dies)?;
    let mut rest = Vec::new();
    for (held, wanted) in LOCKS {
        let name = shared::name("dead");
        let (mut holder, mut last) = (
            player(Library(other, held))?,
            player(Library(other, wanted))?,
        );
        // By the lease the fair queue reckons how long the dead one keeps its place.
        let lease = if held == Lock::Fair { 4 * SHORT } else { LONG };
        assert_eq!(holder.acquire(&name, Some(lease), PATIENCE)?, Acquired::Yes);
        doomed.player(wanted)?.begin(&Request::Acquire {
            name: name.clone(),
            lease: Some(SHORT),
            wait: SHORT,
        })?;
        waits(doomed.players.last_mut().expect("it has begun"))?;
        begin(&mut last, &name)?;
        rest.push((name, holder, last));
    }
    doomed.crash();
    for (_, holder, _) in &mut rest {
        // That of the fair lock may have ended by itself, where the machine has other work.
        holder.release()?;
    }
    for (name, mut holder, mut last) in rest {
        gets(&mut last)?;
        gives_back(&mut last)?;
        takes(&mut holder, &name)?;
        gives_back(&mut holder)?;
        gone(&name);
    }
    Ok(())
}

#[test]
fn their_holders() -> Result<(), Fault> {
    PEERS
        .into_iter()
        .try_for_each(|program| holders_crash(program, ours()))
}

#[test]
fn our_holders() -> Result<(), Fault> {
    PEERS
        .into_iter()
        .try_for_each(|program| holders_crash(ours(), program))
}

#[test]
fn their_waiters() -> Result<(), Fault> {
    waiters_crash(Program::New, ours())
}

#[test]
fn our_waiters() -> Result<(), Fault> {
    waiters_crash(ours(), Program::New)
}
