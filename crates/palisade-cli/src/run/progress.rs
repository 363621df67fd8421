//! How a wait goes: on a terminal one line that is written over, under `-v` one line per change.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

use palisade::Client;
use palisade::store::LineView;

use crate::busy::held_by_all;
use crate::marks::{in_future, without_ghosts};
use crate::notice::Notices;

/// Between two looks at the line. No store pushes how a line moves, and a reader needs it no
/// sooner.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Progress<'a> {
    locks: &'a Client,
    names: &'a [String],
    /// Our own label among the waiters.
    owner: &'a str,
    notices: Notices,
    is_shown: Cell<bool>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(
        locks: &'a Client,
        names: &'a [String],
        owner: &'a str,
        notices: Notices,
    ) -> Progress<'a> {
        Progress {
            locks,
            names,
            owner,
            notices,
            is_shown: Cell::new(false),
        }
    }

    /// Says how the wait goes. Never ends.
    pub(super) async fn report(&self) -> Infallible {
        if !self.notices.is_verbose() && !self.notices.can_update() {
            return std::future::pending().await;
        }
        let mut last = Seen::default();
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
    async fn look(&self) -> Option<(Seen, String)> {
        for name in self.names {
            let line = match self.locks.show(name).await {
                Ok(Some(line)) => without_ghosts(line),
                Ok(None) => continue,
                Err(error) => {
                    let text = format!("waiting for {name}: the store does not answer: {error}");
                    return Some((Seen::Silent(error.to_string()), text));
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
            return Some((Seen::Line(name.clone(), fences, place), text));
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
enum Seen {
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
