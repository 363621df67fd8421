//! The options that every lock takes, and the one place where they are checked against each other
//! and against the store.

use std::sync::Arc;
use std::time::Duration;

use super::Obstacle;
use crate::engine::Core;
use crate::engine::acquire::{self, Outcome, WaitLimit};
use crate::engine::held_claim::HeldClaim;
use crate::engine::plan::{Plan, Spin};
use crate::error::{Error, Result};
use crate::lease::deadline::default_stop_margin;
use crate::lease::tracked::Terms;
use crate::name::Name;
use crate::store::{Capability, Kind, LeaseUnit, Mode};

const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const DEFAULT_STORE_WAIT: Duration = Duration::from_secs(10);

/// The options of a lock.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) core: Arc<Core>,
    /// As given; checked when used, so that making a lock cannot fail.
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) owner: Arc<str>,
    pub(crate) reason: Option<Arc<str>>,
    pub(crate) lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) once_per: Option<Duration>,
    pub(crate) detachable: bool,
    /// Whether the owner is the value of a candidate in an election.
    pub(crate) candidate: bool,
    pub(crate) auto_renew: bool,
    pub(crate) stop_margin: Option<Duration>,
    pub(crate) spin: Option<(Duration, Duration)>,
    pub(crate) store_wait: Duration,
    /// What was wrong with the lock when it was made: told when it is used.
    pub(crate) refused: Option<Error>,
}

impl Options {
    pub(crate) fn new(core: &Arc<Core>, owner: &Arc<str>, name: &str, kind: Kind) -> Options {
        Options {
            core: Arc::clone(core),
            name: name.into(),
            kind,
            owner: Arc::clone(owner),
            reason: None,
            lease: None,
            max_hold: None,
            min_hold: None,
            once_per: None,
            detachable: false,
            candidate: false,
            auto_renew: true,
            stop_margin: None,
            spin: None,
            store_wait: DEFAULT_STORE_WAIT,
            refused: None,
        }
    }

    /// Checks everything that can be checked without asking the store.
    pub(crate) fn plan(&self, mode: Mode) -> Result<Plan> {
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        let capability = self.core.capability();
        let lease = self.checked_lease(capability)?;
        self.check_kind(capability, mode)?;
        self.check_times(capability, lease)?;
        Ok(Plan {
            name: Name::new(&*self.name)?,
            kind: self.kind,
            mode,
            owner: Arc::clone(&self.owner),
            reason: self.reason.clone(),
            value: self.candidate.then(|| Arc::clone(&self.owner)),
            lease,
            exact_lease: self.lease.is_some(),
            min_hold: self.min_hold.filter(|span| !span.is_zero()),
            once_per: self.once_per,
            detachable: self.detachable,
            terms: Terms {
                auto_renew: self.auto_renew,
                max_hold: self.max_hold,
                stop_margin: self
                    .stop_margin
                    .unwrap_or_else(|| default_stop_margin(lease, self.max_hold)),
                drift: self.core.drift,
            },
            spin: self.checked_spin()?,
            store_wait: self.store_wait,
        })
    }

    fn checked_lease(&self, capability: &Capability) -> Result<Duration> {
        let Capability {
            store,
            min_lease,
            max_lease,
            ..
        } = *capability;
        match self.lease {
            None => Ok(DEFAULT_LEASE.clamp(min_lease, max_lease)),
            Some(lease) if lease >= min_lease && lease <= max_lease => Ok(lease),
            Some(lease) => Err(Error::config(format!(
                "a lease of {lease:?} does not work on {store}; give {min_lease:?} to {max_lease:?}"
            ))),
        }
    }

