//! A client's own claims, as far as it knows, and why those ended that may still be asked about.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ByClaim, ClaimId, ClientHandle, Gone};

/// How many ends are kept before old ones are dropped.
const ENDS: usize = 1024;

/// A claim that is in the store.
pub(crate) trait OwnClaim: Send {
    /// The session that it hangs on.
    fn session(&self) -> i64;

    /// How long its owner may still ask after its end.
    fn lease(&self) -> Duration;
}

/// All claims of a client, and the client itself.
pub(crate) struct ClaimTable<C> {
    claims: Mutex<Claims<C>>,
    client: OnceLock<ClientHandle>,
}

pub(crate) struct Claims<C> {
    pub(crate) own: ByClaim<C>,
    ended: ByClaim<Ended>,
}

struct Ended {
    why: Gone,
    until: Moment,
}

impl<C> Default for ClaimTable<C> {
    fn default() -> ClaimTable<C> {
        let claims = Claims {
            own: ByClaim::default(),
            ended: ByClaim::default(),
        };
        ClaimTable {
            claims: Mutex::new(claims),
            client: OnceLock::new(),
        }
    }
}

impl<C: OwnClaim> ClaimTable<C> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Claims<C>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client to tell. Once.
    pub(crate) fn attach(&self, client: ClientHandle) {
        let _ = self.client.set(client);
    }

    /// `None` before it is attached.
    pub(crate) fn client(&self) -> Option<&ClientHandle> {
        self.client.get()
    }

    /// Whether the caller of a claim still waits for its answer, or has it.
    pub(crate) fn is_wanted(&self, claim: ClaimId) -> bool {
        self.client().is_none_or(|client| client.wants(claim))
    }

    /// A claim has ended without its owner, which is told.
    pub(crate) fn end(&self, claim: ClaimId, why: Gone) -> Option<C> {
        let own = self.lock().end(claim, why)?;
        if let Some(client) = self.client() {
            client.gone(claim, why);
        }
        Some(own)
    }

    /// The claims that hang on this session.
    pub(crate) fn of_session(&self, session: i64) -> Vec<ClaimId> {
        self.lock()
            .own
            .iter()
            .filter(|(_, own)| own.session() == session)
            .map(|(id, _)| *id)
            .collect()
    }
}

impl<C: OwnClaim> Claims<C> {
    /// Forgets a claim, and records why, in one step: in between it would be taken for one that was never made.
    pub(crate) fn end(&mut self, claim: ClaimId, why: Gone) -> Option<C> {
        let own = self.own.remove(&claim)?;
        let now = BootClock.now();
        if self.ended.len() >= ENDS {
            self.ended.retain(|_, ended| ended.until > now);
        }
        self.ended.insert(
            claim,
            Ended {
                why,
                until: now + own.lease(),
            },
        );
        Some(own)
    }

    /// The claim is made again: why its last life ended does not matter any more.
    pub(crate) fn clear_end(&mut self, claim: ClaimId) {
        self.ended.remove(&claim);
    }

    pub(crate) fn end_reason(&self, claim: ClaimId) -> Option<Gone> {
        self.ended
            .get(&claim)
            .filter(|ended| ended.until > BootClock.now())
            .map(|ended| ended.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Own(i64, Duration);

    impl OwnClaim for Own {
        fn session(&self) -> i64 {
            self.0
        }

        fn lease(&self) -> Duration {
            self.1
        }
    }

    #[test]
    fn the_end_of_a_claim_is_remembered_for_its_lease() {
        let (table, [one, two]) = (ClaimTable::default(), [1, 2].map(ClaimId::from_bits));
        table
            .lock()
            .own
            .insert(one, Own(7, Duration::from_secs(60)));
        table.lock().own.insert(two, Own(7, Duration::ZERO));
        assert_eq!(table.of_session(7).len(), 2);
        assert!(table.end(one, Gone::Revoked).is_some() && table.end(two, Gone::Expired).is_some());
        assert!(table.end(one, Gone::Expired).is_none(), "it ends once");
        assert_eq!(table.lock().end_reason(one), Some(Gone::Revoked));
        assert_eq!(table.lock().end_reason(two), None);
        table.lock().clear_end(one);
        assert_eq!(table.lock().end_reason(one), None);
        assert!(table.of_session(7).is_empty());
    }
}
