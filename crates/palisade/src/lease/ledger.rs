//! What the keeper and the warden work from: every kept claim, ordered by when to renew it and by when to look at its end.
//!
//! One lock, held for moments. Sleepers are woken only when something is due before they would wake by themselves, so that an
//! uncontended acquire and release wakes nobody.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::kept::Kept;
use super::{Clock, Moment};
use crate::store::{ByClaim, ClaimId};

/// Sleepers look at the clock at least so often: their timers stop while the machine is suspended, our clock does not.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// How long sleepers go on ticking after the last claim has gone. A program that takes and gives back one lock in a loop would
/// otherwise wake them every time.
const LINGER: Duration = Duration::from_secs(2);

/// So many claims that ended before they were kept are remembered. There are as many as threads that take up an answer just now;
/// the rest are claims that were given back meanwhile.
const ENDED_EARLY: usize = 64;

pub(crate) struct Ledger {
    pub(crate) clock: Arc<dyn Clock>,
    rows: Mutex<Rows>,
    /// Wakes the keeper.
    renewal_due: Notify,
    /// Wakes the warden.
    look: Condvar,
}

#[derive(Default)]
struct Rows {
    claims: ByClaim<Row>,
    renewals: BTreeSet<(Moment, ClaimId)>,
    looks: BTreeSet<(Moment, ClaimId)>,
    /// Claims that the store says have ended, and that are not kept, or not yet.
    ended_early: VecDeque<ClaimId>,
    /// When the keeper will look by itself.
    keeper_wakes: Option<Moment>,
    /// When the warden will look by itself.
    warden_wakes: Option<Moment>,
    /// When there was a claim for the last time.
    last_busy: Moment,
    closed: bool,
}

struct Row {
    kept: Arc<Kept>,
    renew_at: Option<Moment>,
    look_at: Option<Moment>,
}

impl Ledger {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Ledger> {
        let ledger = Arc::new(Ledger { clock, rows: Mutex::default(), renewal_due: Notify::new(), look: Condvar::new() });
        let told = Arc::downgrade(&ledger);
        ledger.clock.on_jump(Arc::new(move || {
            if let Some(ledger) = told.upgrade() {
                ledger.wake_all();
            }
        }));
        ledger
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(&self) {
        // Under the lock, so that a warden between its look at the rows and its sleep is not missed.
        let _rows = self.lock();
        self.look.notify_all();
        self.renewal_due.notify_one();
    }

    /// Begins to keep a claim, or takes up its new stage.
    pub(crate) fn keep(&self, kept: &Arc<Kept>) {
        let now = self.clock.now();
        let (renew_at, look_at) = (kept.renew_at(), kept.watch(now));
        let mut rows = self.lock();
        // The store is asked whether this is what has ended: it may have been an earlier attempt with the same claim.
        let renew_at = if rows.has_ended_early(kept.claim.id) { Some(now) } else { renew_at };
        rows.set(kept, renew_at, look_at);
        rows.last_busy = now;
        self.wake_for(&rows, renew_at, look_at);
    }

    /// Begins to keep a claim that this client does not have yet; `false` when it has.
    pub(crate) fn keep_new(&self, kept: &Arc<Kept>) -> bool {
        if self.find(kept.claim.id).is_some() {
            return false;
        }
        self.keep(kept);
        true
    }

    /// Stops keeping a claim.
    pub(crate) fn forget(&self, kept: &Kept) {
        self.lock().remove_this(kept);
    }

    /// How many claims are kept.
    pub(crate) fn len(&self) -> usize {
        self.lock().claims.len()
    }

    pub(crate) fn find(&self, claim: ClaimId) -> Option<Arc<Kept>> {
        self.lock().claims.get(&claim).map(|row| Arc::clone(&row.kept))
    }

    /// The claim that the store says has ended. If it is not kept yet, because its answer is being taken up in another thread,
    /// it is asked for as soon as it is.
    pub(crate) fn find_ended(&self, claim: ClaimId) -> Option<Arc<Kept>> {
        let mut rows = self.lock();
        let kept = rows.claims.get(&claim).map(|row| Arc::clone(&row.kept));
        if kept.is_none() {
            if rows.ended_early.len() == ENDED_EARLY {
                rows.ended_early.pop_front();
            }
            rows.ended_early.push_back(claim);
        }
        kept
    }

    pub(crate) fn all(&self) -> Vec<Arc<Kept>> {
        self.lock().claims.values().map(|row| Arc::clone(&row.kept)).collect()
    }

