//! Which claims a watch is for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::ClaimId;

/// The watches of a client, by session and path. A watch fires once.
#[derive(Default)]
pub(super) struct Watches(Mutex<HashMap<(i64, String), Vec<ClaimId>>>);

impl Watches {
    fn lock(&self) -> MutexGuard<'_, HashMap<(i64, String), Vec<ClaimId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a watch is for this claim. Before it is sent, so that it cannot fire unheard.
    pub(super) fn add(
        &self,
        session: i64,
        path: &str,
        claim: ClaimId,
        is_wanted: impl Fn(ClaimId) -> bool,
    ) {
        let mut watches = self.lock();
        let claims = watches.entry((session, path.to_owned())).or_default();
        // Not each time: that would be a look at all of them for each of them.
        if claims.len() >= 32 && claims.len().is_power_of_two() {
            // The watch of a claim that has left fires once more, without effect.
            claims.retain(|claim| is_wanted(*claim));
        }
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    }

    pub(super) fn is_watched(&self, session: i64, path: &str, claim: ClaimId) -> bool {
        self.lock()
            .get(&(session, path.to_owned()))
            .is_some_and(|claims| claims.contains(&claim))
    }

    /// No watch was set for this claim after all.
    pub(super) fn remove(&self, session: i64, path: &str, claim: ClaimId) {
        let (at, mut watches) = ((session, path.to_owned()), self.lock());
        let Some(claims) = watches.get_mut(&at) else {
            return;
        };
        claims.retain(|other| *other != claim);
        if claims.is_empty() {
            watches.remove(&at);
        }
    }

    /// A watch has fired, for these claims.
    pub(super) fn fired(&self, session: i64, path: &str) -> Vec<ClaimId> {
        self.lock()
            .remove(&(session, path.to_owned()))
            .unwrap_or_default()
    }

    /// The watches of a session are gone with its connection: those of these claims.
    pub(super) fn lost(&self, session: i64) -> Vec<ClaimId> {
        self.lock()
            .extract_if(|(of, _), _| *of == session)
            .flat_map(|(_, claims)| claims)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_was_not_set_is_forgotten() {
        let (watches, claims) = (
            Watches::default(),
            [ClaimId::from_bits(1), ClaimId::from_bits(2)],
        );
        claims
            .iter()
            .for_each(|claim| watches.add(7, "/a", *claim, |_| true));
        watches.remove(7, "/a", claims[0]);
        assert!(!watches.is_watched(7, "/a", claims[0]) && watches.is_watched(7, "/a", claims[1]));
        watches.remove(7, "/a", claims[1]);
        watches.remove(7, "/a", claims[1]);
        assert!(watches.lock().is_empty(), "nothing is left behind");
    }

    #[test]
    fn claims_that_have_left_do_not_pile_up() {
        let watches = Watches::default();
        (0..1000).for_each(|number| {
            watches.add(7, "/a", ClaimId::from_bits(number), |own| {
                own == ClaimId::from_bits(0)
            })
        });
        assert!(watches.fired(7, "/a").len() <= 32);
        watches.add(8, "/a", ClaimId::from_bits(1), |_| true);
        watches.add(8, "/b", ClaimId::from_bits(2), |_| true);
        assert_eq!(watches.lost(8).len(), 2);
        assert!(watches.lock().is_empty());
    }
}
