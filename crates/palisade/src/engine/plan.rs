//! A plan: everything about an acquisition that is known and checked before anything is sent.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::lease::tracked::Terms;
use crate::name::Name;
use crate::store::{Claim, ClaimId, Kind, Mode};

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) owner: Arc<str>,
    pub(crate) reason: Option<Arc<str>>,
    pub(crate) value: Option<Arc<str>>,
    pub(crate) lease: Duration,
    pub(crate) exact_lease: bool,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) once_per: Option<Duration>,
    pub(crate) detachable: bool,
    pub(crate) terms: Terms,
    /// Between two attempts where there is no line, if the user set it. For Redisson, some of whose
    /// holders wake no waiter.
    pub(crate) spin: Option<Spin>,
    /// How long to try a store that cannot be reached.
    pub(crate) store_wait: Duration,
}

/// How long to pause between two attempts on a store that cannot wake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl Spin {
    /// Between two attempts on a store that cannot wake.
    pub(crate) const DEFAULT: Spin = Spin {
        min: Duration::from_millis(20),
        max: Duration::from_millis(250),
    };

    /// The pause after so many attempts: doubling, and at random, so that waiters do not move in
    /// step.
    pub(crate) fn pause(self, attempts: u32) -> Duration {
        let ceiling = self.min.saturating_mul(1 << attempts.min(16)).min(self.max);
        self.min + ceiling.saturating_sub(self.min).mul_f64(fastrand::f64())
    }
}

impl Plan {
    /// A claim with a new id.
    pub(crate) fn claim(&self, queue: bool) -> Result<Arc<Claim>> {
        Ok(Arc::new(Claim {
            id: ClaimId::random()?,
            name: self.name.clone(),
            kind: self.kind,
            mode: self.mode,
            owner: Arc::clone(&self.owner),
            reason: self.reason.clone(),
            value: self.value.clone(),
            lease: self.lease,
            exact_lease: self.exact_lease,
            queue,
            min_hold: self.min_hold,
            once_per: self.once_per,
            detachable: self.detachable,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_within_their_bounds_and_grow() {
        let spin = Spin {
            min: Duration::from_millis(10),
            max: Duration::from_millis(100),
        };
        for attempts in 0..100 {
            let pause = spin.pause(attempts);
            assert!(
                pause >= spin.min && pause <= spin.max,
                "{pause:?} after {attempts}"
            );
        }
        assert_eq!(spin.pause(0), spin.min);
    }
}
