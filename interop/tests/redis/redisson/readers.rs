//! Readers of ours beside theirs, and writers that exclude them.

use std::time::Instant;

use palisade_interop::redisson::{Library, Lock, Program};
use palisade_interop::{Acquired, Fault, Participant, Peer};
use palisade_testkit::shared;

use super::{
    LONG, PATIENCE, PEERS, SHORT, alone, begin, gets, gives_back, gone, is_refused, ours, player,
    takes, waits,
};

/// The readers of both read at once. A writer waits for all of them, and they for the writer.
fn around(readers: &mut [Peer], writer: &mut Peer) -> Result<(), Fault> {
    let name = shared::name("readers");
    for reader in &mut *readers {
        takes(reader, &name)?;
    }
    is_refused(writer, &name)?;
    begin(writer, &name)?;
    for reader in &mut *readers {
        waits(writer)?;
        gives_back(reader)?;
    }
    gets(writer)?;
    for reader in &mut *readers {
        is_refused(reader, &name)?;
        begin(reader, &name)?;
    }
    for reader in &mut *readers {
        waits(reader)?;
    }
    gives_back(writer)?;
    readers.iter_mut().try_for_each(gets)?;
    is_refused(writer, &name)?;
    readers.iter_mut().try_for_each(gives_back)?;
    gone(&name);
    Ok(())
}

/// A reader with a long lease leaves, another is dead: its short lease counts from then on. A writer
/// that was told of the long one learns that.
fn a_wait_becomes_shorter(leaves: Program, dies: Program, writes: Program) -> Result<(), Fault> {
    let name = shared::name("readers");
    let (mut dies, mut leaves) = (
        alone(Library(dies, Lock::Read))?,
        player(Library(leaves, Lock::Read))?,
    );
    let mut writer = player(Library(writes, Lock::Write))?;
    takes(&mut leaves, &name)?;
    assert_eq!(dies.acquire(&name, Some(SHORT), PATIENCE)?, Acquired::Yes);
    begin(&mut writer, &name)?;
    waits(&mut writer)?;
    dies.crash();
    gives_back(&mut leaves)?;
    let since = Instant::now();
    gets(&mut writer)?;
    let after = since.elapsed();
    assert!(
        after < LONG / 4,
        "{writes:?} waited for {after:?} more, because another reader had a lease of {LONG:?}"
    );
    gives_back(&mut writer)?;
    gone(&name);
    Ok(())
}

/// Ours looks again by itself, and tells Redisson, which does not.
#[test]
fn a_dead_reader_is_waited_for_no_longer_than_its_lease() -> Result<(), Fault> {
    let new = Program::New;
    a_wait_becomes_shorter(Program::Ours, new, new)?;
    a_wait_becomes_shorter(new, Program::Ours, Program::Ours)
}

#[test]
fn read_together_and_wait_for_writers() -> Result<(), Fault> {
    for program in PEERS {
        let mut readers = [ours(), program, ours(), program]
            .map(|program| player(Library(program, Lock::Read)))
            .into_iter()
            .collect::<Result<Vec<Peer>, Fault>>()?;
        for writer in [ours(), program] {
            let mut writer = player(Library(writer, Lock::Write))?;
            around(&mut readers, &mut writer)?;
            // The last one to leave is of the other program now.
            readers.reverse();
            around(&mut readers, &mut writer)?;
        }
    }
    Ok(())
}