    fn check_kind(&self, capability: &Capability, mode: Mode) -> Result<()> {
        let Capability {
            rwlock, semaphore, ..
        } = *capability;
        let refuse = |what: &str| Err(Error::unsupported(format!("{capability} has no {what}")));
        match (self.kind, mode) {
            (Kind::RwLock, _) if !rwlock => refuse("read/write locks"),
            (Kind::Semaphore { .. }, _) if !semaphore => refuse("semaphores"),
            (Kind::Semaphore { limit: 0 }, _) => Err(Error::config(
                "a semaphore of 0 permits can never be acquired; give 1 or more",
            )),
            (_, Mode::Permits(0)) => Err(Error::config(
                "0 permits are nothing to hold; ask for 1 or more",
            )),
            (Kind::Semaphore { limit }, Mode::Permits(count)) if count > limit => {
                Err(Error::config(format!(
                    "{count} permits of a semaphore of {limit} can never be granted; ask for {limit} or fewer"
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_times(&self, capability: &Capability, lease: Duration) -> Result<()> {
        if self.min_hold.is_some() && !capability.min_hold {
            return Err(Error::unsupported(format!(
                "{capability} cannot keep a name closed for a minimum time (min_hold)"
            )));
        }
        if self.min_hold.is_some() && self.detachable && capability.lease_unit == LeaseUnit::Session
        {
            // Both need a session of the claim's own, and of different lengths.
            return Err(Error::unsupported(format!(
                "on {capability} a grant with a min_hold cannot be detached; leave out one of the two"
            )));
        }
        if self.once_per.is_some() && !capability.once_per {
            return Err(Error::unsupported(format!(
                "{capability} cannot refuse by the time of the last grant (once_per)"
            )));
        }
        if self.once_per == Some(Duration::ZERO) {
            return Err(Error::config(
                "once_per of 0 refuses nothing; give a longer time",
            ));
        }
        if self.max_hold == Some(Duration::ZERO) {
            return Err(Error::config(
                "max_hold of 0 is over at once; give a longer time",
            ));
        }
        let too_long = Duration::from_secs(366 * 24 * 3600);
        for (what, span) in [("min_hold", self.min_hold), ("once_per", self.once_per)] {
            if span.is_some_and(|span| span > too_long) {
                return Err(Error::config(format!(
                    "{what} is longer than a year; a typo?"
                )));
            }
        }
        if let Some(margin) = self.stop_margin {
            if margin > lease.mul_f64(0.4) {
                return Err(Error::config(format!(
                    "a stop margin of {margin:?} leaves too little of a lease of {lease:?}; give at most two fifths of it, or a longer lease"
                )));
            }
            if self.max_hold.is_some_and(|longest| margin >= longest) {
                return Err(Error::config(
                    "the stop margin is as long as max_hold: the work would be stopped before it begins",
                ));
            }
        }
        if let (Some(longest), Some(shortest)) = (self.max_hold, self.min_hold)
            && longest < shortest
        {
            return Err(Error::config(
                "max_hold is shorter than min_hold; swap them?",
            ));
        }
        Ok(())
    }

    fn checked_spin(&self) -> Result<Option<Spin>> {
        match self.spin {
            None => Ok(None),
            Some((min, max)) if min >= Duration::from_millis(1) && max >= min => {
                Ok(Some(Spin { min, max }))
            }
            Some((min, max)) => Err(Error::config(format!(
                "spin({min:?}..{max:?}) cannot work; give at least 1ms, and the shorter first"
            ))),
        }
    }

    /// Acquires in this mode.
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any point withdraws the claim.
    pub(crate) async fn acquire(&self, mode: Mode, wait: WaitLimit) -> Result<Outcome> {
        acquire::acquire(&self.core, &self.plan(mode)?, wait).await
    }

    /// Acquires within this wait; `None` when the name is taken and the wait is [`WaitLimit::Now`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any point withdraws the claim.
    pub(crate) async fn acquire_within(
        &self,
        mode: Mode,
        wait: WaitLimit,
    ) -> Result<Option<HeldClaim>> {
        match self.acquire(mode, wait).await? {
            Outcome::Granted(held) => Ok(Some(held)),
            Outcome::Busy(_) if wait == WaitLimit::Now => Ok(None),
            Outcome::Busy(busy) => Err(self.busy(busy)),
            Outcome::Sealed => Err(self.sealed()),
        }
    }

    /// The guard of an acquisition that waited.
    pub(crate) fn waited<T>(&self, guard: Option<T>) -> Result<T> {
        guard.ok_or_else(|| self.busy(crate::store::Busy::default()))
    }

    pub(crate) fn busy(&self, busy: crate::store::Busy) -> Error {
        let obstacle = Obstacle::of(&self.name, busy);
        let message = format!("not acquired in time: {obstacle}");
        Error::timeout(obstacle.holder, message)
    }

    /// The error for a name that was sealed by `once` and is asked for as a plain lock.
    pub(crate) fn sealed(&self) -> Error {
        Error::config(format!(
            "{} is the key of something that was done once; lock another name",
            self.name
        ))
    }
}

/// The options as methods of a lock. Each ends with its default.
macro_rules! option_methods {
    () => {
        /// How long the lock lives without renewal: after a crash it is free so much later. The
        /// client renews it every third. Defaults to 30 s, or the nearest that the store can.
        #[must_use]
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            self.options.lease = Some(lease);
            self
        }

        /// The longest time to hold: then renewals stop and the guard is lost. Defaults to no
        /// limit.
        #[must_use]
        pub fn max_hold(mut self, longest: std::time::Duration) -> Self {
            self.options.max_hold = Some(longest);
            self
        }

        /// The name stays closed to others for at least so long after the grant, through release
        /// and crash: for short work on hosts whose clocks differ. Defaults to 0.
        #[must_use]
        pub fn min_hold(mut self, shortest: std::time::Duration) -> Self {
            self.options.min_hold = Some(shortest);
            self
        }

        /// Why the lock is wanted, shown to others. Defaults to nothing.
        #[must_use]
        pub fn reason(mut self, reason: impl AsRef<str>) -> Self {
            self.options.reason = Some(reason.as_ref().into());
            self
        }

        /// The owner, shown to others. Defaults to the client's owner: host, process and
        /// program.
        #[must_use]
        pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
            self.options.owner = owner.as_ref().into();
            self
        }

        /// Asks for a grant that can be [detached](crate::Guard::detach), on stores where many
        /// grants share one session. Defaults to one that cannot, there.
        #[must_use]
        pub fn detachable(mut self) -> Self {
            self.options.detachable = true;
            self
        }

        /// Whether the client renews the lease. If not, the guard is lost when the first lease has
        /// run out. Defaults to true.
        #[must_use]
        pub fn auto_renew(mut self, renew: bool) -> Self {
            self.options.auto_renew = renew;
            self
        }

        /// How long before the loss [`Guard::on_lost`](crate::Guard::on_lost) and `run` stop the
        /// work. Defaults to a tenth of the lease, at most 1 s; at most two fifths of the lease.
        #[must_use]
        pub fn stop_margin(mut self, margin: std::time::Duration) -> Self {
            self.options.stop_margin = Some(margin);
            self
        }

        /// Where the store has no line: pauses between two attempts, at random and growing from `min`
        /// to `max`. Defaults to 20 ms to 250 ms on a store that cannot wake waiters. On one that can,
        /// they ask when they are woken, and seldom else: give it where a peer frees the name without
        /// waking waiters, as Redisson's `RSpinLock` does.
        #[must_use]
        pub fn spin(mut self, pauses: std::ops::Range<std::time::Duration>) -> Self {
            self.options.spin = Some((pauses.start, pauses.end));
            self
        }

        /// How long to go on trying a store that cannot be reached before the answer is
        /// [`Unavailable`](crate::ErrorKind::Unavailable). Defaults to 10 s. `try_` verbs try once.
        #[must_use]
        pub fn store_wait(mut self, longest: std::time::Duration) -> Self {
            self.options.store_wait = longest;
            self
        }
    };
}
pub(crate) use option_methods;
