//! Every claim of a client, ordered by when to renew it and by when to check its end. The keeper
//! and the warden work from it.
//!
//! One mutex, held briefly. Sleepers are woken only when something is due before they would wake by
//! themselves, so that an uncontended acquire and release wakes no thread.

#[cfg(test)]
mod tests;

mod pending;
mod schedule;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use self::pending::Pending;
use self::pending::Told;
use self::schedule::Schedule;
use super::tracked::{Stage, TrackedClaim};
use super::{Clock, Moment};
use crate::error::Error;
use crate::fence::Fence;
use crate::store::{ClaimId, ClaimRef, Gone, Push};

/// Sleepers read the clock at least this often: their timers stop while the machine is suspended,
/// our clock does not.
pub(crate) const TICK: Duration = Duration::from_millis(250);

pub(crate) struct Registry {
    pub(crate) clock: Arc<dyn Clock>,
    schedule: Mutex<Schedule>,
    /// Wakes the keeper.
    renewal_due: Notify,
    /// Wakes the warden.
    look: Condvar,
}

impl Registry {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Registry> {
        let registry = Arc::new(Registry {
            clock,
            schedule: Mutex::default(),
            renewal_due: Notify::new(),
            look: Condvar::new(),
        });
        let told = Arc::downgrade(&registry);
        registry.clock.on_jump(Arc::new(move || {
            if let Some(registry) = told.upgrade() {
                registry.wake_all();
            }
        }));
        registry
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(&self) {
        // Under the mutex, so that a warden between its check and its sleep is not missed.
        let _schedule = self.lock();
        self.look.notify_all();
        self.renewal_due.notify_one();
    }

    /// Enters a claim that is about to be sent, so that no push about it is missed. Once.
    pub(crate) fn enter(&self, claim: ClaimId) -> Arc<Pending> {
        let pending = Arc::new(Pending::default());
        self.lock().pending.insert(claim, Arc::clone(&pending));
        pending
    }

    /// The claim is not in flight any more.
    pub(crate) fn leave(&self, claim: ClaimId) {
        let left = self.lock().pending.remove(&claim);
        if let Some(pending) = left {
            pending.settle();
        }
    }

    /// Begins to track a claim, or updates its schedule. Pushes that arrived meanwhile are applied
    /// now.
    pub(crate) fn keep(&self, tracked: &Arc<TrackedClaim>) {
        self.keep_if(tracked, |_| true);
    }

    /// Begins to keep a claim that this client does not have yet; `false` when it has.
    pub(crate) fn keep_new(&self, tracked: &Arc<TrackedClaim>) -> bool {
        self.keep_if(tracked, |schedule| {
            !schedule.claims.contains_key(&tracked.claim.id)
        })
    }

    fn keep_if(
        &self,
        tracked: &Arc<TrackedClaim>,
        is_wanted: impl FnOnce(&Schedule) -> bool,
    ) -> bool {
        let now = self.clock.now();
        let (renew_at, look_at) = (tracked.renew_at(), tracked.watch(now));
        let mut schedule = self.lock();
        if !is_wanted(&schedule) {
            return false;
        }
        let pending = schedule.pending.remove(&tracked.claim.id);
        schedule.set(tracked, renew_at, look_at);
        schedule.last_busy = now;
        self.wake_for(&schedule, renew_at, look_at);
        drop(schedule);
        if let Some(pending) = pending {
            match pending.settle() {
                None => {}
                Some(Told::Granted(fence)) => self.granted(tracked, fence),
                // The push may be about an earlier attempt with the same claim: the store is asked.
                Some(Told::Changed) => self.renew_now(tracked),
            }
        }
        true
    }

    /// Whether a caller still wants this claim.
    pub(crate) fn wants(&self, claim: ClaimId) -> bool {
        let schedule = self.lock();
        schedule.pending.contains_key(&claim) || schedule.claims.contains_key(&claim)
    }

    /// Handles a push of the store.
    pub(crate) fn hear(&self, push: Push) {
        match push {
            Push::Granted { claim, fence } => self.tell(claim, Told::Granted(fence), |tracked| {
                self.granted(tracked, fence)
            }),
            Push::AskAgain { claim } => {
                self.tell(claim, Told::Changed, |tracked| self.ask(tracked))
            }
            Push::Gone { claim, why } => {
                self.tell(claim, Told::Changed, |tracked| self.ended(tracked, why))
            }
            Push::ContactLost => {
                let now = self.clock.now();
                self.lock().cut_off = Some(now);
                let error = Error::unavailable("the connection to the store is lost");
                self.all()
                    .iter()
                    .for_each(|tracked| tracked.troubled(&error, now));
            }
            Push::ContactRegained => {
                self.lock().cut_off = None;
                self.renew_now_if(|_| true);
            }
        }
    }

