//! Which keys of a line hold, as a pure function of the keys in their order: strictly first come,
//! first served.
//!
//! A key that holds goes on holding when keys are added behind it or others leave. So a verdict
//! stays true until the holder itself leaves.
//!
//! These rules are not part of the session kit: permits are counted here, in one line with all
//! other modes, while in ZooKeeper the recipes of Curator and kazoo compare the names of nodes, and
//! have permits elsewhere.

use super::entry::{Entry, Purpose};
use crate::error::Result;
use crate::line::ClaimError;
use crate::name::Name;
use crate::store::{Kind, Mode};

/// Whether one entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Held,
    /// It waits for others to leave.
    Blocked(Blocker),
    /// The name is sealed before it.
    Sealed,
}

/// What a waiter waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// For this key, created at this revision, to be deleted, or to become a reader's. A key that
    /// got permits while others wait is written, and its waiter looks then, too.
    Key(Vec<u8>, i64),
    /// For all these keys, created at these revisions, to be deleted or to become readers'. The
    /// last one is watched.
    Writers(Vec<(Vec<u8>, i64)>),
    /// For all but so many of the permits before it to be given back. All entries before it hold:
    /// behind another waiter it would wait for that one.
    Permits {
        /// The keys before it, with their permits.
        before: Vec<(Vec<u8>, u32)>,
        /// How many permits may stay.
        room: u64,
    },
}

impl Blocker {
    /// The key that is watched; none where it is the whole line.
    pub(super) fn watched(&self) -> Option<&Vec<u8>> {
        match self {
            Blocker::Key(key, _) => Some(key),
            Blocker::Writers(keys) => keys.last().map(|(key, _)| key),
            Blocker::Permits { .. } => None,
        }
    }

