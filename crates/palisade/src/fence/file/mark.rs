//! The mark (the highest fence seen) and the turn to change it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use sha2::{Digest, Sha256};

use super::error::{IoContext, WriteError};
use super::{absent_as_none, open_itself};
use crate::fence::Fence;

/// Format version 1. A later one must change this word, so that this version refuses it.
const FORMAT: &str = "palisade:1:fence";

/// A note for people who find the lock file. A lock file that is not empty says that there must be
/// a mark.
const NOTE: &[u8] = b"Palisade locks this file while it writes the file beside it. Keep it, and keep the .fence.mark file.\n";

/// `palisade:1:fence 42 1a2b3c4d`: readable, and a flipped bit does not make another number.
pub(super) fn encode(fence: Fence) -> Vec<u8> {
    let body = format!("{FORMAT} {fence}");
    format!("{body} {}\n", checksum(&body)).into_bytes()
}

fn checksum(body: &str) -> String {
    Sha256::digest(body)
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn decode(text: &[u8]) -> Result<Fence, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "is not text")?;
    if !text.starts_with(FORMAT) {
        return Err("is not in a format that this version knows");
    }
    let (body, sum) = text
        .strip_suffix('\n')
        .and_then(|line| line.rsplit_once(' '))
        .ok_or("is cut short")?;
    if checksum(body) != sum {
        return Err("does not match its checksum");
    }
    let number = body
        .strip_prefix(FORMAT)
        .and_then(|rest| rest.strip_prefix(' '))
        .ok_or("holds no fence")?;
    number
        .parse()
        .ok()
        .filter(|fence: &Fence| !fence.is_none())
        .ok_or("holds no fence")
}

/// The highest fence seen. Needs no turn: the mark is replaced by rename.
pub(super) fn load(mark: &Path, lock: &Path) -> Result<Option<Fence>, WriteError> {
    let corrupt = |why| WriteError::Corrupt {
        path: mark.to_path_buf(),
        why,
    };
    // The note is written after the mark, so it is read before the mark: a first write in between
    // must not look like a loss.
    let noted = absent_as_none(fs::symlink_metadata(lock))
        .context("look at", lock)?
        .is_some_and(|lock| lock.len() > 0);
    let mut text = Vec::new();
    let opened = open_itself(OpenOptions::new().read(true), mark)
        .and_then(|mut file| file.read_to_end(&mut text));
    match absent_as_none(opened).context("read", mark)?.map(|_| text) {
        Some(text) => decode(&text).map(Some).map_err(corrupt),
        None if noted => Err(corrupt("is missing")),
        None => Ok(None),
    }
}

/// The right to change mark and contents, until dropped. By `flock`, so that it ends with the
/// process too.
#[derive(Debug)]
pub(super) struct Turn {
    lock: File,
    path: PathBuf,
}

impl Turn {
    /// Waits until no other writer has the turn.
    pub(super) fn wait(path: &Path) -> Result<Turn, WriteError> {
        let lock = open_itself(
            OpenOptions::new().read(true).append(true).create(true),
            path,
        )
        .context("open", path)?;
        retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive)).context("lock", path)?;
        Ok(Turn {
            lock,
            path: path.to_path_buf(),
        })
    }

    /// From now on a missing mark is an error, not a new file. Only to be called with the mark on
    /// disk.
    pub(super) fn note_that_there_is_a_mark(&self) -> Result<(), WriteError> {
        if self.lock.metadata().context("look at", &self.path)?.len() > 0 {
            return Ok(());
        }
        (&self.lock)
            .write_all(NOTE)
            .and_then(|()| self.lock.sync_all())
            .context("write", &self.path)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Closing is not enough when a forked child still has a copy of the descriptor. A failure
        // here cannot be handled.
        let _ = retry_on_intr(|| flock(&self.lock, FlockOperation::Unlock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_as_written() {
        for number in [1, 42, Fence::MAX.get()] {
            let fence = Fence::new(number).unwrap();
            assert_eq!(decode(&encode(fence)), Ok(fence));
        }
    }

    #[test]
    fn every_single_byte_change_is_noticed() {
        let good = encode(Fence::new(1_234_567).unwrap());
        for at in 0..good.len() {
            for flip in 1..=255u8 {
                let mut bad = good.clone();
                bad[at] ^= flip;
                assert!(decode(&bad).is_err(), "{:?}", String::from_utf8_lossy(&bad));
            }
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_later_format_is_told_from_damage() {
        let body = "palisade:2:fence 5";
        let whole = format!("{body} {}\n", checksum(body));
        assert_eq!(
            decode(whole.as_bytes()),
            Err("is not in a format that this version knows")
        );
    }

    #[test]
    fn a_mark_of_zero_is_no_mark() {
        assert_eq!(decode(&encode(Fence::NONE)), Err("holds no fence"));
    }
}
