//! What the keeper and the warden work from: every tracked claim, ordered by when to renew it and by when to look at its end.
//!
//! One lock, held for moments. Sleepers are woken only when something is due before they would wake by themselves, so that an
//! uncontended acquire and release wakes no thread.

#[cfg(test)]
mod tests;

mod pending;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use self::pending::Pending;
use self::pending::Told;
use super::tracked::{Stage, TrackedClaim};
use super::{Clock, Moment};
use crate::error::Error;
use crate::fence::Fence;
use crate::store::{ByClaim, ClaimId, ClaimRef, Gone, Push};

/// Sleepers look at the clock at least so often: their timers stop while the machine is suspended, our clock does not.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// How long sleepers go on ticking after the last claim has gone. A program that takes and gives back one lock in a loop would
/// otherwise wake them every time.
const LINGER: Duration = Duration::from_secs(2);

pub(crate) struct Registry {
    pub(crate) clock: Arc<dyn Clock>,
    rows: Mutex<Rows>,
    /// Wakes the keeper.
    renewal_due: Notify,
    /// Wakes the warden.
    look: Condvar,
}

#[derive(Default)]
struct Rows {
    /// Claims that are being asked for, from before they are sent until they are tracked.
    pending: ByClaim<Arc<Pending>>,
    claims: ByClaim<Row>,
    renewals: BTreeSet<(Moment, ClaimId)>,
    looks: BTreeSet<(Moment, ClaimId)>,
    /// Grants that the clock has ended and that nothing renews any more: the keeper releases them.
    ended: Vec<ClaimRef>,
    /// Since when the store cannot be reached.
    cut_off: Option<Moment>,
    /// When the keeper will look by itself.
    keeper_wakes: Option<Moment>,
    /// When the warden will look by itself.
    warden_wakes: Option<Moment>,
    /// When there was a claim for the last time.
    last_busy: Moment,
    closed: bool,
}

struct Row {
    tracked: Arc<TrackedClaim>,
    renew_at: Option<Moment>,
    look_at: Option<Moment>,
}

