//! The line of one name as a pure state machine: the executable specification of every store.
//!
//! A [`Line`] has no clock, no lock and no I/O. Each event takes the store's time, first removes
//! everything that has expired by then, does its work, and hands the name to the next in line in
//! the same step. Messages to other claims are added to `told`. It is the memory store, the
//! algorithm of the SQLite store, and the oracle that the other stores are compared with.
//!
//! # Rules
//!
//! - **Strict order.** A new claim is behind every live waiter, even where it could hold beside the
//!   holders; a claim for many permits blocks smaller ones behind it.
//! - **One lease per claim**, waiting or holding. A claim that expires at `now` is gone at `now`,
//!   even if its place is still free, and no renewal revives it. A waiter that expired is never
//!   granted in hindsight.
//! - **Direct hand-off.** A waiter that is granted keeps the expiry it had; its next renewal raises
//!   it to the full lease.
//! - **Fences** rise over the whole life of the line.

mod state;
#[cfg(test)]
mod tests;
mod time;
mod view;

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

pub use state::{ClaimError, HolderEntry, Mark, Seal, Told, Tombstone, WaiterEntry};
pub use time::StoreTime;

use crate::fence::Fence;
use crate::store::{
    Answer, Claim, ClaimId, Ending, Gone, Grant, Kind, Lease, Mode, Released, Revoked, Standing,
};

/// The holders and the waiters of one name, in order. See the [module documentation](self) for the
/// rules.
///
/// The fields are public for stores that keep them in tables; only the events change them by the
/// rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The kind of the name; `None` while it has no holder, no waiter and no closed period.
    pub kind: Option<Kind>,
    /// The claims that occupy the name, in the order of their grants.
    pub holders: Vec<HolderEntry>,
    /// The waiting claims, first in line first.
    pub waiters: VecDeque<WaiterEntry>,
    /// The fence of the latest grant, or a later floor.
    pub last_fence: Fence,
    /// The last grant of a once-per claim, until it is forgotten.
    pub mark: Option<Mark>,
    /// Set while no claim is granted because the work of `once` is done.
    pub seal: Option<Seal>,
    /// Why some claims are gone, until they would have ended anyway.
    pub tombstones: Vec<Tombstone>,
}

impl Default for Line {
    fn default() -> Line {
        Line {
            kind: None,
            holders: Vec::new(),
            waiters: VecDeque::new(),
            last_fence: Fence::NONE,
            mark: None,
            seal: None,
            tombstones: Vec::new(),
        }
    }
}

/// The events.
impl Line {
    /// Asks for the name: granted, queued, busy or sealed.
    ///
    /// Idempotent by claim id: a claim that holds or waits finds its grant or its place again, and
    /// is renewed. A waiting one keeps its place even if it now says not to queue. A claim that is
    /// gone is a new claim.
    ///
    /// # Errors
    ///
    /// When the claim can never be granted; see [`ClaimError`]. Nothing is left behind.
    pub fn claim(
        &mut self,
        now: StoreTime,
        claim: &Claim,
        told: &mut Vec<Told>,
    ) -> Result<Answer, ClaimError> {
        self.event(now, Some(claim.id), told, |line, _| line.answer(now, claim))
    }

    /// Extends the lease of a claim, waiting or holding, and says where it stands.
    ///
    /// A waiter is named without a fence, a holder with its fence or without. Any other fence
    /// changes nothing.
    pub fn renew(
        &mut self,
        now: StoreTime,
        claim: ClaimId,
        fence: Option<Fence>,
        told: &mut Vec<Told>,
    ) -> Standing {
        self.event(now, Some(claim), told, |line, _| {
            line.stand(now, claim, fence)
        })
    }

    /// Ends a claim in whatever state it is: release, cancel, time-out and drop.
    ///
    /// [`Released::AlreadyLost`] means that it neither held nor waited, and that nothing was
    /// changed; except that an [`Ending::Undo`] takes back the min-hold and the mark of its grant
    /// even then. A seal that is sent again is done.
    pub fn release(
        &mut self,
        now: StoreTime,
        claim: ClaimId,
        fence: Option<Fence>,
        ending: Ending,
        told: &mut Vec<Told>,
    ) -> Released {
        self.event(now, Some(claim), told, |line, told| {
            line.end(now, claim, fence, ending, told)
        })
    }

