//! The keeper renews every claim of a client, waiting and holding, in as few requests as it can.
//!
//! It is one task. A renewal that fails or hangs is followed by another until the lease has run out: the answer that comes
//! late still counts from when its own request was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::kept::Kept;
use super::ledger::Ledger;
use crate::error::{Error, ErrorKind};
use crate::store::{ClaimRef, Event, Store};

pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Arc<Ledger>,
    /// Whether the last renewal failed because the store could not be reached.
    cut_off: AtomicBool,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>, ledger: Arc<Ledger>) -> Keeper {
        Keeper { store, ledger, cut_off: AtomicBool::new(false) }
    }

    /// Renews what is due, until the ledger is closed and empty.
    pub(crate) async fn keep(self: Arc<Self>) {
        while self.ledger.renewal_due().await {
            let due = self.ledger.take_due();
            for batch in due.chunks(self.store.capability().renew_batch.max(1)) {
                // A task of its own: a store that hangs or panics must not stop the other renewals.
                tokio::spawn(Arc::clone(&self).renew(batch.to_vec()));
            }
        }
    }

    /// Renews these claims in one request.
    async fn renew(self: Arc<Self>, batch: Vec<Arc<Kept>>) {
        let claims: Vec<ClaimRef> = batch.iter().map(|kept| kept.to_ref()).collect();
        let sent = self.ledger.clock.now();
        let answer = self.store.renew(&claims).await.and_then(|standings| {
            if standings.len() == claims.len() {
                return Ok(standings);
            }
            Err(Error::protocol(format!("the store answered {} of {} renewals", standings.len(), claims.len())))
        });
        let now = self.ledger.clock.now();
        match answer {
            Ok(standings) => {
                for (kept, standing) in batch.iter().zip(standings) {
                    kept.confirm(sent, standing, now);
                    self.ledger.settle(kept);
                }
                self.reached();
            }
            Err(error) => {
                tracing::debug!(%error, claims = claims.len(), "renewal failed");
                if *error.kind() == ErrorKind::Unavailable {
                    self.cut_off.store(true, Ordering::Relaxed);
                }
                for kept in &batch {
                    kept.troubled(&error, now);
                    // Sooner than a hanging attempt would be given up, but not in step with everybody else's.
                    let pause = kept.attempt(now).mul_f64(0.1 + 0.2 * fastrand::f64());
                    self.ledger.renew_within(kept, pause);
                }
            }
        }
    }

    /// The store answers. If it did not before, everything is renewed now: it may have forgotten us meanwhile.
    fn reached(&self) {
        if self.cut_off.swap(false, Ordering::Relaxed) {
            self.ledger.renew_everything_now();
        }
    }

    /// Takes up what the store tells by itself. Never ends.
    pub(crate) async fn listen(self: Arc<Self>) {
        loop {
            match self.store.event().await {
                Event::CutOff => {
                    self.cut_off.store(true, Ordering::Relaxed);
                    let error = Error::unavailable("the connection to the store is lost");
                    let now = self.ledger.clock.now();
                    self.ledger.all().iter().for_each(|kept| kept.troubled(&error, now));
                }
                Event::Restored => {
                    self.cut_off.store(false, Ordering::Relaxed);
                    self.ledger.renew_everything_now();
                }
                Event::Gone { claim, why } => {
                    if let Some(kept) = self.ledger.find(claim) {
                        kept.ended(why);
                        self.ledger.settle(&kept);
                    }
                }
            }
        }
    }
}
