//! First come, first served, across programs.

use std::time::Duration;

use palisade_interop::zookeeper::{Program, Recipe};
use palisade_interop::{Acquired, Fault, Peer};
use palisade_testkit::shared;

use crate::{become_again, begin, gets, gives_back, nodes, start, takes, waits};

/// How often each is served.
const ROUNDS: usize = 3;

/// Ours between theirs and theirs between ours: all are served in the order of asking, and queue
/// again.
fn served_in_order(programs: &[Program]) -> Result<(), Fault> {
    let name = shared::name("order");
    let mut peers = programs
        .iter()
        .map(|program| start(*program, Recipe::Mutex))
        .collect::<Result<Vec<Peer>, Fault>>()?;
    takes(&mut peers[0], &name)?;
    for peer in &mut peers[1..] {
        begin(peer, &name)?;
    }
    for turn in 0..ROUNDS * peers.len() {
        let (holder, next) = (turn % peers.len(), (turn + 1) % peers.len());
        let asked = nodes(&name);
        assert_eq!(asked.len(), peers.len(), "{asked:?}");
        waits(&mut peers[next], "the next")?;
        gives_back(&mut peers[holder])?;
        gets(&mut peers[next])?;
        assert_eq!(
            nodes(&name),
            asked[1..],
            "{:?} holds by the node with which it waited",
            programs[next]
        );
        for later in (0..peers.len()).filter(|later| ![holder, next].contains(later)) {
            assert_eq!(
                peers[later].awaited::<Acquired>(Duration::ZERO)?,
                None,
                "{:?} was served early",
                programs[later]
            );
        }
        begin(&mut peers[holder], &name)?;
    }
    // All leave in the same order.
    for last in 0..peers.len() {
        gives_back(&mut peers[last])?;
        if let Some(next) = peers.get_mut(last + 1) {
            gets(next)?;
        }
    }
    become_again(&name, &[]);
    Ok(())
}

#[test]
fn waiters_are_served_in_the_order_of_asking() -> Result<(), Fault> {
    let (ours, new, old) = (Program::Ours, Program::Curator, Program::SystemCurator);
    served_in_order(&[ours, new, ours, ours, old, ours])
}

#[test]
fn with_kazoo_too() -> Result<(), Fault> {
    let (ours, kazoo) = (Program::OursAsKazoo, Program::Kazoo);
    served_in_order(&[kazoo, ours, kazoo, ours, ours])
}