    /// Turns a writer into a reader, keeping its fence, and renews it; readers next in line come in
    /// with it.
    ///
    /// A claim that is not a writer is only renewed.
    pub fn downgrade(
        &mut self,
        now: StoreTime,
        claim: ClaimId,
        fence: Fence,
        told: &mut Vec<Told>,
    ) -> Standing {
        self.event(now, Some(claim), told, |line, _| {
            if let Some(holder) = line.live_holder(claim, Some(fence))
                && holder.mode == Mode::Exclusive
            {
                holder.mode = Mode::Shared;
                line.kind = Some(Kind::RwLock);
            }
            line.stand(now, claim, Some(fence))
        })
    }

    /// Gives a holder another owner, which is what the leader of an election proclaims, and renews
    /// it.
    pub fn proclaim(
        &mut self,
        now: StoreTime,
        claim: ClaimId,
        fence: Fence,
        value: &str,
        told: &mut Vec<Told>,
    ) -> Standing {
        self.event(now, Some(claim), told, |line, _| {
            if let Some(holder) = line.live_holder(claim, Some(fence)) {
                holder.owner = value.into();
            }
            line.stand(now, claim, Some(fence))
        })
    }

    /// Ends the grant of another claim, or the closed period that a grant left behind.
    pub fn revoke(&mut self, now: StoreTime, fence: Fence, told: &mut Vec<Told>) -> Revoked {
        self.event(now, None, told, |line, told| line.end_grant(fence, told))
    }

    /// Forgets the once-per mark, the seal and every min-hold, and says whether there was any. Live
    /// holders go on holding.
    pub fn clear_marks(&mut self, now: StoreTime, told: &mut Vec<Told>) -> bool {
        self.event(now, None, told, |line, _| {
            let closed = |holder: &HolderEntry| holder.keep_until > now;
            let any = line.mark.is_some() || line.seal.is_some() || line.holders.iter().any(closed);
            line.mark = None;
            line.seal = None;
            for holder in &mut line.holders {
                holder.keep_until = StoreTime::default();
                // An undo must not bring an earlier mark back.
                holder.mark_before = None;
            }
            line.clear_the_way(now);
            any
        })
    }

    /// Removes everything that has expired, and hands the name on.
    pub fn expire(&mut self, now: StoreTime, told: &mut Vec<Told>) {
        self.waiters.retain(|waiter| waiter.expiry > now);
        for holder in &mut self.holders {
            holder.ghost |= holder.expiry <= now;
        }
        self.clear_the_way(now);
        self.mark = self.mark.filter(|mark| mark.until() > now);
        self.seal = self.seal.filter(|seal| seal.until > now);
        self.tombstones.retain(|tombstone| tombstone.until > now);
        self.hand_off(now, told);
    }

    /// Makes the fence of every later grant higher than `floor`, for stores that count over many
    /// lines or by a clock.
    pub fn raise_fence(&mut self, floor: Fence) {
        self.last_fence = self.last_fence.max(floor);
    }

    /// The earliest time at which the passing of time alone changes something: `now` when that is
    /// overdue, `None` when never.
    pub fn next_change(&self, now: StoreTime) -> Option<StoreTime> {
        let holders = self.holders.iter().map(HolderEntry::next_change);
        let waiters = self.waiters.iter().map(|waiter| waiter.expiry);
        let tombstones = self.tombstones.iter().map(|tombstone| tombstone.until);
        let mark = self.mark.iter().map(Mark::until);
        let times = holders
            .chain(waiters)
            .chain(tombstones)
            .chain(mark)
            .chain(self.seal.map(|seal| seal.until));
        times
            .min()
            .filter(|time| *time < StoreTime::NEVER)
            .map(|time| time.max(now))
    }

