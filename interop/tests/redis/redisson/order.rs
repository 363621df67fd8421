//! First come, first served, across both programs, in the fair lock.

use std::time::Duration;

use palisade_interop::redisson::{Library, Lock, Program};
use palisade_interop::{Acquired, Fault, Peer};
use palisade_testkit::{eventually, shared};

use super::{PATIENCE, begin, gets, gives_back, gone, ours, player, takes, waits};

/// How often each is served.
const ROUNDS: usize = 3;

/// Ours between theirs and theirs between ours: all are served in the order of asking, and queue
/// again.
#[test]
fn waiters_are_served_in_the_order_of_asking() -> Result<(), Fault> {
    let name = shared::name("order");
    let programs = [
        ours(),
        Program::New,
        ours(),
        ours(),
        Program::Old,
        Program::New,
    ];
    let mut peers = programs
        .map(|program| player(Library(program, Lock::Fair)))
        .into_iter()
        .collect::<Result<Vec<Peer>, Fault>>()?;
    takes(&mut peers[0], &name)?;
    for (waiting, peer) in peers[1..].iter_mut().enumerate() {
        begin(peer, &name)?;
        queue_is(&name, waiting + 1);
    }
    for turn in 0..ROUNDS * peers.len() {
        let (holder, next) = (turn % peers.len(), (turn + 1) % peers.len());
        waits(&mut peers[next])?;
        gives_back(&mut peers[holder])?;
        gets(&mut peers[next])?;
        for later in (0..peers.len()).filter(|later| ![holder, next].contains(later)) {
            assert_eq!(
                peers[later].awaited::<Acquired>(Duration::ZERO)?,
                None,
                "{:?} was served early",
                programs[later]
            );
        }
        begin(&mut peers[holder], &name)?;
        queue_is(&name, peers.len() - 1);
    }
    // All leave in the same order.
    for last in 0..peers.len() {
        gives_back(&mut peers[last])?;
        if let Some(next) = peers.get_mut(last + 1) {
            gets(next)?;
        }
    }
    gone(&name);
    Ok(())
}

/// A waiter that gives up leaves the queue to the others.
#[test]
fn who_gives_up_leaves_the_queue() -> Result<(), Fault> {
    for (quits, stays) in [(ours(), Program::New), (Program::New, ours())] {
        let name = shared::name("order");
        let [mut holder, mut quitter, mut last] =
            [stays, quits, stays].map(|program| player(Library(program, Lock::Fair)));
        let (holder, quitter, last) = (
            holder.as_mut().map_err(|fault| fault.clone())?,
            quitter.as_mut().map_err(|fault| fault.clone())?,
            last.as_mut().map_err(|fault| fault.clone())?,
        );
        takes(holder, &name)?;
        quitter.begin(&palisade_interop::protocol::Request::Acquire {
            name: name.clone(),
            lease: Some(super::LONG),
            wait: Duration::from_millis(500),
        })?;
        queue_is(&name, 1);
        begin(last, &name)?;
        assert_eq!(quitter.awaited(PATIENCE)?, Some(Acquired::Busy));
        queue_is(&name, 1);
        gives_back(holder)?;
        gets(last)?;
        gives_back(last)?;
        gone(&name);
    }
    Ok(())
}

/// Returns when so many wait.
#[track_caller]
fn queue_is(name: &str, wanted: usize) {
    eventually("a place in the queue", PATIENCE, || {
        let queue = shared::redis().call(&["LLEN", &format!("redisson_lock_queue:{{{name}}}")]);
        if queue.int() == i64::try_from(wanted).ok() {
            Ok(())
        } else {
            Err(format!("{queue:?} wait, and not {wanted}"))
        }
    });
}
