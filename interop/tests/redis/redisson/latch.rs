//! A shared latch: either program sets it, counts it down, and waits for it.

use std::time::Instant;

use palisade_interop::redisson::{Library, Lock};
use palisade_interop::{Extended, Fault, Participant, Peer};
use palisade_testkit::shared;

use super::exclusion::PROMPT;
use super::{LONG, PEERS, begin, gets, gives_back, gone, is_refused, ours, player, takes, waits};

/// One sets the latch; each counts it down once; the waiter of either program is woken by the other.
fn opens_for_both(setter: &mut Peer, [first, last]: [&mut Peer; 2]) -> Result<(), Fault> {
    let mut woken = Vec::new();
    for _ in 0..5 {
        let name = shared::name("latch");
        // A latch that is not set is open: each takes it, to count it down later.
        for peer in [&mut *setter, &mut *first, &mut *last] {
            takes(peer, &name)?;
        }
        assert_eq!(setter.extend(LONG)?, Extended::Yes, "it is set");
        assert_eq!(last.extend(LONG)?, Extended::NotHeld, "it is set already");
        is_refused(setter, &name)?;
        begin(setter, &name)?;
        waits(setter)?;
        gives_back(first)?;
        waits(setter)?;
        let counted = Instant::now();
        gives_back(last)?;
        gets(setter)?;
        woken.push(counted.elapsed());
        // Open for all, however often it is counted down.
        gives_back(setter)?;
        takes(last, &name)?;
        gives_back(setter)?;
        gives_back(last)?;
        gone(&name);
    }
    woken.sort();
    assert!(woken[woken.len() / 2] < PROMPT, "woken after {woken:?}");
    Ok(())
}

#[test]
fn latch() -> Result<(), Fault> {
    for program in PEERS {
        let [mut our, mut our_second, mut our_third] =
            [(); 3].map(|()| player(Library(ours(), Lock::Latch)).expect("started"));
        let [mut their, mut their_second, mut their_third] =
            [(); 3].map(|()| player(Library(program, Lock::Latch)).expect("started"));
        opens_for_both(&mut our, [&mut our_second, &mut their])?;
        opens_for_both(&mut their, [&mut their_second, &mut our])?;
        opens_for_both(&mut our_third, [&mut their, &mut their_second])?;
        opens_for_both(&mut their_third, [&mut our, &mut our_second])?;
    }
    Ok(())
}