    /// Whether this claim holds, waits, or is still to be told why it does neither.
    pub fn knows(&self, claim: ClaimId) -> bool {
        self.holders
            .iter()
            .any(|holder| holder.claim == claim && !holder.ghost)
            || self.waiters.iter().any(|waiter| waiter.claim == claim)
            || self
                .tombstones
                .iter()
                .any(|tombstone| tombstone.claim == claim)
    }

    /// Whether nothing is held, waited for, closed, marked, sealed or still to be told: a store may
    /// forget such a line, if it keeps [`last_fence`](Line::last_fence) elsewhere.
    pub fn is_idle(&self, now: StoreTime) -> bool {
        self.holders
            .iter()
            .all(|holder| holder.occupies_until() <= now)
            && self.waiters.iter().all(|waiter| waiter.expiry <= now)
            && self.mark.is_none_or(|mark| mark.until() <= now)
            && !self.is_sealed(now)
            && self
                .tombstones
                .iter()
                .all(|tombstone| tombstone.until <= now)
    }
}

/// The parts of the events.
impl Line {
    /// The frame of every event. The claim that made it gets an answer, so it is not also told.
    fn event<T>(
        &mut self,
        now: StoreTime,
        by: Option<ClaimId>,
        told: &mut Vec<Told>,
        act: impl FnOnce(&mut Line, &mut Vec<Told>) -> T,
    ) -> T {
        let mut news = Vec::new();
        self.expire(now, &mut news);
        let answer = act(self, &mut news);
        self.hand_off(now, &mut news);
        told.extend(news.into_iter().filter(|news| Some(news.claim()) != by));
        answer
    }

    fn answer(&mut self, now: StoreTime, claim: &Claim) -> Result<Answer, ClaimError> {
        self.check(claim)?;
        match self.stand(now, claim.id, None) {
            Standing::Held(grant) => return Ok(Answer::Granted(grant)),
            Standing::Waiting(place) => return Ok(Answer::Queued(place)),
            Standing::Gone(_) => {}
        }
        if self.is_sealed(now) {
            return Ok(Answer::Sealed);
        }
        if let Some(left) = self.too_soon_by(now, claim.once_per) {
            return Ok(Answer::Busy(self.too_soon(now, left)));
        }
        let free = self.waiters.is_empty() && self.admits(claim.mode);
        if !free && !claim.queue {
            return Ok(Answer::Busy(self.busy(now, claim.mode)));
        }
        let fence = self.next_fence().ok_or(ClaimError::FencesSpent)?;
        self.join(claim);
        let mut entry = WaiterEntry::new(now, claim);
        Ok(if free {
            entry.expiry = now + claim.lease;
            self.grant(now, entry, fence);
            Answer::Granted(Grant {
                fence,
                lease: Lease::of(claim.lease),
            })
        } else {
            self.waiters.push_back(entry);
            Answer::Queued(self.place(now, self.waiters.len() - 1, claim.mode, claim.wait_lease()))
        })
    }

    /// Refuses a claim that can never be granted, so that it never blocks the line.
    fn check(&self, claim: &Claim) -> Result<(), ClaimError> {
        let fits = match (claim.kind, claim.mode) {
            (Kind::Mutex | Kind::RwLock, Mode::Exclusive) | (Kind::RwLock, Mode::Shared) => true,
            (Kind::Semaphore { limit }, Mode::Permits(count)) => (1..=limit).contains(&count),
            _ => false,
        };
        if !fits {
            return Err(ClaimError::ModeMisfit {
                kind: claim.kind,
                mode: claim.mode,
            });
        }
        match self.kind {
            Some(in_use) if !in_use.shares_line_with(claim.kind) => Err(ClaimError::KindConflict {
                in_use,
                asked: claim.kind,
            }),
            _ => Ok(()),
        }
    }

    /// Updates the records for a new claim.
    fn join(&mut self, claim: &Claim) {
        // A mutex is the write side of a rwlock: once a rwlock claim has joined, the name is a
        // rwlock.
        if self.kind != Some(Kind::RwLock) {
            self.kind = Some(claim.kind);
        }
        // A tombstone of an earlier claim with this id must not be told to this one.
        self.tombstones
            .retain(|tombstone| tombstone.claim != claim.id);
    }

