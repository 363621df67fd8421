//! The grants that this client has released and that may be presented again: a detached grant is a
//! file, which outlives its release. A store keeps no record of a release.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::store::ClaimId;

/// The latest ones are kept. An older one has ended, and more is not said of it.
const KEPT: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct ReleasedGrants(Mutex<VecDeque<ClaimId>>);

impl ReleasedGrants {
    pub(crate) fn add(&self, claim: ClaimId) {
        let mut released = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if released.len() == KEPT {
            released.pop_front();
        }
        released.push_back(claim);
    }

    pub(crate) fn has(&self, claim: ClaimId) -> bool {
        let released = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        released.contains(&claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_are_kept() {
        let released = ReleasedGrants::default();
        let all = (0..=KEPT as u128).map(ClaimId::from_bits);
        all.clone().for_each(|claim| released.add(claim));
        assert_eq!(all.filter(|claim| released.has(*claim)).count(), KEPT);
        assert!(!released.has(ClaimId::from_bits(0)), "the oldest");
    }
}