    /// Takes up what a renewal has changed: when to renew next, or that there is nothing to keep any more.
    pub(crate) fn settle(&self, kept: &Arc<Kept>) {
        let now = self.clock.now();
        // Without the lock: what the clock has just ended is told of here, and that runs wakers.
        let (over, renew_at) = (kept.is_over(now), kept.renew_at());
        let mut rows = self.lock();
        if over {
            rows.remove_this(kept);
        } else if !rows.is_due(kept.claim.id, now) && rows.reschedule(kept.claim.id, renew_at) {
            self.wake_for(&rows, renew_at, None);
        }
    }

    /// Asks the keeper to renew one claim as soon as it can.
    pub(crate) fn renew_now(&self, kept: &Kept) {
        let now = self.clock.now();
        let mut rows = self.lock();
        if rows.reschedule(kept.claim.id, Some(now)) {
            self.wake_for(&rows, Some(now), None);
        }
    }

    /// Lets the keeper try again after so long, unless it was asked to since.
    pub(crate) fn retry_within(&self, kept: &Kept, pause: Duration) {
        let now = self.clock.now();
        let mut rows = self.lock();
        if !rows.is_due(kept.claim.id, now) && rows.reschedule(kept.claim.id, Some(now + pause)) {
            self.wake_for(&rows, Some(now + pause), None);
        }
    }

    /// Asks the keeper to renew all these as soon as it can: the store has just come back, or is another one.
    pub(crate) fn renew_now_if(&self, wanted: impl Fn(&Kept) -> bool) {
        let now = self.clock.now();
        let mut rows = self.lock();
        let renewed = rows.claims.values().filter(|row| row.renew_at.is_some() && wanted(&row.kept));
        let claims: Vec<ClaimId> = renewed.map(|row| row.kept.claim.id).collect();
        for claim in claims {
            rows.reschedule(claim, Some(now));
        }
        self.wake_for(&rows, Some(now), None);
    }

    /// Wakes a sleeper for which something is due before it would wake by itself.
    fn wake_for(&self, rows: &Rows, renew_at: Option<Moment>, look_at: Option<Moment>) {
        if renew_at.is_some_and(|at| rows.keeper_wakes.is_none_or(|wakes| at < wakes)) {
            self.renewal_due.notify_one();
        }
        if look_at.is_some_and(|at| rows.warden_wakes.is_none_or(|wakes| at < wakes)) {
            self.look.notify_all();
        }
    }

    /// The claims whose renewal is due, with those that can share the request. Each is due again when its attempt must have
    /// been answered, so that a renewal which hangs is followed by another.
    pub(crate) fn take_due(&self) -> Vec<Arc<Kept>> {
        let now = self.clock.now();
        let mut rows = self.lock();
        let mut due = Vec::new();
        let Some(window) = rows.window(now) else { return due };
        for (at, claim) in rows.renewals.range(..=(window, ClaimId::from_bits(u128::MAX))) {
            let Some(row) = rows.claims.get(claim) else { continue };
            if *at <= now || at.since(now) <= row.kept.leeway() {
                due.push(Arc::clone(&row.kept));
            }
        }
        for kept in &due {
            rows.reschedule(kept.claim.id, Some(now + kept.attempt(now)));
        }
        due
    }

    /// Sleeps until a renewal may be due; `false` when the ledger is closed and empty.
    pub(crate) async fn renewal_due(&self) -> bool {
        let now = self.clock.now();
        let sleep = {
            let mut rows = self.lock();
            if rows.closed && rows.claims.is_empty() {
                return false;
            }
            let next = rows.renewals.first().map(|(at, _)| *at);
            rows.keeper_wakes = rows.wake_time(next, now);
            rows.keeper_wakes
        };
        match sleep {
            Some(at) => {
                let _ = tokio::time::timeout(at.since(now), self.renewal_due.notified()).await;
            }
            None => self.renewal_due.notified().await,
        }
        true
    }

