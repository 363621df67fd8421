//! Our readers share, and are exclusive to every other program.

use palisade_interop::etcd::Library;
use palisade_interop::{Acquired, Fault, Participant, Released};
use palisade_testkit::shared;

use crate::{LONG, PATIENCE, begin, gets, in_line, start, waits};

/// A peer waits for all readers, also for one that came before it while another already read; and a
/// reader that comes after it waits for the peer.
fn around(peer: Library) -> Result<(), Fault> {
    let name = shared::name("readers");
    let (mut one, mut two, mut late) = (
        start(Library::OurReader)?,
        start(Library::OurReader)?,
        start(Library::OurReader)?,
    );
    let mut writer = start(peer)?;
    assert_eq!(one.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    assert_eq!(
        two.acquire(&name, Some(LONG), PATIENCE)?,
        Acquired::Yes,
        "two read at once"
    );
    begin(&mut writer, &name)?;
    in_line(&name, 3);
    begin(&mut late, &name)?;
    in_line(&name, 4);
    waits(&mut writer, peer.name())?;
    waits(&mut late, "a reader behind a peer")?;
    // The last reader to leave admits it, in whatever order they came.
    assert_eq!(two.release()?, Released::Yes);
    waits(&mut writer, peer.name())?;
    assert_eq!(one.release()?, Released::Yes);
    gets(&mut writer)?;
    waits(&mut late, "a reader behind a peer that holds")?;
    assert_ne!(writer.release()?, Released::NotHeld);
    gets(&mut late)?;
    assert_eq!(
        two.acquire(&name, Some(LONG), PATIENCE)?,
        Acquired::Yes,
        "two read at once again"
    );
    Ok(())
}

#[test]
fn go_waits_for_our_readers_and_they_for_it() -> Result<(), Fault> {
    around(Library::Go)
}

#[test]
fn etcdctl_waits_for_our_readers_and_they_for_it() -> Result<(), Fault> {
    around(Library::EtcdctlHolds)
}

/// Behind one holder, all readers enter together.
#[test]
fn readers_behind_a_peer_come_in_together() -> Result<(), Fault> {
    let name = shared::name("readers");
    let mut holder = start(Library::Go)?;
    assert_eq!(holder.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    let mut readers = (0..3)
        .map(|_| start(Library::OurReader))
        .collect::<Result<Vec<_>, Fault>>()?;
    for (index, reader) in readers.iter_mut().enumerate() {
        begin(reader, &name)?;
        in_line(&name, index + 2);
    }
    readers
        .iter_mut()
        .try_for_each(|reader| waits(reader, "a reader"))?;
    assert_eq!(holder.release()?, Released::Yes);
    readers.iter_mut().try_for_each(gets)?;
    Ok(())
}
