//! What was wanted, and whether it was reached.

use std::fmt;
use std::time::Duration;

use super::spread::Spread;
use crate::figure;

/// Of a cycle by raw requests: most of it is the same two round trips on both sides.
const THROUGH_NETWORK: Wanted = Wanted::AtLeast(0.95);

/// How good it should be.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    /// Of a cycle by raw requests, with a network between or without.
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

/// All that was wanted of a run.
#[derive(Default)]
pub(crate) struct Verdicts {
    all: Vec<Verdict>,
    unsound: bool,
}

impl Verdicts {
    /// Prints a figure with what was wanted of its median, and keeps it for the table at the end.
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

    /// Judges a cycle by that of a side that is only a bound, unless a network lies between: then it is to be reached, too.
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

    /// Notes that a lock did not do what it is for, however fast.
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