    /// The warden's turn: fires what is due, then sleeps. `false` when the ledger is closed and empty.
    pub(crate) fn look(&self) -> bool {
        let now = self.clock.now();
        let due: Vec<Arc<Kept>> = {
            let mut rows = self.lock();
            let mut due = Vec::new();
            while let Some(&(at, claim)) = rows.looks.first() {
                if at > now {
                    break;
                }
                rows.looks.pop_first();
                if let Some(row) = rows.claims.get_mut(&claim) {
                    row.look_at = None;
                    due.push(Arc::clone(&row.kept));
                }
            }
            due
        };
        // Without the lock: this runs wakers of the user's runtime. One that panics must not leave the others unwatched, and
        // its own claim is looked at again.
        let watch = |kept: &Arc<Kept>| catch_unwind(AssertUnwindSafe(|| kept.watch(now))).unwrap_or(Some(now));
        let next: Vec<Option<Moment>> = due.iter().map(watch).collect();
        let mut rows = self.lock();
        for (kept, look_at) in due.iter().zip(next) {
            rows.look_again(kept, look_at);
        }
        if rows.closed && rows.claims.is_empty() {
            return false;
        }
        let now = self.clock.now();
        let next = rows.looks.first().map(|(at, _)| *at);
        rows.warden_wakes = rows.wake_time(next, now);
        match rows.warden_wakes {
            Some(at) => drop(self.look.wait_timeout(rows, at.since(now)).unwrap_or_else(PoisonError::into_inner)),
            None => drop(self.look.wait(rows).unwrap_or_else(PoisonError::into_inner)),
        }
        true
    }

    /// Lets keeper and warden end once the last claim is gone.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake_all();
    }
}

impl Rows {
    fn set(&mut self, kept: &Arc<Kept>, renew_at: Option<Moment>, look_at: Option<Moment>) {
        let id = kept.claim.id;
        self.remove(id);
        self.renewals.extend(renew_at.map(|at| (at, id)));
        self.looks.extend(look_at.map(|at| (at, id)));
        self.claims.insert(id, Row { kept: Arc::clone(kept), renew_at, look_at });
    }

    fn has_ended_early(&mut self, id: ClaimId) -> bool {
        let at = self.ended_early.iter().position(|ended| *ended == id);
        at.and_then(|at| self.ended_early.remove(at)).is_some()
    }

    fn remove(&mut self, id: ClaimId) {
        let Some(row) = self.claims.remove(&id) else { return };
        if let Some(at) = row.renew_at {
            self.renewals.remove(&(at, id));
        }
        if let Some(at) = row.look_at {
            self.looks.remove(&(at, id));
        }
    }

    /// Moves a claim's renewal; `false` when it is not kept any more.
    fn reschedule(&mut self, id: ClaimId, at: Option<Moment>) -> bool {
        let Some(row) = self.claims.get_mut(&id) else { return false };
        if let Some(old) = std::mem::replace(&mut row.renew_at, at) {
            self.renewals.remove(&(old, id));
        }
        self.renewals.extend(at.map(|at| (at, id)));
        true
    }

    /// Whether the keeper was asked to renew it, and has not yet taken it up: whoever takes it up moves it ahead.
    fn is_due(&self, id: ClaimId, now: Moment) -> bool {
        self.claims.get(&id).and_then(|row| row.renew_at).is_some_and(|at| at <= now)
    }

    /// Removes the row of this very claim, and not of another that was kept under its id.
    fn remove_this(&mut self, kept: &Kept) {
        let id = kept.claim.id;
        if self.claims.get(&id).is_some_and(|row| std::ptr::eq(Arc::as_ptr(&row.kept), kept)) {
            self.remove(id);
        }
    }

    /// Takes up when the warden is to look next; a claim that is over leaves.
    fn look_again(&mut self, kept: &Arc<Kept>, at: Option<Moment>) {
        let id = kept.claim.id;
        let Some(at) = at else { return self.remove_this(kept) };
        if let Some(row) = self.claims.get_mut(&id)
            && Arc::ptr_eq(&row.kept, kept)
            && row.look_at.is_none()
        {
            row.look_at = Some(at);
            self.looks.insert((at, id));
        }
    }

    /// Up to when renewals are brought forward: none unless one is due now.
    fn window(&self, now: Moment) -> Option<Moment> {
        let (at, claim) = self.renewals.first()?;
        (*at <= now).then(|| self.claims.get(claim).map_or(now, |row| now + row.kept.leeway()))
    }

    /// When a sleeper is to wake by itself; `None` when nothing has been kept for a while.
    fn wake_time(&self, next: Option<Moment>, now: Moment) -> Option<Moment> {
        let tick = now + TICK;
        match next {
            Some(at) => Some(at.min(tick)),
            None if !self.claims.is_empty() || now.since(self.last_busy) < LINGER => Some(tick),
            None => None,
        }
    }
}