    /// Applies a push to a tracked claim now, and to a claim in flight as soon as it has its
    /// answer.
    fn tell(&self, claim: ClaimId, told: Told, now: impl FnOnce(&Arc<TrackedClaim>)) {
        loop {
            match self.lookup(claim) {
                (Some(tracked), _) => return now(&tracked),
                (None, Some(pending)) if pending.tell(told) => return,
                // It ended since the lookup, and is not found as pending again.
                (None, Some(_)) => {}
                (None, None) => return,
            }
        }
    }

    fn lookup(&self, claim: ClaimId) -> (Option<Arc<TrackedClaim>>, Option<Arc<Pending>>) {
        let schedule = self.lock();
        (
            schedule
                .claims
                .get(&claim)
                .map(|row| Arc::clone(&row.tracked)),
            schedule.pending.get(&claim).map(Arc::clone),
        )
    }

    fn granted(&self, tracked: &Arc<TrackedClaim>, fence: Fence) {
        if tracked.pushed(fence, self.clock.now()) {
            self.settle(tracked);
        } else {
            self.ask(tracked);
        }
    }

    fn ask(&self, tracked: &Arc<TrackedClaim>) {
        if tracked.asks_now() {
            self.renew_now(tracked);
        }
    }

    fn ended(&self, tracked: &Arc<TrackedClaim>, why: Gone) {
        tracked.ended(why);
        self.settle(tracked);
    }

    /// Completes when a claim does not wait any more.
    pub(crate) async fn done_waiting(self: Arc<Self>, claim: ClaimId) {
        loop {
            match self.lookup(claim) {
                (Some(tracked), _) => {
                    let mut changed = pin!(tracked.changed());
                    changed.as_mut().enable();
                    let Stage::Waiting { .. } = tracked.stage() else {
                        return;
                    };
                    changed.await;
                }
                (None, Some(pending)) => {
                    let mut settled = pin!(pending.settled());
                    settled.as_mut().enable();
                    if self.lock().pending.contains_key(&claim) {
                        settled.await;
                    }
                }
                (None, None) => return,
            }
        }
    }

    /// The store could not be reached by a renewal.
    pub(crate) fn unreached(&self, now: Moment) {
        self.lock().cut_off = Some(now);
    }

    /// The store answered a request that was sent at `sent`. If it was unreachable before, every
    /// claim that it has not confirmed since is renewed now: it may have lost them meanwhile.
    pub(crate) fn reached(&self, sent: Moment) {
        let was_cut_off = self.lock().cut_off.take_if(|since| *since <= sent);
        if let Some(since) = was_cut_off {
            self.renew_now_if(|tracked| tracked.confirmed_at() < since);
        }
    }

    /// Takes the grants that the clock has ended, and that are not renewed any more.
    pub(crate) fn take_ended(&self) -> Vec<ClaimRef> {
        std::mem::take(&mut self.lock().ended)
    }

    /// Stops keeping a claim.
    pub(crate) fn forget(&self, tracked: &TrackedClaim) {
        self.lock().remove_this(tracked);
    }

    /// How many claims are tracked.
    pub(crate) fn len(&self) -> usize {
        self.lock().claims.len()
    }

    pub(crate) fn all(&self) -> Vec<Arc<TrackedClaim>> {
        self.lock()
            .claims
            .values()
            .map(|row| Arc::clone(&row.tracked))
            .collect()
    }

    /// Updates the schedule after a renewal: when to renew next, or that the claim is over.
    pub(crate) fn settle(&self, tracked: &Arc<TrackedClaim>) {
        let now = self.clock.now();
        // Without the mutex: telling of a loss runs wakers.
        let (over, renew_at) = (tracked.is_over(now), tracked.renew_at());
        let mut schedule = self.lock();
        if over {
            schedule.remove_this(tracked);
            self.wake_for_ended(&schedule);
        } else if !schedule.is_due(tracked.claim.id, now)
            && schedule.reschedule(tracked.claim.id, renew_at)
        {
            self.wake_for(&schedule, renew_at, None);
        }
    }

    /// Asks the keeper to renew one claim as soon as it can.
    pub(crate) fn renew_now(&self, tracked: &TrackedClaim) {
        let now = self.clock.now();
        let mut schedule = self.lock();
        if schedule.reschedule(tracked.claim.id, Some(now)) {
            self.wake_for(&schedule, Some(now), None);
        }
    }

    /// Lets the keeper try again after this pause, unless a renewal was requested since.
    pub(crate) fn retry_within(&self, tracked: &TrackedClaim, pause: Duration) {
        let now = self.clock.now();
        let mut schedule = self.lock();
        if !schedule.is_due(tracked.claim.id, now)
            && schedule.reschedule(tracked.claim.id, Some(now + pause))
        {
            self.wake_for(&schedule, Some(now + pause), None);
        }
    }

