//! An attempt that says what stood in the way.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::options::Options;
use crate::duration_text::show_duration;
use crate::engine::acquire::{Outcome, WaitLimit};
use crate::engine::held_claim::HeldClaim;
use crate::error::Result;
use crate::guard::{Guard, GuardMode};
use crate::name::Name;
use crate::store::{Busy, Holder, Mode, Query};

/// The result of an attempt: the guard, or what stood in the way.
#[derive(Debug)]
#[must_use = "an attempt that is dropped gives the lock back at once"]
pub enum Attempt<G> {
    /// The lock is held.
    Acquired(G),
    /// It is not, and this is why.
    Busy(Obstacle),
}

/// The obstacle to a claim, as the store reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Obstacle {
    /// The name that was not free; of several the first.
    pub name: String,
    /// Why it was not.
    pub cause: Cause,
    /// A holder, where the store knows; `None` when no claim holds, or only waiters were in the way.
    pub holder: Option<Holder>,
    /// After how long the passing of time alone may free the name, where the store knows.
    pub left: Option<Duration>,
}

/// Why a name was not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Other claims hold it, or wait for it.
    Held,
    /// No claim holds it: a `min_hold` keeps it closed.
    Closed,
    /// The last run began less than `once_per` ago.
    TooSoon,
    /// It is the key of a `once` that is done.
    Done,
}

impl<G> Attempt<G> {
    /// The guard, if the lock is held.
    pub fn acquired(self) -> Option<G> {
        match self {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Busy(_) => None,
        }
    }

    pub(crate) fn map<H>(self, with: impl FnOnce(G) -> H) -> Attempt<H> {
        match self {
            Attempt::Acquired(guard) => Attempt::Acquired(with(guard)),
            Attempt::Busy(obstacle) => Attempt::Busy(obstacle),
        }
    }
}

impl Obstacle {
    pub(crate) fn of(name: &str, busy: Busy) -> Obstacle {
        let cause = match busy {
            Busy { too_soon: true, .. } => Cause::TooSoon,
            Busy { closed: true, .. } => Cause::Closed,
            _ => Cause::Held,
        };
        Obstacle {
            name: name.to_owned(),
            cause,
            holder: busy.holder,
            left: busy.ask_in,
        }
    }

    /// A name whose work is done.
    pub(crate) fn done(name: &str) -> Obstacle {
        Obstacle {
            name: name.to_owned(),
            cause: Cause::Done,
            holder: None,
            left: None,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (self.cause, &self.holder, self.left.map(show_duration)) {
            (Cause::Held, None, _) => write!(f, "{name} is busy"),
            (Cause::Held, Some(holder), _) => {
                write!(f, "{name} is held by {}", holder.owner)?;
                match &holder.reason {
                    Some(reason) => write!(f, " ({reason})"),
                    None => Ok(()),
                }
            }
            (Cause::Closed, _, Some(left)) => {
                write!(f, "{name} is kept closed by a min_hold for {left} more")
            }
            (Cause::Closed, _, None) => write!(f, "{name} is kept closed by a min_hold"),
            (Cause::TooSoon, _, Some(left)) => {
                write!(
                    f,
                    "{name} ran less than its once_per ago, and is due in {left}"
                )
            }
            (Cause::TooSoon, _, None) => write!(f, "{name} ran less than its once_per ago"),
            (Cause::Done, ..) => write!(f, "the work of {name} is done once and for all"),
        }
    }
}

impl Options {
    /// Acquires within this wait, or says what stood in the way now. A wait that ran out is a
    /// time-out.
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any point withdraws the claim.
    pub(crate) async fn attempt(&self, mode: Mode, wait: WaitLimit) -> Result<Attempt<HeldClaim>> {
        Ok(match self.acquire(mode, wait).await? {
            Outcome::Granted(held) => Attempt::Acquired(held),
            Outcome::Busy(busy) if wait == WaitLimit::Now || busy.too_soon => {
                Attempt::Busy(self.obstacle(busy).await)
            }
            Outcome::Busy(busy) => return Err(self.busy(busy)),
            Outcome::Sealed => Attempt::Busy(Obstacle::done(&self.name)),
        })
    }

    pub(crate) async fn attempt_guard<M: GuardMode>(
        &self,
        mode: Mode,
        wait: WaitLimit,
    ) -> Result<Attempt<Guard<M>>> {
        let attempt = self.attempt(mode, wait).await?;
        Ok(attempt.map(|held| Guard::new(Arc::new(held))))
    }

    /// Completes a refusal by one more request, where the answer did not say it all.
    pub(crate) async fn obstacle(&self, mut busy: Busy) -> Obstacle {
        let is_marked = busy.closed || busy.too_soon;
        let is_told = busy.ask_in.is_some() && is_marked || busy.holder.is_some() && !is_marked;
        if !is_told
            && let Ok(name) = Name::new(&*self.name)
            && let Some(line) = self.core.look(Query::Show(name), self.kind).await
        {
            busy.ask_in = match (busy.too_soon, busy.closed) {
                (true, _) => line.marks.due_in,
                (_, true) => line.marks.closed_for,
                _ => busy.ask_in,
            };
            let is_live = |holder: &Holder| holder.lease_left != Some(Duration::ZERO);
            busy.holder = line.holders.into_iter().find(is_live).or(busy.holder);
        }
        Obstacle::of(&self.name, busy)
    }
}
