//! Readers of ours beside theirs, and writers that exclude them.

use palisade_interop::redisson::{Library, Lock};
use palisade_interop::{Fault, Peer};
use palisade_testkit::shared;

use super::{PEERS, begin, gets, gives_back, gone, is_refused, ours, player, takes, waits};

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
