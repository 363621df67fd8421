//! The targets, and whether they were reached.

use std::fmt;
use std::time::Duration;

use super::spread::Spread;
use crate::figure;

/// For a cycle beside raw requests: most of it is the same two round trips on both sides.
const THROUGH_NETWORK: Wanted = Wanted::AtLeast(0.95);

/// A target.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    /// The target for a cycle beside raw requests, with or without a network in between.
    pub(crate) fn of_cycle(rtt: Option<Duration>, without: f64) -> Wanted {
        if rtt.is_some() {
            THROUGH_NETWORK
        } else {
            Wanted::AtLeast(without)
        }
    }

    fn met_by(self, value: f64) -> bool {
        match self {
            Wanted::AtLeast(bound) => value >= bound,
            Wanted::AtMost(bound) => value <= bound,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::AtLeast(bound) => write!(f, ">= {bound:.2}"),
            Wanted::AtMost(bound) => write!(f, "<= {bound:.2}"),
        }
    }
}

struct Verdict {
    what: String,
    value: f64,
    wanted: Wanted,
}

impl Verdict {
    fn word(&self) -> &'static str {
        if self.wanted.met_by(self.value) {
            "PASS"
        } else {
            "MISS"
        }
    }
}

/// All targets of a run.
#[derive(Default)]
pub(crate) struct Verdicts {
    all: Vec<Verdict>,
    unsound: bool,
}

impl Verdicts {
    /// Prints a figure with the target for its median, and keeps it for the table at the end.
    pub(crate) fn judge(&mut self, what: impl Into<String>, spread: Spread, wanted: Wanted) {
        let verdict = Verdict {
            what: what.into(),
            value: spread.median,
            wanted,
        };
        figure(
            &verdict.what,
            verdict.value,
            &format!("{spread} wanted {wanted} {}", verdict.word()),
        );
        self.all.push(verdict);
    }

    /// Judges a cycle against a side that is only an upper bound, unless a network lies between:
    /// then the bound is a target, too.
    pub(crate) fn judge_through_network(
        &mut self,
        what: impl Into<String>,
        spread: Spread,
        rtt: Option<Duration>,
    ) {
        match rtt {
            Some(_) => self.judge(what, spread, THROUGH_NETWORK),
            None => spread.print(&what.into(), ""),
        }
    }

    /// Records that a lock did not exclude, however fast it was.
    pub(crate) fn unsound(&mut self) {
        self.unsound = true;
    }

    /// Nothing but speed was missed.
    pub(crate) fn are_sound(&self) -> bool {
        !self.unsound
    }

    /// The table.
    pub(crate) fn print(&self) {
        println!("== summary");
        for verdict in &self.all {
            let Verdict {
                what,
                value,
                wanted,
            } = verdict;
            println!(
                "{what:<64} {value:>8.3}  wanted {wanted:<8} {}",
                verdict.word()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_itself_is_good_enough() {
        assert!(Wanted::AtLeast(0.9).met_by(0.9) && !Wanted::AtLeast(0.9).met_by(0.89));
        assert!(Wanted::AtMost(1.1).met_by(1.1) && !Wanted::AtMost(1.1).met_by(1.11));
        assert!(!Wanted::AtLeast(0.9).met_by(f64::NAN));
    }
}
