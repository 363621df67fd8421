//! The judge of a contest: reads what the witness saw, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A line of the witness' list, in the order in which the witness got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A visit has begun.
    Enter(String),
    /// It is about to end.
    Leave(String),
}

/// Something that must not happen under a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two were inside at once.
    Together {
        /// Who came.
        entered: String,
        /// Who was there.
        inside: Vec<String>,
    },
    /// The marks make no sense: a visit without a beginning, or with two.
    Broken(String),
    /// A visit that did not end.
    NeverLeft(String),
    /// Somebody overwrote what another had added.
    Lost {
        /// How many added one.
        added: u64,
        /// What came of it.
        counted: u64,
    },
    /// A participant found out that it did not hold the lock any more.
    Dispossessed(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Together { entered, inside } => write!(f, "{entered} entered while {} was inside", inside.join(" and ")),
            Self::Broken(visit) => write!(f, "the marks of {visit} make no sense"),
            Self::NeverLeft(visit) => write!(f, "{visit} never left"),
            Self::Lost { added, counted } => write!(f, "{added} additions gave {counted}"),
            Self::Dispossessed(visit) => write!(f, "{visit} lost the lock while it was inside"),
        }
    }
}

/// Judges a list of marks, and the counter to which every visit added one without an atomic operation.
#[must_use]
pub fn judge(marks: &[Mark], counted: u64) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    let mut inside = BTreeSet::new();
    for mark in marks {
        match mark {
            Mark::Enter(visit) => {
                if !inside.is_empty() {
                    violations.push(Violation::Together { entered: visit.clone(), inside: inside.iter().cloned().collect() });
                }
                if !seen.insert(visit) || !inside.insert(visit.clone()) {
                    violations.push(Violation::Broken(visit.clone()));
                }
            }
            Mark::Leave(visit) => {
                if !inside.remove(visit) {
                    violations.push(Violation::Broken(visit.clone()));
                }
            }
        }
    }
    violations.extend(inside.into_iter().map(Violation::NeverLeft));
    let added = seen.len() as u64;
    if added != counted {
        violations.push(Violation::Lost { added, counted });
    }
    violations
}

/// How often each participant entered: visits are `PARTICIPANT#NUMBER`.
#[must_use]
pub fn entries(marks: &[Mark]) -> BTreeMap<String, u64> {
    let mut entries = BTreeMap::new();
    for mark in marks {
        if let Mark::Enter(visit) = mark {
            let participant = visit.rsplit_once('#').map_or(visit.as_str(), |(participant, _)| participant);
            *entries.entry(participant.to_owned()).or_default() += 1;
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(text: &str) -> Vec<Mark> {
        let mark = |word: &str| match word.split_at(1) {
            ("+", visit) => Mark::Enter(visit.into()),
            (_, visit) => Mark::Leave(visit.into()),
        };
        text.split_whitespace().map(mark).collect()
    }

    #[test]
    fn one_after_the_other_is_as_it_should_be() {
        let marks = marks("+a#1 -a#1 +b#1 -b#1 +a#2 -a#2");
        assert_eq!(judge(&marks, 3), []);
        assert_eq!(entries(&marks), BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]));
    }

    #[test]
    fn two_at_once_are_found() {
        let together = |entered: &str, inside: &[&str]| Violation::Together {
            entered: entered.into(),
            inside: inside.iter().map(|visit| (*visit).to_owned()).collect(),
        };
        assert_eq!(judge(&marks("+a#1 +b#1 -a#1 -b#1"), 2), [together("b#1", &["a#1"])]);
        let three = [together("b#1", &["a#1"]), together("c#1", &["a#1", "b#1"])];
        assert_eq!(judge(&marks("+a#1 +b#1 +c#1 -c#1 -b#1 -a#1"), 3), three);
    }

    #[test]
    fn lost_additions_are_found() {
        assert_eq!(judge(&marks("+a#1 -a#1 +b#1 -b#1"), 1), [Violation::Lost { added: 2, counted: 1 }]);
    }

    #[test]
    fn marks_that_make_no_sense_are_found() {
        assert_eq!(judge(&marks("+a#1 -a#1 -a#1"), 1), [Violation::Broken("a#1".into())]);
        assert_eq!(judge(&marks("+a#1 -a#1 +a#1 -a#1"), 1)[0], Violation::Broken("a#1".into()));
        assert_eq!(judge(&marks("+a#1"), 1), [Violation::NeverLeft("a#1".into())]);
    }
}
