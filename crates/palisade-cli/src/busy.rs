//! What is said when a name was not acquired: who holds it, why, for how long, and how to look
//! closer.

use std::time::{Duration, Instant};

use palisade::store::{Holder, LineView};
use palisade::{Error, show_duration};

use crate::args::{HoldArgs, ModeArgs};
use crate::config::{SHORT_FAREWELL, Store};
use crate::exit::{Exit, Failure};
use crate::marks::{in_future, without_ghosts};
use crate::notice::{Notices, to_copy};

/// How long the question who holds a name may take after the wait is over.
const NAMING: Duration = Duration::from_millis(150);

/// The same after one attempt, which has no time to keep to: the store has just answered.
const NAMING_AFTER_ONE: Duration = Duration::from_secs(1);

/// How long palisade may stay after a wait has run out, with all that it still asks and sends. The
/// pages promise 250 ms, and a process needs some of that to start and to end.
const AFTERMATH: Duration = Duration::from_millis(150);

/// How many holders are named one by one.
const NAMED: usize = 3;

/// A claim that was not granted.
pub(crate) struct Refused<'a> {
    pub(crate) store: &'a Store,
    pub(crate) hold: &'a HoldArgs,
    /// When the wait began.
    pub(crate) begun: Instant,
    pub(crate) mode: &'a ModeArgs,
    /// All names, the first one first.
    pub(crate) names: &'a [String],
    /// Our own label: with several names we may just be giving one back.
    pub(crate) owner: &'a str,
    /// What kept us out when it was looked at last, in the course of the wait.
    pub(crate) last_seen: Option<Seen>,
}

/// A line, and when it was so.
pub(crate) struct Seen {
    pub(crate) line: LineView,
    pub(crate) at: Instant,
}

/// The store has not answered a question.
struct Silent;

impl Refused<'_> {
    /// Says who holds the name, or why it was not acquired, and answers with the code for that.
    pub(crate) async fn tell(
        &self,
        error: Option<&Error>,
        notices: Notices,
    ) -> Result<Exit, Failure> {
        let known = error.and_then(Error::holder);
        // A wait that ran out is over, whether or not the store answers.
        let end = self.hold.wait.map(|wait| self.begun + wait + AFTERMATH);
        let end = end.filter(|_| error.is_some());
        // The store has just named the only holder there can be.
        let is_enough = error.is_some() && self.names.len() == 1 && self.mode.limit.is_none();
        // One that has gone is named only because it keeps the name closed.
        let is_live = |holder: &Holder| holder.lease_left != Some(Duration::ZERO);
        let message = match known {
            Some(holder) if is_enough && is_live(holder) => self.message(&self.held(Some(holder))),
            _ => match (self.look(end).await, &self.last_seen) {
                (Err(Silent), Some(seen)) if known.is_none() => self.long_ago(seen),
                (line, _) => {
                    let line = line.ok().flatten();
                    self.message(&line.unwrap_or_else(|| self.held(known)))
                }
            },
        };
        if let Some(end) = end {
            self.store.leave_by(end);
        }
        notices.notice(&message);
        Ok(self.hold.busy_exit_code.map_or(Exit::BUSY, Exit))
    }

    /// Who, why, how long, until when, and how to look closer.
    fn message(&self, line: &LineView) -> String {
        let (name, marks) = (&line.name, &line.marks);
        let closer = format!("look closer with: {}", to_copy("show", name, ""));
        let closed = marks.closed_for.map(in_future);
        if !line.holders.is_empty() {
            let closed = closed.map(|at| format!(", closed until {at}"));
            let (held, closed) = (held_by_all(&line.holders), closed.unwrap_or_default());
            return format!("{name} is {held}{closed}; {closer}");
        }
        if let Some(period) = self.mode.once_per {
            let began = marks.ran_ago.map_or_else(
                || "within the period".to_owned(),
                |ago| {
                    let left = period.saturating_sub(ago);
                    format!("{} ago; due again {}", show_duration(ago), in_future(left))
                },
            );
            return format!("{name}: skipped, a run began {began}");
        }
        match closed {
            Some(at) => format!("{name} is closed until {at}; {closer}"),
            None => format!("{name} is busy; {closer}"),
        }
    }

    /// The same, when the store does not answer any more.
    fn long_ago(&self, seen: &Seen) -> String {
        let ago = show_duration(seen.at.elapsed());
        let name = &seen.line.name;
        format!(
            "{name} was {} when the store last answered, {ago} ago; look closer with: {}",
            held_by_all(&seen.line.holders),
            to_copy("show", name, "")
        )
    }

    /// The line as far as it is known without a question.
    fn held(&self, holder: Option<&Holder>) -> LineView {
        LineView {
            holders: holder.into_iter().cloned().collect(),
            ..LineView::free(&self.names[0])
        }
    }

    /// The first line that keeps us out. Not for long: the wait is over.
    async fn look(&self, end: Option<Instant>) -> Result<Option<LineView>, Silent> {
        let left = match end {
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now() + SHORT_FAREWELL);
                left.min(NAMING)
            }
            None if self.hold.wait.is_some() => NAMING,
            None => NAMING_AFTER_ONE,
        };
        let ask = async {
            for name in self.names {
                let Some(line) = self.store.locks().show(name).await.map_err(|_| Silent)? else {
                    continue;
                };
                let mut line = without_ghosts(line);
                if self.names.len() > 1 {
                    line.holders.retain(|holder| holder.owner != self.owner);
                }
                if !line.holders.is_empty() || !line.marks.is_empty() {
                    return Ok(Some(line));
                }
            }
            Ok::<_, Silent>(None)
        };
        tokio::time::timeout(left, ask).await.unwrap_or(Err(Silent))
    }
}

/// Holder, reason and how long.
pub(crate) fn held_by(holder: &Holder) -> String {
    format!("held by {}", described(holder))
}

/// Every holder, or how many there are.
pub(crate) fn held_by_all(holders: &[Holder]) -> String {
    match holders {
        [] => "not held".to_owned(),
        [first, _, _, _, ..] => format!(
            "held by {} holders, first {}",
            holders.len(),
            described(first)
        ),
        [first, rest @ ..] => {
            debug_assert!(holders.len() <= NAMED, "the pattern above is for more");
            let mut text = held_by(first);
            for (place, holder) in rest.iter().enumerate() {
                let and = if place + 1 == rest.len() {
                    " and "
                } else {
                    ", "
                };
                text.push_str(and);
                text.push_str(&described(holder));
            }
            text
        }
    }
}

fn described(holder: &Holder) -> String {
    let reason = holder
        .reason
        .as_ref()
        .map(|reason| format!(" ({reason})"))
        .unwrap_or_default();
    let held = holder
        .held
        .map(|held| format!(" for {}", show_duration(held)))
        .unwrap_or_default();
    format!("{}{reason}{held}", holder.owner)
}
