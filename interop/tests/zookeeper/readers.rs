//! Readers of ours beside theirs, and writers that exclude them.

use palisade_interop::zookeeper::{Program, Recipe};
use palisade_interop::{Acquired, Fault, Participant, Peer};
use palisade_testkit::shared;

use crate::{LONG, ONCE, become_again, begin, gets, gives_back, ours, start, takes, waits};

/// The readers of both read at once. A writer waits for all of them; a reader that comes after it
/// waits for the writer; and all readers behind one writer come in together.
fn around(readers: &mut [Peer], writer: &mut Peer, late: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("readers");
    for reader in &mut *readers {
        takes(reader, &name)?;
    }
    assert_eq!(writer.acquire(&name, Some(LONG), ONCE)?, Acquired::Busy);
    begin(writer, &name)?;
    begin(late, &name)?;
    for reader in &mut *readers {
        waits(writer, "a writer behind readers")?;
        waits(late, "a reader behind a writer that waits")?;
        gives_back(reader)?;
    }
    gets(writer)?;
    for reader in &mut *readers {
        assert_eq!(reader.acquire(&name, Some(LONG), ONCE)?, Acquired::Busy);
        begin(reader, &name)?;
    }
    waits(late, "a reader behind a writer that holds")?;
    gives_back(writer)?;
    gets(late)?;
    readers.iter_mut().try_for_each(gets)?;
    gives_back(late)?;
    readers.iter_mut().try_for_each(gives_back)?;
    become_again(&name, &[]);
    Ok(())
}

fn both_ways(program: Program) -> Result<(), Fault> {
    let ours = ours(program);
    let mut readers = [start(ours, Recipe::Read)?, start(program, Recipe::Read)?];
    let (mut our_late, mut our_writer) = (start(ours, Recipe::Read)?, start(ours, Recipe::Write)?);
    let mut their_writer = start(program, Recipe::Write)?;
    around(&mut readers, &mut their_writer, &mut our_late)?;
    readers.swap(0, 1);
    around(&mut readers, &mut our_writer, &mut our_late)?;
    // And a reader of theirs that comes late, behind a writer of ours.
    let [mut theirs, our] = readers;
    around(&mut [our, our_late], &mut our_writer, &mut theirs)
}

#[test]
fn curator() -> Result<(), Fault> {
    both_ways(Program::Curator)
}

#[test]
fn system_curator() -> Result<(), Fault> {
    both_ways(Program::SystemCurator)
}

#[test]
fn kazoo() -> Result<(), Fault> {
    both_ways(Program::Kazoo)
}
