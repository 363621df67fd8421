use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use crate::check::{Rule, Violation, entries, judge, most};
use crate::participant::{Acquired, Extended, Fault, Participant, Released};
use crate::witness::{Visitor, Witness};

/// Every so many visits the lease is extended too.
const EXTEND_EVERY: u64 = 8;

/// A participant and its name, which is unique in the contest.
pub type Contestant = (String, Box<dyn Participant>);

/// Participants that enter and leave, as often as the lock lets them.
#[derive(Clone, Debug)]
pub struct Contest {
    /// The lock's name.
    pub name: String,
    /// Long enough that no honest participant loses it on a slow machine.
    pub lease: Duration,
    /// How long one attempt waits.
    pub wait: Duration,
    /// How long a visit takes beside its own work.
    pub stay: Duration,
    /// The longest pause of a participant after a visit. Without it the last visitor would always
    /// be the first to return.
    pub away: Duration,
    /// The contest ends after this.
    pub length: Duration,
    /// The participants that may be inside together.
    pub rule: Rule,
}

impl Contest {
    /// With visits as short as they can be.
    pub fn new(name: impl Into<String>, length: Duration) -> Self {
        Self {
            name: name.into(),
            lease: Duration::from_secs(20),
            wait: Duration::from_secs(1),
            stay: Duration::ZERO,
            away: Duration::from_millis(20),
            length,
            rule: Rule::One,
        }
    }

    /// Lets them begin, and judges when the time is over.
    ///
    /// # Errors
    ///
    /// When a participant or the witness does not answer.
    pub fn run(
        &self,
        participants: &mut [Contestant],
        witness: &Witness,
    ) -> Result<Outcome, Fault> {
        let names: Vec<String> = participants.iter().map(|(name, _)| name.clone()).collect();
        let end = Instant::now() + self.length;
        let dispossessed = thread::scope(|scope| {
            let playing: Vec<_> = participants
                .iter_mut()
                .map(|(name, participant)| {
                    scope.spawn(move || {
                        self.play(name, participant.as_mut(), witness.visitor()?, end)
                    })
                })
                .collect();
            let played = playing.into_iter().map(|thread| {
                thread
                    .join()
                    .expect("a participant's thread does not panic")
            });
            played.collect::<Result<Vec<_>, Fault>>()
        })?;
        let (marks, counted) = witness.seen()?;
        let mut violations = judge(&self.rule, &marks, counted);
        violations.extend(
            dispossessed
                .into_iter()
                .flatten()
                .map(Violation::Dispossessed),
        );
        let entered = entries(&marks);
        let times = |name: String| (entered.get(&name).copied().unwrap_or(0), name);
        Ok(Outcome {
            entries: names.into_iter().map(times).collect(),
            most: most(&marks),
            violations,
        })
    }

    /// Runs one participant. Gives the visits in which it learnt that it had lost the lock.
    fn play(
        &self,
        name: &str,
        one: &mut dyn Participant,
        mut visitor: Visitor,
        end: Instant,
    ) -> Result<Vec<String>, Fault> {
        let mut dispossessed = Vec::new();
        let mut visits = 0;
        while Instant::now() < end {
            if one.acquire(&self.name, Some(self.lease), self.wait)? == Acquired::Busy {
                continue;
            }
            visits += 1;
            let id = format!("{name}#{visits}");
            let visit = visitor.enter(id.clone())?;
            thread::sleep(self.stay);
            let extended = if visits % EXTEND_EVERY == 0 {
                one.extend(self.lease)?
            } else {
                Extended::Yes
            };
            if self.rule.adds(&id) {
                visit.leave()?
            } else {
                visit.leave_as_found()?
            }
            let released = one.release()?;
            if extended == Extended::NotHeld || released == Released::NotHeld {
                dispossessed.push(id);
            }
            thread::sleep(self.away.mul_f64(fastrand::f64()));
        }
        Ok(dispossessed)
    }
}

/// The result of a contest.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The number of visits of each participant.
    pub entries: Vec<(u64, String)>,
    /// How many were inside at once, at the most.
    pub most: usize,
    /// What must not happen under a lock, and did.
    pub violations: Vec<Violation>,
}

impl Outcome {
    /// Panics if the lock did not exclude, or if a participant entered less than `least` times.
    #[track_caller]
    pub fn assert_fair(&self, least: u64) {
        assert!(self.violations.is_empty(), "{self}");
        assert!(
            self.entries.iter().all(|(entries, _)| *entries >= least),
            "less than {least} entries: {self}"
        );
    }
}

/// The figures in one line, and the first violations in a line each.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.entries.iter().map(|(entries, _)| entries).sum();
        let entries: Vec<String> = self
            .entries
            .iter()
            .map(|(entries, name)| format!("{name} {entries}"))
            .collect();
        write!(f, "{total} entries ({}), ", entries.join(", "))?;
        if self.most > 1 {
            write!(f, "{} at once, ", self.most)?;
        }
        write!(f, "{} violations", self.violations.len())?;
        self.violations
            .iter()
            .take(5)
            .try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}
