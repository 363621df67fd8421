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

/// The participants that may be inside together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// One at a time.
    #[default]
    One,
    /// At most so many, of any kind.
    Few(usize),
    /// These participants with each other, and all others alone.
    Readers(BTreeSet<String>),
}

impl Rule {
    fn admits(&self, visit: &str, inside: &BTreeSet<String>) -> bool {
        match self {
            Self::One => inside.is_empty(),
            Self::Few(limit) => inside.len() < *limit,
            Self::Readers(_) => {
                inside.is_empty()
                    || inside
                        .iter()
                        .map(String::as_str)
                        .chain([visit])
                        .all(|one| !self.adds(one))
            }
        }
    }

    /// Whether this visit adds to the counter: only exclusive visits protect it.
    #[must_use]
    pub fn adds(&self, visit: &str) -> bool {
        match self {
            Self::One => true,
            Self::Few(limit) => *limit == 1,
            Self::Readers(readers) => !readers.contains(participant(visit)),
        }
    }
}

/// Something that must not happen under a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A participant entered that should have waited for those inside.
    Together {
        /// The visit that began.
        entered: String,
        /// The visits that had not ended.
        inside: Vec<String>,
    },
    /// The marks make no sense: a visit without a beginning, or with two.
    Broken(String),
    /// A visit that did not end.
    NeverLeft(String),
    /// An update of the counter was overwritten.
    Lost {
        /// How many added one.
        added: u64,
        /// The final count.
        counted: u64,
    },
    /// A participant found out that it did not hold the lock any more.
    Dispossessed(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Together { entered, inside } => write!(
                f,
                "{entered} entered while {} was inside",
                inside.join(" and ")
            ),
            Self::Broken(visit) => write!(f, "the marks of {visit} make no sense"),
            Self::NeverLeft(visit) => write!(f, "{visit} never left"),
            Self::Lost { added, counted } => write!(f, "{added} additions gave {counted}"),
            Self::Dispossessed(visit) => write!(f, "{visit} lost the lock while it was inside"),
        }
    }
}

/// Judges a list of marks, and the counter that every exclusive visit incremented without an atomic
/// operation.
#[must_use]
pub fn judge(rule: &Rule, marks: &[Mark], counted: u64) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    let mut inside = BTreeSet::new();
    for mark in marks {
        match mark {
            Mark::Enter(visit) => {
                if !rule.admits(visit, &inside) {
                    violations.push(Violation::Together {
                        entered: visit.clone(),
                        inside: inside.iter().cloned().collect(),
                    });
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
    let added = seen.iter().filter(|visit| rule.adds(visit)).count() as u64;
    if added != counted {
        violations.push(Violation::Lost { added, counted });
    }
    violations
}

/// How many were inside at once, at the most.
#[must_use]
pub fn most(marks: &[Mark]) -> usize {
    let (mut inside, mut most) = (0_usize, 0);
    for mark in marks {
        match mark {
            Mark::Enter(_) => inside += 1,
            Mark::Leave(_) => inside = inside.saturating_sub(1),
        }
        most = most.max(inside);
    }
    most
}

/// Visits are `PARTICIPANT#NUMBER`.
fn participant(visit: &str) -> &str {
    visit
        .rsplit_once('#')
        .map_or(visit, |(participant, _)| participant)
}

/// How often each participant entered.
#[must_use]
pub fn entries(marks: &[Mark]) -> BTreeMap<String, u64> {
    let mut entries = BTreeMap::new();
    for mark in marks {
        if let Mark::Enter(visit) = mark {
            *entries.entry(participant(visit).to_owned()).or_default() += 1;
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
        assert_eq!(judge(&Rule::One, &marks, 3), []);
        assert_eq!(
            entries(&marks),
            BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)])
        );
    }

    #[test]
    fn two_at_once_are_found() {
        let together = |entered: &str, inside: &[&str]| Violation::Together {
            entered: entered.into(),
            inside: inside.iter().map(|visit| (*visit).to_owned()).collect(),
        };
        assert_eq!(
            judge(&Rule::One, &marks("+a#1 +b#1 -a#1 -b#1"), 2),
            [together("b#1", &["a#1"])]
        );
        let three = [together("b#1", &["a#1"]), together("c#1", &["a#1", "b#1"])];
        assert_eq!(
            judge(&Rule::One, &marks("+a#1 +b#1 +c#1 -c#1 -b#1 -a#1"), 3),
            three
        );
    }

    #[test]
    fn as_many_as_the_rule_says_are_as_it_should_be() {
        let three = marks("+a#1 +b#1 +c#1 -c#1 -b#1 -a#1");
        assert_eq!(judge(&Rule::Few(3), &three, 0), []);
        assert_eq!(judge(&Rule::Few(2), &three, 0).len(), 1);
        assert_eq!((most(&three), most(&marks("+a#1 -a#1 +b#1 -b#1"))), (3, 1));
        let readers =
            |names: &[&str]| Rule::Readers(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(judge(&readers(&["a", "b", "c"]), &three, 0), []);
        assert_eq!(
            judge(&readers(&["a", "b"]), &three, 1).len(),
            1,
            "c writes, and came to two readers"
        );
        assert_eq!(
            judge(&readers(&["b", "c"]), &three, 1).len(),
            2,
            "a writes, and two readers came"
        );
        assert_eq!(
            judge(&readers(&["a"]), &marks("+a#1 -a#1 +b#1 -b#1"), 1),
            []
        );
        assert_eq!(
            judge(&readers(&["a"]), &marks("+a#1 -a#1 +b#1 -b#1"), 0),
            [Violation::Lost {
                added: 1,
                counted: 0
            }]
        );
    }

    #[test]
    fn lost_additions_are_found() {
        assert_eq!(
            judge(&Rule::One, &marks("+a#1 -a#1 +b#1 -b#1"), 1),
            [Violation::Lost {
                added: 2,
                counted: 1
            }]
        );
    }

    #[test]
    fn marks_that_make_no_sense_are_found() {
        assert_eq!(
            judge(&Rule::One, &marks("+a#1 -a#1 -a#1"), 1),
            [Violation::Broken("a#1".into())]
        );
        assert_eq!(
            judge(&Rule::One, &marks("+a#1 -a#1 +a#1 -a#1"), 1)[0],
            Violation::Broken("a#1".into())
        );
        assert_eq!(
            judge(&Rule::One, &marks("+a#1"), 1),
            [Violation::NeverLeft("a#1".into())]
        );
    }
}