    /// Asks the keeper to renew all these as soon as it can: the store is reachable again, or is
    /// another one.
    pub(crate) fn renew_now_if(&self, wanted: impl Fn(&TrackedClaim) -> bool) {
        let now = self.clock.now();
        let mut schedule = self.lock();
        let renewed = schedule
            .claims
            .values()
            .filter(|row| row.renew_at.is_some() && wanted(&row.tracked));
        let claims: Vec<ClaimId> = renewed.map(|row| row.tracked.claim.id).collect();
        for claim in claims {
            schedule.reschedule(claim, Some(now));
        }
        self.wake_for(&schedule, Some(now), None);
    }

    /// Wakes the keeper for grants that it is to release.
    fn wake_for_ended(&self, schedule: &Schedule) {
        if !schedule.ended.is_empty() {
            self.renewal_due.notify_one();
        }
    }

    /// Wakes a sleeper if something is due before it would wake by itself.
    fn wake_for(&self, schedule: &Schedule, renew_at: Option<Moment>, look_at: Option<Moment>) {
        if renew_at.is_some_and(|at| schedule.keeper_wakes.is_none_or(|wakes| at < wakes)) {
            self.renewal_due.notify_one();
        }
        if look_at.is_some_and(|at| schedule.warden_wakes.is_none_or(|wakes| at < wakes)) {
            self.look.notify_all();
        }
    }

    /// The claims whose renewal is due, with those that can share the request. Each is due again
    /// when its attempt must have been answered, so that a hanging renewal is followed by another.
    pub(crate) fn take_due(&self) -> Vec<Arc<TrackedClaim>> {
        let now = self.clock.now();
        let mut schedule = self.lock();
        let mut due = Vec::new();
        let Some(window) = schedule.window(now) else {
            return due;
        };
        for (at, claim) in schedule
            .renewals
            .range(..=(window, ClaimId::from_bits(u128::MAX)))
        {
            let Some(row) = schedule.claims.get(claim) else {
                continue;
            };
            if *at <= now || at.since(now) <= row.tracked.leeway() {
                due.push(Arc::clone(&row.tracked));
            }
        }
        for tracked in &due {
            schedule.reschedule(tracked.claim.id, Some(now + tracked.attempt(now)));
        }
        due
    }

    /// Sleeps until a renewal may be due; `false` when the registry is closed and empty.
    pub(crate) async fn renewal_due(&self) -> bool {
        let now = self.clock.now();
        let sleep = {
            let mut schedule = self.lock();
            if schedule.closed && schedule.claims.is_empty() {
                return false;
            }
            let next = schedule.renewals.first().map(|(at, _)| *at);
            schedule.keeper_wakes = schedule.wake_time(next, now);
            schedule.keeper_wakes
        };
        match sleep {
            Some(at) => {
                let _ = tokio::time::timeout(at.since(now), self.renewal_due.notified()).await;
            }
            None => self.renewal_due.notified().await,
        }
        true
    }

    /// One round of the warden: fires what is due, then sleeps. `false` when the registry is closed
    /// and empty.
    pub(crate) fn look(&self) -> bool {
        let now = self.clock.now();
        let due: Vec<Arc<TrackedClaim>> = {
            let mut schedule = self.lock();
            let mut due = Vec::new();
            while let Some(&(at, claim)) = schedule.looks.first() {
                if at > now {
                    break;
                }
                schedule.looks.pop_first();
                if let Some(row) = schedule.claims.get_mut(&claim) {
                    row.look_at = None;
                    due.push(Arc::clone(&row.tracked));
                }
            }
            due
        };
        // Without the mutex: this runs wakers of the user's runtime. A panicking one must not leave
        // the others unwatched, and its own claim is checked again.
        let watch = |tracked: &Arc<TrackedClaim>| {
            catch_unwind(AssertUnwindSafe(|| tracked.watch(now))).unwrap_or(Some(now))
        };
        let next: Vec<Option<Moment>> = due.iter().map(watch).collect();
        let mut schedule = self.lock();
        for (tracked, look_at) in due.iter().zip(next) {
            schedule.look_again(tracked, look_at);
        }
        self.wake_for_ended(&schedule);
        if schedule.closed && schedule.claims.is_empty() {
            return false;
        }
        let now = self.clock.now();
        let next = schedule.looks.first().map(|(at, _)| *at);
        schedule.warden_wakes = schedule.wake_time(next, now);
        match schedule.warden_wakes {
            Some(at) => drop(
                self.look
                    .wait_timeout(schedule, at.since(now))
                    .unwrap_or_else(PoisonError::into_inner),
            ),
            None => drop(
                self.look
                    .wait(schedule)
                    .unwrap_or_else(PoisonError::into_inner),
            ),
        }
        true
    }

    /// Lets keeper and warden end once the last claim is gone.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake_all();
    }
}
