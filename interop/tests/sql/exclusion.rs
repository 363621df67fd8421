//! Rules between two programs: each of them holds once.

use std::time::{Duration, Instant};

use palisade_interop::protocol::Request;
use palisade_interop::sql::{Library, Table};
use palisade_interop::{Acquired, Fault, Participant, Released};

use crate::{LONG, ONCE, PATIENCE, Server, name};

const NAME: &str = "shared";

/// How long a waiter must not get the lock.
const A_WHILE: Duration = Duration::from_millis(300);

/// The expiry of a plain table counts in whole seconds, and that of a peer is cut off.
const SLACK: Duration = Duration::from_secs(1);

/// The other is refused, waits in vain, and gets the lock after the release.
pub(crate) fn holds(server: &Server, holder: Library, other: Library) -> Result<(), Fault> {
    let (mut holder, mut other) = (server.start(holder)?, server.start(other)?);
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    assert_eq!(other.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
    other.begin(&Request::Acquire {
        name: NAME.into(),
        lease: Some(LONG),
        wait: PATIENCE,
    })?;
    assert_eq!(
        other.awaited::<Acquired>(A_WHILE)?,
        None,
        "it waits for the holder"
    );
    assert_ne!(holder.release()?, Released::NotHeld);
    assert_eq!(other.awaited(PATIENCE)?, Some(Acquired::Yes));
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
    assert_ne!(other.release()?, Released::NotHeld);
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    assert_ne!(holder.release()?, Released::NotHeld);
    Ok(())
}

/// The lock of a killed holder is free after its lease, and not before.
pub(crate) fn crashes(server: &Server, holder: Library, other: Library) -> Result<(), Fault> {
    let (mut holder, mut other) = (server.start(holder)?, server.start(other)?);
    let lease = Duration::from_secs(3);
    let asked = Instant::now();
    assert_eq!(holder.acquire(NAME, Some(lease), ONCE)?, Acquired::Yes);
    holder.crash();
    assert_eq!(other.acquire(NAME, Some(LONG), PATIENCE)?, Acquired::Yes);
    let after = asked.elapsed();
    assert!(
        after + SLACK >= lease,
        "the lock was free after {after:?} of a lease of {lease:?}"
    );
    assert_ne!(other.release()?, Released::NotHeld);
    Ok(())
}

/// The session lock of a killed holder is free at once: the server sees its connection end.
pub(crate) fn crashes_at_once(
    server: &Server,
    holder: Library,
    other: Library,
) -> Result<(), Fault> {
    let (mut holder, mut other) = (server.start(holder)?, server.start(other)?);
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    holder.crash();
    assert_eq!(other.acquire(NAME, Some(LONG), PATIENCE)?, Acquired::Yes);
    assert_ne!(other.release()?, Released::NotHeld);
    Ok(())
}

/// A holder of ours whose lock an operator gave to another cannot release it.
pub(crate) fn releases_in_vain(server: &Server, table: Table) -> Result<(), Fault> {
    let mut loser = server.start(Library::Ours(table))?;
    let mut holder = server.start(table.peer())?;
    assert_eq!(loser.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    server.sql(match table {
        Table::Simple => "DELETE FROM distributed_lock",
        Table::Shedlock => "UPDATE shedlock SET lock_until = locked_at",
        Table::Session => "SELECT 1",
    });
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    let rows = format!("SELECT * FROM {}", name(table));
    let before = server.sql(&rows);
    assert_eq!(loser.release()?, Released::NotHeld);
    assert_eq!(server.sql(&rows), before, "the wrong one changed the lock");
    assert_eq!(loser.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
    assert_ne!(holder.release()?, Released::NotHeld);
    Ok(())
}
