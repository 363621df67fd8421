//! How a wait goes: on a terminal one line that is written over, under `-v` one line per change.
//! What was seen last is kept, for a wait that ends while the store does not answer.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use palisade::Client;
use palisade::store::LineView;

use crate::busy::{Seen, held_by_all};
use crate::marks::{in_future, without_ghosts};
use crate::notice::Notices;

/// Between two looks at the line. No store pushes how a line moves, and a reader needs it no
/// sooner.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// When a wait that is not shown looks once. A lock that is free is acquired sooner.
const LOOK_ONCE: Duration = Duration::from_millis(100);

pub(super) struct Progress<'a> {
    locks: &'a Client,
    names: &'a [String],
    /// Our own label among the waiters.
    owner: &'a str,
    notices: Notices,
    /// Whether the wait may run out, and its end is to name a holder.
    is_bounded: bool,
    is_shown: Cell<bool>,
    last_seen: RefCell<Option<Seen>>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(
        locks: &'a Client,
        names: &'a [String],
        owner: &'a str,
        notices: Notices,
        is_bounded: bool,
    ) -> Progress<'a> {
        Progress {
            locks,
            names,
            owner,
            notices,
            is_bounded,
            is_shown: Cell::new(false),
            last_seen: RefCell::new(None),
        }
    }

    /// The line that kept us out when it was looked at last, if any was.
    pub(super) fn last_seen(self) -> Option<Seen> {
        self.last_seen.take()
    }

    /// Says how the wait goes. Never ends.
    pub(super) async fn report(&self) -> Infallible {
        if !self.notices.is_verbose() && !self.notices.can_update() {
            if self.is_bounded {
                tokio::time::sleep(LOOK_ONCE).await;
                let _ = self.look().await;
            }
            return std::future::pending().await;
        }
        let mut last = Said::default();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some((now, text)) = self.look().await else {
                continue;
            };
            if !self.notices.is_verbose() {
                self.is_shown.set(true);
                self.notices.update(&format!("palisade: {text}"));
            } else if now != last {
                self.notices.explain(&text);
                last = now;
            }
        }
    }

    /// What there is to say of the name that is waited for.
    async fn look(&self) -> Option<(Said, String)> {
        for name in self.names {
            let line = match self.locks.show(name).await {
                Ok(Some(line)) => without_ghosts(line),
                Ok(None) => continue,
                Err(error) => {
                    let text = format!("waiting for {name}: the store does not answer: {error}");
                    return Some((Said::Silent(error.to_string()), text));
                }
            };
            // With several names, those before this one are ours already.
            let is_ours = |line: &LineView| line.holders.iter().any(|one| one.owner == self.owner);
            if self.names.len() > 1 && is_ours(&line) {
                continue;
            }
            let place = self.place(&line);
            let holders = match line.marks.closed_for {
                Some(left) if line.holders.is_empty() => {
                    format!("closed until {}", in_future(left))
                }
                _ => held_by_all(&line.holders),
            };
            let fences = line
                .holders
                .iter()
                .map(|holder| holder.fence.get())
                .collect();
            let in_line =
                place.map_or_else(String::new, |place| format!(", {} in line", ordinal(place)));
            let text = format!("waiting for {name}: {holders}{in_line}");
            if !line.holders.is_empty() {
                let at = Instant::now();
                self.last_seen.replace(Some(Seen { line, at }));
            }
            return Some((Said::Line(name.clone(), fences, place), text));
        }
        None
    }

    /// Our place among the waiters, counted from 1; `None` when another waiter has our label.
    fn place(&self, line: &LineView) -> Option<usize> {
        let mut ours = line
            .waiters
            .iter()
            .enumerate()
            .filter(|(_, waiter)| waiter.owner == self.owner);
        match (ours.next(), ours.next()) {
            (Some((place, _)), None) => Some(place + 1),
            _ => None,
        }
    }
}

impl Drop for Progress<'_> {
    /// Clears the line away.
    fn drop(&mut self) {
        if self.is_shown.get() {
            self.notices.update("");
        }
    }
}

/// What was said last, without the time that passes.
#[derive(Default, PartialEq, Eq)]
enum Said {
    #[default]
    Nothing,
    Silent(String),
    /// The name, the fences of its holders, and our place.
    Line(String, Vec<u64>, Option<usize>),
}

fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (1, not) if not != 11 => "st",
        (2, not) if not != 12 => "nd",
        (3, not) if not != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::ordinal;

    #[test]
    fn ordinals_end_as_people_say_them() {
        let shown = [1, 2, 3, 4, 11, 12, 13, 21, 101, 111, 112].map(ordinal);
        assert_eq!(
            shown.join(" "),
            "1st 2nd 3rd 4th 11th 12th 13th 21st 101st 111th 112th"
        );
    }
}
