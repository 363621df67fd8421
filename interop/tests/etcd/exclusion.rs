//! Rules between two programs, in both directions: each of them holds once.

use std::time::{Duration, Instant};

use palisade_interop::etcd::Library;
use palisade_interop::{Acquired, Extended, Fault, Participant, Peer, Released};
use palisade_testkit::shared;

use crate::{LONG, ONCE, PATIENCE, begin, gets, in_line, line, start, waits};

/// The shortest lease of etcd.
const SHORT: Duration = Duration::from_secs(2);

/// etcd counts whole seconds, from when it received the request.
const SLACK: Duration = Duration::from_millis(20);

fn both((holder, other): (Library, Library)) -> Result<(String, Peer, Peer), Fault> {
    Ok((shared::name("shared"), start(holder)?, start(other)?))
}

/// The other is refused, waits in vain, and gets the lock after the release.
pub(crate) fn holds(pair: (Library, Library)) -> Result<(), Fault> {
    let (name, mut holder, mut other) = both(pair)?;
    assert_eq!(holder.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    let held = in_line(&name, 1);
    if pair.1.can_try() {
        assert_eq!(other.acquire(&name, Some(LONG), ONCE)?, Acquired::Busy);
        assert_eq!(line(&name), held, "a refused attempt left something");
    }

    begin(&mut other, &name)?;
    let both = in_line(&name, 2);
    assert_eq!(both[0], held[0], "the holder's key was touched");
    waits(&mut other, pair.1.name())?;
    assert_eq!(line(&name), both);
    assert_ne!(holder.release()?, Released::NotHeld);
    gets(&mut other)?;
    assert_eq!(
        line(&name),
        [both[1].as_str()],
        "it holds by the key with which it waited"
    );

    if pair.0.can_try() {
        assert_eq!(holder.acquire(&name, Some(LONG), ONCE)?, Acquired::Busy);
    }
    assert_ne!(other.release()?, Released::NotHeld);
    in_line(&name, 0);
    Ok(())
}

/// A waiter that times out leaves the line as it was.
pub(crate) fn gives_up(pair: (Library, Library)) -> Result<(), Fault> {
    let (name, mut holder, mut other) = both(pair)?;
    assert_eq!(holder.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    let held = in_line(&name, 1);
    assert_eq!(
        other.acquire(&name, Some(LONG), Duration::from_secs(1))?,
        Acquired::Busy
    );
    assert_eq!(in_line(&name, 1), held);
    assert_ne!(holder.release()?, Released::NotHeld);
    in_line(&name, 0);
    Ok(())
}

/// The waiter gets the lock of a killed holder after the lease, and not before.
pub(crate) fn crashes(pair: (Library, Library)) -> Result<(), Fault> {
    let (name, mut holder, mut other) = both(pair)?;
    let asked = Instant::now();
    assert_eq!(holder.acquire(&name, Some(SHORT), PATIENCE)?, Acquired::Yes);
    begin(&mut other, &name)?;
    in_line(&name, 2);
    holder.crash();
    gets(&mut other)?;
    let after = asked.elapsed();
    assert!(
        after + SLACK >= SHORT,
        "the lock was free after {after:?} of a lease of {SHORT:?}"
    );
    assert_ne!(other.release()?, Released::NotHeld);
    in_line(&name, 0);
    Ok(())
}

/// A waiter that is killed is passed over.
pub(crate) fn crashes_in_line(pair: (Library, Library)) -> Result<(), Fault> {
    let (name, mut waiter, mut last) = both(pair)?;
    let mut holder = start(pair.1)?;
    assert_eq!(holder.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    let asking = palisade_interop::protocol::Request::Acquire {
        name: name.clone(),
        lease: Some(SHORT),
        wait: PATIENCE,
    };
    waiter.begin(&asking)?;
    let dead = in_line(&name, 2)[1].clone();
    begin(&mut last, &name)?;
    in_line(&name, 3);
    waiter.crash();
    assert_ne!(holder.release()?, Released::NotHeld);
    gets(&mut last)?;
    assert!(
        !line(&name).contains(&dead),
        "it was served before the one that died"
    );
    assert_ne!(last.release()?, Released::NotHeld);
    in_line(&name, 0);
    Ok(())
}

/// A holder whose key was deleted by an operator cannot release what another holds by then.
pub(crate) fn releases_in_vain(pair: (Library, Library)) -> Result<(), Fault> {
    let (name, mut loser, mut holder) = both(pair)?;
    assert_eq!(loser.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    let lost = in_line(&name, 1);
    shared::etcd().etcdctl(&["del", &lost[0]]);
    assert_eq!(holder.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    let held = in_line(&name, 1);

    // etcdctl checks its session only, and never its key.
    let extended = loser.extend(LONG)?;
    assert!(
        extended == Extended::NotHeld || pair.0 != Library::Go,
        "{extended:?}"
    );
    assert_ne!(loser.release()?, Released::Yes);
    assert_eq!(line(&name), held, "the wrong one changed the lock");
    assert_eq!(holder.extend(LONG)?, Extended::Yes);
    assert_ne!(holder.release()?, Released::NotHeld);
    in_line(&name, 0);
    Ok(())
}

/// A live holder keeps the other out for longer than the lease.
pub(crate) fn extends(pair: (Library, Library)) -> Result<(), Fault> {
    let (name, mut holder, mut other) = both(pair)?;
    let asked = Instant::now();
    assert_eq!(holder.acquire(&name, Some(SHORT), PATIENCE)?, Acquired::Yes);
    begin(&mut other, &name)?;
    let both = in_line(&name, 2);
    while asked.elapsed() < SHORT.mul_f64(1.7) {
        waits(&mut other, pair.1.name())?;
        assert_eq!(holder.extend(SHORT)?, Extended::Yes);
    }
    assert_eq!(line(&name), both, "a claim queued again");
    assert_ne!(holder.release()?, Released::NotHeld);
    gets(&mut other)?;
    Ok(())
}