    /// Notes that a key was deleted; whether it is worth looking now.
    pub(super) fn deleted(&mut self, key: &[u8]) -> bool {
        match self {
            Blocker::Key(..) | Blocker::Writers(_) => true,
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

/// How many entries from the first on are enough to know whether permits are free, for a semaphore
/// of this limit: each of them has one permit at the least.
pub(super) fn enough_of(kind: Kind) -> i64 {
    match kind {
        Kind::Semaphore { limit } => i64::from(limit),
        Kind::Mutex | Kind::RwLock => 1,
    }
}

/// The verdict on the entry at this index. The middle of a line need not be read: an exclusive
/// claim needs the first entry, the one before it and itself; a claim for permits needs the first
/// [`enough_of`] entries, the one before it and itself.
pub(super) fn verdict(line: &[Entry], at: usize) -> Verdict {
    let (Some(own), Some(before)) = (line.get(at), line.get(..at)) else {
        return Verdict::Held;
    };
    if before.iter().any(|entry| entry.purpose == Purpose::Sealed) {
        return Verdict::Sealed;
    }
    let blocker = match own.mode {
        Mode::Exclusive => before
            .last()
            .map(|entry| Blocker::Key(entry.key.clone(), entry.revision)),
        Mode::Shared => {
            let writers = before.iter().filter(|entry| entry.mode != Mode::Shared);
            let writers: Vec<(Vec<u8>, i64)> = writers
                .map(|entry| (entry.key.clone(), entry.revision))
                .collect();
            (!writers.is_empty()).then_some(Blocker::Writers(writers))
        }
        Mode::Permits(count) => {
            let limit = match own.kind {
                Kind::Semaphore { limit } => limit,
                Kind::Mutex | Kind::RwLock => 0,
            };
            let room = u64::from(limit.saturating_sub(count));
            let taken = |entry: &Entry| permits_of(entry.mode).max(1);
            let is_full = sum(before.iter().map(taken)) > room;
            is_full.then(|| match before.last() {
                Some(last) if holders(before) < before.len() => {
                    Blocker::Key(last.key.clone(), last.revision)
                }
                _ => Blocker::Permits {
                    before: before
                        .iter()
                        .map(|entry| (entry.key.clone(), taken(entry)))
                        .collect(),
                    room,
                },
            })
        }
    };
    blocker.map_or(Verdict::Held, Verdict::Blocked)
}

/// How many entries from the first on hold: as [`verdict`] says of each, but in one pass, since
/// lines may be long.
pub(super) fn holders(line: &[Entry]) -> usize {
    let (mut sealed, mut others, mut taken) = (false, false, 0_u64);
    line.iter()
        .enumerate()
        .take_while(|(at, entry)| {
            let holds = !sealed
                && match (entry.mode, entry.kind) {
                    (Mode::Exclusive, _) => *at == 0,
                    (Mode::Shared, _) => !others,
                    (Mode::Permits(count), Kind::Semaphore { limit }) => {
                        taken <= u64::from(limit.saturating_sub(count))
                    }
                    (Mode::Permits(_), Kind::Mutex | Kind::RwLock) => taken == 0,
                };
            sealed |= entry.purpose == Purpose::Sealed;
            others |= entry.mode != Mode::Shared;
            taken += u64::from(permits_of(entry.mode).max(1));
            holds
        })
        .count()
}

/// One name serves one kind at a time: the kind of its first entry.
pub(super) fn check_kind(name: &Name, line: &[Entry], asked: Kind) -> Result<()> {
    match line.first() {
        Some(first) if first.purpose != Purpose::Sealed && !first.kind.shares_line_with(asked) => {
            let in_use = first.kind;
            Err(ClaimError::KindConflict { in_use, asked }.of(name))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::proto::KeyValue;
    use super::*;

    /// A line of keys with these words in their values; an empty one is a peer's.
    fn line(words: &[&str]) -> Vec<Entry> {
        let kvs = words.iter().enumerate().map(|(at, words)| KeyValue {
            key: format!("name/{at}").into_bytes(),
            create_revision: at as i64 + 10,
            mod_revision: at as i64 + 10,
            value: if words.is_empty() {
                Vec::new()
            } else {
                format!("palisade:1:{words}").into_bytes()
            },
            lease: 1,
        });
        Entry::read_all(kvs.collect()).expect("a line")
    }

    const READER: &str = "kind=rwlock&mode=shared";
    const WRITER: &str = "kind=rwlock&mode=exclusive";
    const ONE: &str = "kind=semaphore&limit=3&permits=1";
    const TWO: &str = "kind=semaphore&limit=3&permits=2";

    #[test]
    fn holders_are_those_that_fit_from_the_first_on() {
        for (words, held) in [
            (vec![], 0),
            (vec!["", ""], 1),
            (vec![READER, READER, WRITER, READER], 2),
            (vec![WRITER, READER], 1),
            // What a peer writes is exclusive.
            (vec![READER, "", READER], 1),
            (vec![ONE, TWO, ONE], 2),
            // A big one is not overtaken.
            (vec![TWO, TWO, ONE], 1),
        ] {
            assert_eq!(holders(&line(&words)), held, "{words:?}");
        }
        // One by one it is the same, whatever stands in line.
        let all = ["", READER, WRITER, ONE, TWO, "purpose=sealed&kind=mutex"];
        for number in 0..all.len().pow(4) {
            let words: Vec<&str> = (0..4)
                .map(|digit| all[number / all.len().pow(digit) % all.len()])
                .collect();
            let line = line(&words);
            let held = (0..line.len())
                .take_while(|at| verdict(&line, *at) == Verdict::Held)
                .count();
            assert_eq!(holders(&line), held, "{words:?}");
        }
    }

    #[test]
    fn a_waiter_waits_for_no_more_than_it_must() {
        let key = |at: usize| {
            Verdict::Blocked(Blocker::Key(
                format!("name/{at}").into_bytes(),
                at as i64 + 10,
            ))
        };
        assert_eq!(
            verdict(&line(&["", "", ""]), 2),
            key(1),
            "an exclusive one for the one before it"
        );
        let writers = |of: &[usize]| {
            let made = |at: &usize| (format!("name/{at}").into_bytes(), *at as i64 + 10);
            Verdict::Blocked(Blocker::Writers(of.iter().map(made).collect()))
        };
        assert_eq!(
            verdict(&line(&[WRITER, READER, READER]), 2),
            writers(&[0]),
            "a reader for the writers"
        );
        assert_eq!(
            verdict(&line(&[WRITER, READER, "", READER]), 3),
            writers(&[0, 2])
        );
        assert_eq!(
            verdict(&line(&["purpose=sealed&kind=mutex", ""]), 1),
            Verdict::Sealed
        );
        let Verdict::Blocked(mut blocker) = verdict(&line(&[TWO, ONE, TWO]), 2) else {
            panic!("five of three")
        };
        assert!(!blocker.deleted(b"name/1"), "four of three");
        assert!(blocker.deleted(b"name/0"));
        assert_eq!(
            verdict(&line(&[TWO, TWO, ONE]), 2),
            key(1),
            "permits behind a waiter for that one"
        );
    }

    /// Entries that are not read change no verdict.
    #[test]
    fn permits_need_only_the_first_of_a_long_line() {
        let all = ["", ONE, TWO];
        for number in 0..all.len().pow(6) {
            let words: Vec<&str> = (0..6)
                .map(|digit| all[number / all.len().pow(digit) % all.len()])
                .collect();
            let (whole, at) = (line(&words), 5);
            if whole[at].mode == Mode::Exclusive {
                continue;
            }
            let enough = usize::try_from(enough_of(whole[at].kind)).expect("a number");
            let mut part = whole[..enough].to_vec();
            part.extend_from_slice(&whole[at - 1..=at]);
            assert_eq!(
                verdict(&part, part.len() - 1),
                verdict(&whole, at),
                "{words:?}"
            );
        }
    }

    #[test]
    fn another_kind_is_named() {
        let name = Name::new("pool").unwrap();
        let error = check_kind(&name, &line(&[TWO]), Kind::Mutex).expect_err("refused");
        assert!(
            error
                .to_string()
                .contains("pool is in use as a semaphore of 3")
                && error.to_string().contains("mutex"),
            "{error}"
        );
        assert!(check_kind(&name, &line(&[""]), Kind::RwLock).is_ok());
    }

    #[test]
    fn a_newer_version_is_refused() {
        let kv = KeyValue {
            value: b"palisade:2:anything".to_vec(),
            ..KeyValue::default()
        };
        assert_eq!(
            Entry::read(kv).expect_err("refused").kind(),
            crate::ErrorKind::Protocol
        );
    }
}
