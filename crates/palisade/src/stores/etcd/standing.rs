//! Who holds, as a pure function of the keys in their order: strictly first come, first served.
//!
//! Whoever holds goes on holding whatever is added behind it, and whoever leaves only helps. So what one reader of the line has
//! seen stays true, until a holder itself leaves.

use super::entry::{Entry, Purpose};
use crate::error::{Error, Result};
use crate::store::{Kind, Mode};

/// Where one entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Held,
    /// It must wait for others to leave.
    Blocked(Blocker),
    /// What was to be done once is done.
    Sealed,
}

/// What a waiter waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// This key is to be deleted, or to become a reader's.
    Key(Vec<u8>),
    /// Of the permits before it, all but so many are to be given back.
    Permits {
        /// Who stands before it, with their permits.
        before: Vec<(Vec<u8>, u32)>,
        /// How many may stay.
        room: u64,
    },
}

impl Blocker {
    /// Takes up that a key was deleted; whether it is worth asking now.
    pub(super) fn deleted(&mut self, key: &[u8]) -> bool {
        match self {
            Blocker::Key(_) => true,
            Blocker::Permits { before, room } => {
                before.retain(|(earlier, _)| earlier != key);
                sum(before.iter().map(|(_, permits)| *permits)) <= *room
            }
        }
    }
}

fn sum(permits: impl Iterator<Item = u32>) -> u64 {
    permits.map(u64::from).sum()
}

fn permits_of(mode: Mode) -> u32 {
    match mode {
        Mode::Permits(count) => count,
        Mode::Exclusive | Mode::Shared => 0,
    }
}

/// Where the entry at this place stands. Of a line whose middle was not read the first, the one before and the entry itself are
/// enough for an exclusive claim.
pub(super) fn verdict(line: &[Entry], at: usize) -> Verdict {
    let (Some(own), Some(before)) = (line.get(at), line.get(..at)) else { return Verdict::Held };
    if before.iter().any(|entry| entry.purpose == Purpose::Sealed) {
        return Verdict::Sealed;
    }
    let blocker = match own.mode {
        Mode::Exclusive => before.last().map(|entry| Blocker::Key(entry.key.clone())),
        Mode::Shared => before.iter().rfind(|entry| entry.mode != Mode::Shared).map(|entry| Blocker::Key(entry.key.clone())),
        Mode::Permits(count) => {
            let limit = match own.kind {
                Kind::Semaphore { limit } => limit,
                Kind::Mutex | Kind::RwLock => 0,
            };
            let room = u64::from(limit.saturating_sub(count));
            let before: Vec<(Vec<u8>, u32)> =
                before.iter().map(|entry| (entry.key.clone(), permits_of(entry.mode).max(1))).collect();
            (sum(before.iter().map(|(_, permits)| *permits)) > room).then_some(Blocker::Permits { before, room })
        }
    };
    blocker.map_or(Verdict::Held, Verdict::Blocked)
}

/// How many entries from the first on hold.
pub(super) fn holders(line: &[Entry]) -> usize {
    (0..line.len()).take_while(|at| verdict(line, *at) == Verdict::Held).count()
}

/// One name serves one kind at a time: the kind of whoever is first.
pub(super) fn check_kind(line: &[Entry], kind: Kind) -> Result<()> {
    match line.first() {
        Some(first) if first.purpose != Purpose::Sealed && !first.kind.shares_line_with(kind) => {
            Err(Error::config(format!("the name serves as a {} now, and cannot serve as a {kind} at the same time", first.kind)))
        }
        _ => Ok(()),
    }
}
