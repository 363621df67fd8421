//! Views of a line: for its waiters, for claims that it turns away, and for people.

use std::time::Duration;

use super::{HolderEntry, Line, StoreTime, WaiterEntry};
use crate::name::Name;
use crate::store::{Busy, Holder, Kind, Lease, LineView, Marks, Mode, Place, Waiter};

impl Line {
    /// The line as it stands at `now`, for people to read.
    ///
    /// Expired claims are left out, but nothing is handed off: a fence that is shown was really
    /// granted. A ghost is shown as a holder whose lease has run out: it keeps the name closed, and
    /// a revocation needs its fence. An idle line, which has no kind, is shown as a mutex.
    pub fn view(&self, now: StoreTime, name: &Name) -> LineView {
        LineView {
            name: name.as_str().to_owned(),
            kind: self.kind.unwrap_or(Kind::Mutex),
            holders: self
                .holders
                .iter()
                .filter(|holder| holder.occupies_until() > now)
                .map(|holder| holder.view(now))
                .collect(),
            waiters: self
                .waiters
                .iter()
                .filter(|waiter| waiter.expiry > now)
                .map(|waiter| waiter.view(now))
                .collect(),
            waiters_known: true,
            marks: self.marks(now),
            error: None,
        }
    }

    fn marks(&self, now: StoreTime) -> Marks {
        let left = |until: StoreTime| (until > now).then(|| until.since(now));
        let mark = self.mark.filter(|mark| mark.until() > now);
        Marks {
            closed_for: self
                .holders
                .iter()
                .filter_map(|holder| left(holder.keep_until))
                .max(),
            ran_ago: mark.map(|mark| now.since(mark.at)),
            due_in: mark.and_then(|mark| left(mark.until())),
            done_for: self.seal.and_then(|seal| left(seal.until)),
        }
    }

    /// The place of a waiter for this mode with this many before it.
    pub(super) fn place(
        &self,
        now: StoreTime,
        ahead: usize,
        mode: Mode,
        wait_lease: Duration,
    ) -> Place {
        Place {
            ahead: u32::try_from(ahead).ok(),
            ask_in: self.ask_in(now, mode, ahead),
            lease: Lease::of(wait_lease),
            holder: self.first_holder(now),
        }
    }

    /// The answer to a claim in this mode that may not queue.
    pub(super) fn busy(&self, now: StoreTime, mode: Mode) -> Busy {
        let holder = self.first_holder(now);
        Busy {
            closed: holder.is_none() && !self.admits(mode),
            holder,
            ask_in: self.ask_in(now, mode, self.waiters.len()),
            too_soon: false,
            woken: false,
        }
    }

    /// The answer to a claim that comes too soon after the last once-per grant.
    pub(super) fn too_soon(&self, now: StoreTime, left: Duration) -> Busy {
        Busy {
            holder: self.first_holder(now),
            ask_in: Some(left),
            too_soon: true,
            closed: false,
            woken: false,
        }
    }

    fn first_holder(&self, now: StoreTime) -> Option<Holder> {
        self.holders
            .iter()
            .find(|holder| !holder.ghost)
            .map(|holder| holder.view(now))
    }

    /// After how long a claim in this mode, with so many before it, is admitted if no claim is
    /// renewed or released; `None` when never.
    ///
    /// A claim behind live waiters never asks because of it: they renew every third of their wait
    /// lease, and so does the claim, and is told a later time. Behind dead waiters it limits their
    /// cost to one wait lease in all.
    fn ask_in(&self, now: StoreTime, mode: Mode, ahead: usize) -> Option<Duration> {
        let way_is_clear = match mode {
            _ if self.admits(mode) => Some(now),
            // Only a writer keeps a reader out, and a writer holds alone.
            Mode::Exclusive | Mode::Shared => {
                self.holders.iter().map(HolderEntry::occupies_until).max()
            }
            Mode::Permits(count) => self.permits_free_at(count),
        };
        let line_is_clear = self
            .waiters
            .iter()
            .take(ahead)
            .map(|waiter| waiter.expiry)
            .max();
        let admitted = way_is_clear?.max(line_is_clear.unwrap_or(now));
        (admitted < StoreTime::NEVER).then(|| admitted.since(now))
    }

    fn permits_free_at(&self, wanted: u32) -> Option<StoreTime> {
        let mut ends: Vec<_> = self
            .holders
            .iter()
            .map(|holder| (holder.occupies_until(), permits_of(holder.mode)))
            .collect();
        ends.sort_unstable_by_key(|(end, _)| *end);
        let mut free = self.limit().saturating_sub(self.permits_out());
        ends.into_iter().find_map(|(end, permits)| {
            free += permits;
            (free >= u64::from(wanted)).then_some(end)
        })
    }

    /// How many permits are out. Summed wider than one claim can ask, so that no sum overflows.
    pub(super) fn permits_out(&self) -> u64 {
        self.holders
            .iter()
            .map(|holder| permits_of(holder.mode))
            .sum()
    }

    /// How many permits there are.
    pub(super) fn limit(&self) -> u64 {
        match self.kind {
            Some(Kind::Semaphore { limit }) => u64::from(limit),
            _ => 0,
        }
    }
}

fn permits_of(mode: Mode) -> u64 {
    match mode {
        Mode::Permits(count) => u64::from(count),
        Mode::Exclusive | Mode::Shared => 0,
    }
}

impl HolderEntry {
    fn view(&self, now: StoreTime) -> Holder {
        let lease_left = if self.ghost {
            Duration::ZERO
        } else {
            self.expiry.since(now)
        };
        Holder {
            owner: self.owner.to_string(),
            reason: self.reason.as_deref().map(str::to_owned),
            fence: self.fence,
            mode: self.mode,
            held: Some(now.since(self.granted_at)),
            lease_left: Some(lease_left),
        }
    }
}

impl WaiterEntry {
    fn view(&self, now: StoreTime) -> Waiter {
        Waiter {
            owner: self.owner.to_string(),
            reason: self.reason.as_deref().map(str::to_owned),
            mode: self.mode,
            waited: Some(now.since(self.queued_at)),
        }
    }
}
