//! The keeper renews every claim of a client, waiting and holding, in as few requests as it can.
//!
//! It is one task. A renewal that fails or hangs is followed by another until the lease has run
//! out. A late answer still counts from the send of its own request.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::Moment;
use super::registry::Registry;
use super::tracked::TrackedClaim;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{ClaimRef, Ending, LeaseUnit, Standing, Store};

/// How many claims one call renews.
const BATCH: usize = 1024;

/// The least upper bound of the pause before a failed renewal is tried again.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Arc<Registry>,
    /// Renewals in flight: store futures run to their end.
    pub(crate) renewals: TaskTracker,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>, registry: Arc<Registry>) -> Keeper {
        let renewals = TaskTracker::new();
        renewals.close();
        Keeper {
            store,
            registry,
            renewals,
        }
    }

    /// Renews what is due, until the registry is closed and empty.
    pub(crate) async fn keep(self: Arc<Self>) {
        while self.registry.renewal_due().await {
            let now = self.registry.clock.now();
            let mut due = self.registry.take_due();
            // An expired claim is not renewed: that would keep others out for a holder that has
            // been told to stop.
            due.retain(|tracked| tracked.begin_attempt(now) || self.drop_if_over(tracked, now));
            for batch in due.chunks(BATCH) {
                // A task of its own: a store that hangs or panics must not stop the other renewals.
                self.renewals.spawn(Arc::clone(&self).renew(batch.to_vec()));
            }
            for ended in self.registry.take_ended() {
                // A claim with a lease of its own ends by itself. One that shares a session would
                // live as long as the session.
                if self.store.capability().lease_unit == LeaseUnit::Session {
                    self.renewals.spawn(Arc::clone(&self).release(ended));
                }
            }
        }
    }

    /// Releases a grant whose lease has ended, until the store has answered. The holder has been
    /// told.
    async fn release(self: Arc<Self>, claim: ClaimRef) {
        let until = self.registry.clock.now() + claim.claim.lease;
        while let Err(error) = self.store.release(&claim, Ending::Release).await {
            if !error.retry_may_help() || self.registry.clock.now() >= until {
                return tracing::debug!(%error, name = %claim.claim.name, "an expired grant was not released");
            }
            tokio::time::sleep(PAUSE * 4).await;
        }
    }

    fn drop_if_over(&self, tracked: &Arc<TrackedClaim>, now: Moment) -> bool {
        if tracked.is_over(now) {
            self.registry.forget(tracked);
        }
        false
    }

    /// Renews these claims in one request.
    async fn renew(self: Arc<Self>, batch: Vec<Arc<TrackedClaim>>) {
        let ended = EndsAttempts(&batch);
        let claims: Vec<ClaimRef> = batch.iter().map(|tracked| tracked.to_ref()).collect();
        let sent = self.registry.clock.now();
        let mut answers = self.store.renew(&claims).await;
        let now = self.registry.clock.now();
        drop(ended);
        if answers.len() != claims.len() {
            let error = Error::protocol(format!(
                "the store answered {} of {} renewals",
                answers.len(),
                claims.len()
            ));
            answers = vec![Err(error); claims.len()];
        }
        let reached = answers.iter().any(Result::is_ok);
        for (tracked, answer) in batch.iter().zip(answers) {
            self.take(tracked, sent, answer, now);
        }
        if reached {
            self.registry.reached(sent);
        }
    }

    fn take(
        &self,
        tracked: &Arc<TrackedClaim>,
        sent: Moment,
        answer: Result<Standing>,
        now: Moment,
    ) {
        match answer {
            Ok(standing) => {
                tracked.confirm(sent, standing, now);
                self.registry.settle(tracked);
            }
            Err(error) => {
                tracing::debug!(%error, name = %tracked.claim.name, "renewal failed");
                if error.kind() == ErrorKind::Unavailable {
                    self.registry.unreached(now);
                }
                tracked.troubled(&error, now);
                // Sooner than a hanging attempt is given up, but neither at once nor in step with
                // other clients.
                let attempt = tracked.attempt(now);
                let pause = attempt
                    .mul_f64(0.1 + 0.2 * fastrand::f64())
                    .max(PAUSE.min(attempt));
                self.registry.retry_within(tracked, pause);
            }
        }
    }
}

/// Counts the attempts down however the request ends, also when the store panics.
struct EndsAttempts<'a>(&'a [Arc<TrackedClaim>]);

impl Drop for EndsAttempts<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|tracked| tracked.end_attempt());
    }
}