    /// Renews the claim in its place.
    fn stand(&mut self, now: StoreTime, claim: ClaimId, fence: Option<Fence>) -> Standing {
        if let Some(holder) = self.live_holder(claim, fence) {
            return Standing::Held(holder.renew(now));
        }
        if let Some(ahead) = self.waits_behind(claim, fence)
            && let Some(waiter) = self.waiters.get_mut(ahead)
        {
            waiter.renew(now);
            let (mode, wait_lease) = (waiter.mode, waiter.wait_lease());
            return Standing::Waiting(self.place(now, ahead, mode, wait_lease));
        }
        Standing::Gone(self.why_gone(claim, fence))
    }

    /// The reason why a claim neither holds nor waits. The last fence tells a grant that has ended
    /// from one that this line never gave, or has lost with all its data.
    fn why_gone(&self, claim: ClaimId, fence: Option<Fence>) -> Gone {
        let buried = self
            .tombstones
            .iter()
            .find(|tombstone| tombstone.claim == claim);
        match buried {
            Some(tombstone) => tombstone.why,
            None if self.holders.iter().any(|holder| holder.claim != claim) => Gone::Taken,
            None => Gone::by_last_fence(fence, self.last_fence),
        }
    }

    fn end(
        &mut self,
        now: StoreTime,
        claim: ClaimId,
        fence: Option<Fence>,
        ending: Ending,
        told: &mut Vec<Told>,
    ) -> Released {
        if let Some(holder) = self.live_holder(claim, fence) {
            holder.ghost = true;
            match ending {
                Ending::Release => {}
                Ending::Undo => self.undo(now, claim, fence),
                Ending::Seal(keep) => self.seal(
                    Seal {
                        until: now + keep,
                        by: claim,
                    },
                    told,
                ),
            }
            self.clear_the_way(now);
            return Released::Done;
        }
        if let Some(ahead) = self.waits_behind(claim, fence) {
            self.waiters.remove(ahead);
            return Released::Done;
        }
        match ending {
            Ending::Undo => self.undo(now, claim, fence),
            // The reply to this very seal was lost, and it is sent again.
            Ending::Seal(_) if self.seal.is_some_and(|seal| seal.by == claim) => {
                return Released::Done;
            }
            Ending::Seal(_) | Ending::Release => {}
        }
        Released::AlreadyLost
    }

    /// Removes what the claim's latest grant left behind: the closed period and the once-per mark.
    fn undo(&mut self, now: StoreTime, claim: ClaimId, fence: Option<Fence>) {
        let left_behind = |holder: &HolderEntry| holder.ghost && holder.is_grant_of(claim, fence);
        let Some(at) = self.holders.iter().rposition(left_behind) else {
            return;
        };
        let undone = self.holders.remove(at);
        let set_by_it = |mark: &Option<Mark>| mark.is_some_and(|mark| mark.fence == undone.fence);
        if set_by_it(&self.mark) {
            self.mark = undone.mark_before.filter(|mark| mark.until() > now);
        }
        // A later holder must not bring the mark back by its own undo.
        for later in self
            .holders
            .iter_mut()
            .filter(|holder| set_by_it(&holder.mark_before))
        {
            later.mark_before = undone.mark_before;
        }
    }

    fn seal(&mut self, seal: Seal, told: &mut Vec<Told>) {
        // Of two seals the longer one counts: neither may be broken by the other.
        if self.seal.is_none_or(|other| other.until < seal.until) {
            self.seal = Some(seal);
        }
        for waiter in mem::take(&mut self.waiters) {
            self.turn_away(waiter, Gone::Sealed, told);
        }
    }

    fn end_grant(&mut self, fence: Fence, told: &mut Vec<Told>) -> Revoked {
        if let Some(at) = self.holders.iter().position(|holder| holder.fence == fence) {
            let holder = self.holders.remove(at);
            // The owner of a ghost is already gone: there is no claim to tell.
            if !holder.ghost {
                self.bury(holder.claim, Gone::Revoked, holder.expiry, told);
            }
            return Revoked::Done;
        }
        let other = self
            .holders
            .iter()
            .find(|holder| !holder.ghost)
            .or(self.holders.first());
        other.map_or(Revoked::NotHeld, |other| Revoked::OtherHolder {
            fence: other.fence,
        })
    }