impl Registry {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Registry> {
        let registry = Arc::new(Registry {
            clock,
            rows: Mutex::default(),
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

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(&self) {
        // Under the lock, so that a warden between its look at the rows and its sleep is not missed.
        let _rows = self.lock();
        self.look.notify_all();
        self.renewal_due.notify_one();
    }

    /// Enters a claim that is about to be sent, so that nothing is missed that the store says of it. Once.
    pub(crate) fn enter(&self, claim: ClaimId) -> Arc<Pending> {
        let pending = Arc::new(Pending::default());
        self.lock().pending.insert(claim, Arc::clone(&pending));
        pending
    }

    /// The claim is not asked for any more.
    pub(crate) fn leave(&self, claim: ClaimId) {
        let left = self.lock().pending.remove(&claim);
        if let Some(pending) = left {
            pending.settle();
        }
    }

    /// Begins to track a claim, or takes up its new stage. What the store has said of it meanwhile is heard now.
    pub(crate) fn keep(&self, tracked: &Arc<TrackedClaim>) {
        let now = self.clock.now();
        let (renew_at, look_at) = (tracked.renew_at(), tracked.watch(now));
        let mut rows = self.lock();
        let pending = rows.pending.remove(&tracked.claim.id);
        rows.set(tracked, renew_at, look_at);
        rows.last_busy = now;
        self.wake_for(&rows, renew_at, look_at);
        drop(rows);
        if let Some(pending) = pending {
            match pending.settle() {
                None => {}
                Some(Told::Granted(fence)) => self.granted(tracked, fence),
                // It may have been an earlier attempt with the same claim: the store is asked.
                Some(Told::Changed) => self.renew_now(tracked),
            }
        }
    }

    /// Whether a caller still wants this claim.
    pub(crate) fn wants(&self, claim: ClaimId) -> bool {
        let rows = self.lock();
        rows.pending.contains_key(&claim) || rows.claims.contains_key(&claim)
    }

    /// Takes what the store says without being asked.
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

    /// A claim that is tracked hears of it now; one that is still being asked for, as soon as it has its answer.
    fn tell(&self, claim: ClaimId, told: Told, now: impl FnOnce(&Arc<TrackedClaim>)) {
        match self.lookup(claim) {
            (Some(tracked), _) => now(&tracked),
            (None, Some(pending)) => pending.tell(told),
            (None, None) => {}
        }
    }

    fn lookup(&self, claim: ClaimId) -> (Option<Arc<TrackedClaim>>, Option<Arc<Pending>>) {
        let rows = self.lock();
        (
            rows.claims.get(&claim).map(|row| Arc::clone(&row.tracked)),
            rows.pending.get(&claim).map(Arc::clone),
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

    /// The store answers a request of this time. If it did not before, everything that it has not confirmed since is renewed
    /// now: it may have forgotten us meanwhile.
    pub(crate) fn reached(&self, sent: Moment) {
        let was_cut_off = self.lock().cut_off.take_if(|since| *since <= sent);
        if let Some(since) = was_cut_off {
            self.renew_now_if(|tracked| tracked.confirmed_at() < since);
        }
    }

    /// Takes the grants that the clock has ended, and that nothing renews any more.
    pub(crate) fn take_ended(&self) -> Vec<ClaimRef> {
        std::mem::take(&mut self.lock().ended)
    }

    /// Begins to keep a claim that this client does not have yet; `false` when it has.
    pub(crate) fn keep_new(&self, tracked: &Arc<TrackedClaim>) -> bool {
        if self.find(tracked.claim.id).is_some() {
            return false;
        }
        self.keep(tracked);
        true
    }

    /// Stops keeping a claim.
    pub(crate) fn forget(&self, tracked: &TrackedClaim) {
        self.lock().remove_this(tracked);
    }

    /// How many claims are tracked.
    pub(crate) fn len(&self) -> usize {
        self.lock().claims.len()
    }

    pub(crate) fn find(&self, claim: ClaimId) -> Option<Arc<TrackedClaim>> {
        self.lock()
            .claims
            .get(&claim)
            .map(|row| Arc::clone(&row.tracked))
    }

    pub(crate) fn all(&self) -> Vec<Arc<TrackedClaim>> {
        self.lock()
            .claims
            .values()
            .map(|row| Arc::clone(&row.tracked))
            .collect()
    }

    /// Takes up what a renewal has changed: when to renew next, or that there is nothing to keep any more.
    pub(crate) fn settle(&self, tracked: &Arc<TrackedClaim>) {
        let now = self.clock.now();
        // Without the lock: what the clock has just ended is told of here, and that runs wakers.
        let (over, renew_at) = (tracked.is_over(now), tracked.renew_at());
        let mut rows = self.lock();
        if over {
            rows.remove_this(tracked);
            self.wake_for_ended(&rows);
        } else if !rows.is_due(tracked.claim.id, now) && rows.reschedule(tracked.claim.id, renew_at)
        {
            self.wake_for(&rows, renew_at, None);
        }
    }

    /// Asks the keeper to renew one claim as soon as it can.
    pub(crate) fn renew_now(&self, tracked: &TrackedClaim) {
        let now = self.clock.now();
        let mut rows = self.lock();
        if rows.reschedule(tracked.claim.id, Some(now)) {
            self.wake_for(&rows, Some(now), None);
        }
    }

    /// Lets the keeper try again after so long, unless it was asked to since.
    pub(crate) fn retry_within(&self, tracked: &TrackedClaim, pause: Duration) {
        let now = self.clock.now();
        let mut rows = self.lock();
        if !rows.is_due(tracked.claim.id, now)
            && rows.reschedule(tracked.claim.id, Some(now + pause))
        {
            self.wake_for(&rows, Some(now + pause), None);
        }
    }

    /// Asks the keeper to renew all these as soon as it can: the store has just come back, or is another one.
    pub(crate) fn renew_now_if(&self, wanted: impl Fn(&TrackedClaim) -> bool) {
        let now = self.clock.now();
        let mut rows = self.lock();
        let renewed = rows
            .claims
            .values()
            .filter(|row| row.renew_at.is_some() && wanted(&row.tracked));
        let claims: Vec<ClaimId> = renewed.map(|row| row.tracked.claim.id).collect();
        for claim in claims {
            rows.reschedule(claim, Some(now));
        }
        self.wake_for(&rows, Some(now), None);
    }

    /// Wakes the keeper for grants that it is to release.
    fn wake_for_ended(&self, rows: &Rows) {
        if !rows.ended.is_empty() {
            self.renewal_due.notify_one();
        }
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
    pub(crate) fn take_due(&self) -> Vec<Arc<TrackedClaim>> {
        let now = self.clock.now();
        let mut rows = self.lock();
        let mut due = Vec::new();
        let Some(window) = rows.window(now) else {
            return due;
        };
        for (at, claim) in rows
            .renewals
            .range(..=(window, ClaimId::from_bits(u128::MAX)))
        {
            let Some(row) = rows.claims.get(claim) else {
                continue;
            };
            if *at <= now || at.since(now) <= row.tracked.leeway() {
                due.push(Arc::clone(&row.tracked));
            }
        }
        for tracked in &due {
            rows.reschedule(tracked.claim.id, Some(now + tracked.attempt(now)));
        }
        due
    }

    /// Sleeps until a renewal may be due; `false` when the registry is closed and empty.
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

    /// The warden's turn: fires what is due, then sleeps. `false` when the registry is closed and empty.
    pub(crate) fn look(&self) -> bool {
        let now = self.clock.now();
        let due: Vec<Arc<TrackedClaim>> = {
            let mut rows = self.lock();
            let mut due = Vec::new();
            while let Some(&(at, claim)) = rows.looks.first() {
                if at > now {
                    break;
                }
                rows.looks.pop_first();
                if let Some(row) = rows.claims.get_mut(&claim) {
                    row.look_at = None;
                    due.push(Arc::clone(&row.tracked));
                }
            }
            due
        };
        // Without the lock: this runs wakers of the user's runtime. One that panics must not leave the others unwatched, and
        // its own claim is looked at again.
        let watch = |tracked: &Arc<TrackedClaim>| {
            catch_unwind(AssertUnwindSafe(|| tracked.watch(now))).unwrap_or(Some(now))
        };
        let next: Vec<Option<Moment>> = due.iter().map(watch).collect();
        let mut rows = self.lock();
        for (tracked, look_at) in due.iter().zip(next) {
            rows.look_again(tracked, look_at);
        }
        self.wake_for_ended(&rows);
        if rows.closed && rows.claims.is_empty() {
            return false;
        }
        let now = self.clock.now();
        let next = rows.looks.first().map(|(at, _)| *at);
        rows.warden_wakes = rows.wake_time(next, now);
        match rows.warden_wakes {
            Some(at) => drop(
                self.look
                    .wait_timeout(rows, at.since(now))
                    .unwrap_or_else(PoisonError::into_inner),
            ),
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
    fn set(
        &mut self,
        tracked: &Arc<TrackedClaim>,
        renew_at: Option<Moment>,
        look_at: Option<Moment>,
    ) {
        let id = tracked.claim.id;
        self.remove(id);
        self.renewals.extend(renew_at.map(|at| (at, id)));
        self.looks.extend(look_at.map(|at| (at, id)));
        self.claims.insert(
            id,
            Row {
                tracked: Arc::clone(tracked),
                renew_at,
                look_at,
            },
        );
    }

    fn remove(&mut self, id: ClaimId) {
        let Some(row) = self.claims.remove(&id) else {
            return;
        };
        if let Some(at) = row.renew_at {
            self.renewals.remove(&(at, id));
        }
        if let Some(at) = row.look_at {
            self.looks.remove(&(at, id));
        }
    }

    /// Moves a claim's renewal; `false` when it is not tracked any more.
    fn reschedule(&mut self, id: ClaimId, at: Option<Moment>) -> bool {
        let Some(row) = self.claims.get_mut(&id) else {
            return false;
        };
        if let Some(old) = std::mem::replace(&mut row.renew_at, at) {
            self.renewals.remove(&(old, id));
        }
        self.renewals.extend(at.map(|at| (at, id)));
        true
    }

    /// Whether the keeper was asked to renew it, and has not yet taken it up: taking it up moves it ahead.
    fn is_due(&self, id: ClaimId, now: Moment) -> bool {
        self.claims
            .get(&id)
            .and_then(|row| row.renew_at)
            .is_some_and(|at| at <= now)
    }

    /// Removes the row of this very claim, and not of another that was tracked under its id.
    fn remove_this(&mut self, tracked: &TrackedClaim) {
        let id = tracked.claim.id;
        if self
            .claims
            .get(&id)
            .is_some_and(|row| std::ptr::eq(Arc::as_ptr(&row.tracked), tracked))
        {
            self.remove(id);
            self.ended.extend(tracked.ended_by_clock());
        }
    }

    /// Takes up when the warden is to look next; a claim that is over leaves.
    fn look_again(&mut self, tracked: &Arc<TrackedClaim>, at: Option<Moment>) {
        let id = tracked.claim.id;
        let Some(at) = at else {
            return self.remove_this(tracked);
        };
        if let Some(row) = self.claims.get_mut(&id)
            && Arc::ptr_eq(&row.tracked, tracked)
            && row.look_at.is_none()
        {
            row.look_at = Some(at);
            self.looks.insert((at, id));
        }
    }

    /// Up to when renewals are brought forward: none unless one is due now.
    fn window(&self, now: Moment) -> Option<Moment> {
        let (at, claim) = self.renewals.first()?;
        (*at <= now).then(|| {
            self.claims
                .get(claim)
                .map_or(now, |row| now + row.tracked.leeway())
        })
    }

    /// When a sleeper is to wake by itself; `None` when nothing has been tracked for a while.
    fn wake_time(&self, next: Option<Moment>, now: Moment) -> Option<Moment> {
        let tick = now + TICK;
        match next {
            Some(at) => Some(at.min(tick)),
            None if !self.claims.is_empty() || now.since(self.last_busy) < LINGER => Some(tick),
            None => None,
        }
    }
}
