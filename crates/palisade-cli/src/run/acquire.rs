//! The wait in line.

use std::time::Instant;

use palisade::ErrorKind;

use super::progress::Progress;
use super::signals::Signals;
use super::{Role, Session, WITHDRAWAL};
use crate::args::{HoldArgs, ModeArgs};
use crate::busy::Refused;
use crate::config::Store;
use crate::exit::{Exit, Failure};
use crate::held::Held;
use crate::lock::{Acquired, Lock};
use crate::notice::Notices;

/// A lock to wait for, with all that is said of the wait.
pub(crate) struct WaitInLine<'a> {
    pub(crate) store: &'a Store,
    pub(crate) lock: &'a Lock,
    pub(crate) hold: &'a HoldArgs,
    pub(crate) mode: &'a ModeArgs,
    /// All names, the first one first.
    pub(crate) names: &'a [String],
    /// Our own label, as others see it.
    pub(crate) owner: &'a str,
    pub(crate) notices: Notices,
}

impl WaitInLine<'_> {
    /// Waits in line, and says how it goes. A signal leaves at once, and leaves no place in the line
    /// behind.
    pub(crate) async fn acquire(
        &self,
        signals: &mut Signals,
    ) -> Result<Result<Held, Exit>, Failure> {
        let begun = Instant::now();
        let (locks, is_bounded) = (self.store.locks(), self.hold.wait.is_some());
        let progress = Progress::new(locks, self.names, self.owner, self.notices, is_bounded);
        let acquired = tokio::select! {
            biased;
            signal = signals.leave() => Err(signal),
            acquired = self.lock.acquire(self.hold) => Ok(acquired),
            never = progress.report() => match never {},
        };
        let last_seen = progress.last_seen();
        let refused = Refused {
            store: self.store,
            hold: self.hold,
            begun,
            mode: self.mode,
            names: self.names,
            owner: self.owner,
            last_seen,
        };
        match acquired {
            Ok(Ok(Acquired::Held(held))) => Ok(Ok(held)),
            Ok(Ok(Acquired::Busy)) => refused.tell(None, self.notices).await.map(Err),
            Ok(Err(error)) if error.kind() == ErrorKind::Timeout => {
                refused.tell(Some(&error), self.notices).await.map(Err)
            }
            Ok(Err(error)) => Err(self.store.failed(error)),
            Err(signal) => {
                withdrawn(self.store).await;
                Ok(Err(Exit::of_signal(signal.as_raw())))
            }
        }
    }
}

/// Waits a little until what was given up is withdrawn: it is by now, or on its way.
pub(crate) async fn withdrawn(store: &Store) {
    let shutdown = store.locks().shutdown();
    if tokio::time::timeout(WITHDRAWAL, shutdown).await.is_err() {
        store.is_silent();
    }
}

impl Session {
    /// Waits in line.
    pub(super) async fn acquire(
        &self,
        signals: &mut Signals,
    ) -> Result<Result<Held, Exit>, Failure> {
        let plain = ModeArgs::default();
        let mode = match &self.job.role {
            Role::Holder(mode) => mode,
            Role::Leader(_) => &plain,
        };
        let wait = WaitInLine {
            store: &self.store,
            lock: &self.lock,
            hold: &self.job.hold,
            mode,
            names: &self.job.names,
            owner: &self.shown,
            notices: self.notices,
        };
        wait.acquire(signals).await
    }
}