    /// Grants to the head of the line for as long as it fits. An idle line forgets its kind.
    fn hand_off(&mut self, now: StoreTime, told: &mut Vec<Told>) {
        while let Some(head) = self.waiters.front()
            && self.admits(head.mode)
            && let Some(fence) = self.next_fence()
            && let Some(head) = self.waiters.pop_front()
        {
            if self.too_soon_by(now, head.once_per).is_some() {
                self.turn_away(head, Gone::TooSoon, told);
            } else {
                told.push(Told::Granted {
                    claim: head.claim,
                    fence,
                });
                self.grant(now, head, fence);
            }
        }
        if self.holders.is_empty() && self.waiters.is_empty() {
            self.kind = None;
        }
    }

    fn grant(&mut self, now: StoreTime, entry: WaiterEntry, fence: Fence) {
        self.last_fence = fence;
        // A zero `once_per` means none, and must not replace another claim's mark.
        let span = entry.once_per.filter(|span| !span.is_zero());
        let mark = span.map(|span| Mark {
            at: now,
            span,
            fence,
        });
        let mark_before = if mark.is_some() {
            mem::replace(&mut self.mark, mark)
        } else {
            None
        };
        // Most lines have one holder: room for four, which is what a Vec begins with, would be most
        // of their memory.
        if self.holders.is_empty() {
            self.holders.reserve_exact(1);
        }
        self.holders.push(entry.granted(now, fence, mark_before));
    }

    fn turn_away(&mut self, waiter: WaiterEntry, why: Gone, told: &mut Vec<Told>) {
        self.bury(waiter.claim, why, waiter.expiry, told);
    }

    fn bury(&mut self, claim: ClaimId, why: Gone, until: StoreTime, told: &mut Vec<Told>) {
        self.tombstones.push(Tombstone { claim, why, until });
        told.push(Told::Gone { claim, why });
    }

    /// Removes holders that do not exclude others any more.
    fn clear_the_way(&mut self, now: StoreTime) {
        self.holders.retain(|holder| holder.occupies_until() > now);
    }

    /// Whether a claim in this mode can hold beside the claims that occupy the name.
    fn admits(&self, mode: Mode) -> bool {
        // Alone every claim fits: one that never could was refused.
        self.holders.is_empty()
            || match mode {
                Mode::Exclusive => false,
                Mode::Shared => self
                    .holders
                    .iter()
                    .all(|holder| holder.mode == Mode::Shared),
                Mode::Permits(count) => self.permits_out() + u64::from(count) <= self.limit(),
            }
    }

    fn is_sealed(&self, now: StoreTime) -> bool {
        self.seal.is_some_and(|seal| now < seal.until)
    }

    /// By how much a claim with this `once_per` comes too soon; `None` when it does not.
    fn too_soon_by(&self, now: StoreTime, once_per: Option<Duration>) -> Option<Duration> {
        let mark = self.mark?;
        // The mark is forgotten after its own span, so a longer one need not be waited out.
        let until = mark.at + once_per?.min(mark.span);
        (now < until).then(|| until.since(now))
    }

    fn next_fence(&self) -> Option<Fence> {
        Fence::new(self.last_fence.get() + 1)
    }

    fn live_holder(&mut self, claim: ClaimId, fence: Option<Fence>) -> Option<&mut HolderEntry> {
        self.holders
            .iter_mut()
            .find(|holder| !holder.ghost && holder.is_grant_of(claim, fence))
    }

    /// How many waiters are before this one. A claim with a fence does not wait.
    fn waits_behind(&self, claim: ClaimId, fence: Option<Fence>) -> Option<usize> {
        if fence.is_some() {
            None
        } else {
            self.waiters.iter().position(|waiter| waiter.claim == claim)
        }
    }
}
