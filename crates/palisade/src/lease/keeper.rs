//! The keeper renews every claim of a client, waiting and holding, in as few requests as it can.
//!
//! It is one task. A renewal that fails or hangs is followed by another until the lease has run out: the answer that comes
//! late still counts from when its own request was sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::Moment;
use super::kept::Kept;
use super::ledger::Ledger;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{ClaimRef, Event, Standing, Store};

/// The longest pause before a failed renewal is tried again, at the least.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Arc<Ledger>,
    /// Since when the store cannot be reached.
    cut_off: Mutex<Option<Moment>>,
    /// Renewals on their way: store futures run to their end.
    pub(crate) renewals: TaskTracker,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>, ledger: Arc<Ledger>) -> Keeper {
        let renewals = TaskTracker::new();
        renewals.close();
        Keeper { store, ledger, cut_off: Mutex::new(None), renewals }
    }

    /// Renews what is due, until the ledger is closed and empty.
    pub(crate) async fn keep(self: Arc<Self>) {
        while self.ledger.renewal_due().await {
            let now = self.ledger.clock.now();
            let mut due = self.ledger.take_due();
            // What is over is not renewed: that would keep others out for a holder that has been told to stop.
            due.retain(|kept| kept.begin_attempt(now) || self.drop_if_over(kept, now));
            // Those of one part together, in the order in which they are due.
            due.sort_by_cached_key(|kept| self.store.part(&kept.claim.name));
            for part in due.chunk_by(|one, other| self.store.part(&one.claim.name) == self.store.part(&other.claim.name)) {
                for batch in part.chunks(self.store.capability().renew_batch.max(1)) {
                    // A task of its own: a store that hangs or panics must not stop the other renewals.
                    self.renewals.spawn(Arc::clone(&self).renew(batch.to_vec()));
                }
            }
        }
    }

    fn drop_if_over(&self, kept: &Arc<Kept>, now: Moment) -> bool {
        if kept.is_over(now) {
            self.ledger.forget(kept);
        }
        false
    }

    /// Renews these claims in one request.
    async fn renew(self: Arc<Self>, batch: Vec<Arc<Kept>>) {
        let ended = EndsAttempts(&batch);
        let claims: Vec<ClaimRef> = batch.iter().map(|kept| kept.to_ref()).collect();
        let sent = self.ledger.clock.now();
        let mut answers = self.store.renew(&claims).await;
        let now = self.ledger.clock.now();
        drop(ended);
        if answers.len() != claims.len() {
            let error = Error::protocol(format!("the store answered {} of {} renewals", answers.len(), claims.len()));
            answers = vec![Err(error); claims.len()];
        }
        let reached = answers.iter().any(Result::is_ok);
        for (kept, answer) in batch.iter().zip(answers) {
            self.take(kept, sent, answer, now);
        }
        if reached {
            self.reached(sent);
        }
    }

    fn take(&self, kept: &Arc<Kept>, sent: Moment, answer: Result<Standing>, now: Moment) {
        match answer {
            Ok(standing) => {
                kept.confirm(sent, standing, now);
                self.ledger.settle(kept);
            }
            Err(error) => {
                tracing::debug!(%error, name = %kept.claim.name, "renewal failed");
                if *error.kind() == ErrorKind::Unavailable {
                    *self.cut_off() = Some(now);
                }
                kept.troubled(&error, now);
                // Sooner than a hanging attempt would be given up, but neither at once nor in step with everybody else.
                let attempt = kept.attempt(now);
                let pause = attempt.mul_f64(0.1 + 0.2 * fastrand::f64()).max(PAUSE.min(attempt));
                self.ledger.retry_within(kept, pause);
            }
        }
    }

    fn cut_off(&self) -> std::sync::MutexGuard<'_, Option<Moment>> {
        self.cut_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store answers a request of this time. If it did not before, everything that it has not confirmed since is renewed
    /// now: it may have forgotten us meanwhile.
    fn reached(&self, sent: Moment) {
        let was_cut_off = self.cut_off().take_if(|since| *since <= sent);
        if let Some(since) = was_cut_off {
            self.ledger.renew_now_if(|kept| kept.confirmed_at() < since);
        }
    }

    /// Takes up what the store tells by itself. Never ends.
    pub(crate) async fn listen(self: Arc<Self>) {
        loop {
            match self.store.event().await {
                Event::CutOff => {
                    let now = self.ledger.clock.now();
                    *self.cut_off() = Some(now);
                    let error = Error::unavailable("the connection to the store is lost");
                    self.ledger.all().iter().for_each(|kept| kept.troubled(&error, now));
                }
                Event::Restored => {
                    *self.cut_off() = None;
                    self.ledger.renew_now_if(|_| true);
                }
                Event::Gone { claim, why } => {
                    if let Some(kept) = self.ledger.find_ended(claim) {
                        kept.ended(why);
                        self.ledger.settle(&kept);
                    }
                }
            }
        }
    }
}

/// Counts the attempts down however the request ends, also when the store panics.
struct EndsAttempts<'a>(&'a [Arc<Kept>]);

impl Drop for EndsAttempts<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|kept| kept.end_attempt());
    }
}
