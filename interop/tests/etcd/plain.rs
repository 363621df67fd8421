//! `format=plain` has no place in line, and yet does not overtake a waiter.

use std::time::Duration;

use palisade_interop::etcd::Library;
use palisade_interop::{Acquired, Fault, Participant, Released};
use palisade_testkit::shared;

use crate::{LONG, ONCE, PATIENCE, begin, gets, in_line, line, ours, start, waits};

/// It asks in a loop while the lock passes from one waiter to the next, and gets it after all of
/// them.
#[test]
fn plain_never_overtakes() -> Result<(), Fault> {
    let name = shared::name("plain");
    let queue = [
        ours(),
        Library::Go,
        Library::EtcdctlHolds,
        ours(),
        Library::EtcdctlRuns,
        Library::Go,
    ];
    let mut holder = start(Library::Go)?;
    assert_eq!(holder.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    let (mut plain, mut asks) = (start(Library::OurPlain)?, start(Library::OurPlain)?);
    begin(&mut plain, &name)?;
    let mut peers = queue
        .into_iter()
        .map(start)
        .collect::<Result<Vec<_>, Fault>>()?;
    for (index, peer) in peers.iter_mut().enumerate() {
        begin(peer, &name)?;
        in_line(&name, index + 2);
    }
    for peer in &mut peers {
        assert_ne!(holder.release()?, Released::NotHeld);
        // As fast as it can, through the moment in which the lock is free.
        for _ in 0..20 {
            assert_eq!(
                asks.acquire(&name, Some(LONG), ONCE)?,
                Acquired::Busy,
                "it went before {:?}",
                line(&name)
            );
        }
        gets(peer)?;
        std::mem::swap(&mut holder, peer);
    }
    waits(&mut plain, "plain")?;
    assert_ne!(holder.release()?, Released::NotHeld);
    gets(&mut plain)?;
    // And a later claim waits for it.
    let mut late = start(Library::Go)?;
    begin(&mut late, &name)?;
    in_line(&name, 2);
    waits(&mut late, "who came later")?;
    assert_eq!(plain.release()?, Released::Yes);
    gets(&mut late)?;
    Ok(())
}

/// A killed holder in this format is waited for like any other.
#[test]
fn plain_that_crashes_is_replaced_after_its_lease() -> Result<(), Fault> {
    let name = shared::name("plain");
    let (mut plain, mut other) = (start(Library::OurPlain)?, start(Library::Go)?);
    assert_eq!(
        plain.acquire(&name, Some(Duration::from_secs(2)), ONCE)?,
        Acquired::Yes
    );
    begin(&mut other, &name)?;
    in_line(&name, 2);
    waits(&mut other, "Go")?;
    plain.crash();
    gets(&mut other)?;
    Ok(())
}
