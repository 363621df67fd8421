//! A client's own claims, as far as it knows, and why those ended that may still be asked about.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::watch_held::FreshHolders;
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ByClaim, Claim, ClaimId, ClientHandle, Gone, Grant};

/// How many ends are kept before old ones are dropped.
const ENDS: usize = 1024;

/// A claim of this client that is in the store.
pub(crate) trait OwnClaim: Send + 'static {
    /// A handle of a session.
    type Session: Clone + Send + Sync + 'static;

    fn claim(&self) -> &Arc<Claim>;

    /// The session that its entry hangs on.
    fn session(&self) -> &Self::Session;

    fn session_id(&self) -> i64;

    /// Whether a renewal of the claim renews its session.
    fn renews_session(&self) -> bool {
        true
    }

    /// The fence of its grant; of a waiter, the one that it will have.
    fn fence(&self) -> Fence;

    fn stage(&self, now: Moment) -> Stage;

    /// The grant of a holder whose entry was seen by a request that was sent at this time.
    fn grant(&self, asked: Moment) -> Grant;

    /// Whether `fence` identifies this claim. A waiter may be named without one.
    fn is_meant_by(&self, fence: Option<Fence>) -> bool {
        fence.is_none_or(|fence| fence == self.fence())
    }
}

/// What is known of a claim without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    /// It holds, and its entry is watched.
    Held,
    /// It holds, unless its entry was deleted unseen.
    Unverified,
    /// It holds, and its entry has to be changed by the next renewal.
    #[cfg_attr(
        not(feature = "etcd"),
        allow(dead_code, reason = "only entries of etcd change their session")
    )]
    Outdated,
}

/// All claims of a client, and the client itself.
pub(crate) struct ClaimTable<C> {
    claims: Mutex<Claims<C>>,
    client: OnceLock<ClientHandle>,
    /// Claims whose entries are not watched yet.
    pub(super) fresh: FreshHolders,
}

pub(crate) struct Claims<C> {
    pub(crate) own: ByClaim<C>,
    ended: ByClaim<Ended>,
    looks: ByClaim<Look>,
}

/// Why a claim ended, and until when it may be asked about.
pub(crate) struct Ended {
    why: Gone,
    until: Moment,
}

/// The reads of a claim's position.
#[derive(Default)]
struct Look {
    /// Held while the position is read: one read at a time.
    lock: Arc<tokio::sync::Mutex<()>>,
    by_event: ByEvent,
}

/// Whether the position is being read because of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ByEvent {
    #[default]
    None,
    InFlight,
    /// Another event came meanwhile.
    Again,
}

impl<C> Default for ClaimTable<C> {
    fn default() -> ClaimTable<C> {
        let claims = Claims {
            own: ByClaim::default(),
            ended: ByClaim::default(),
            looks: ByClaim::default(),
        };
        ClaimTable {
            claims: Mutex::new(claims),
            client: OnceLock::new(),
            fresh: FreshHolders::default(),
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

    /// Why a claim is not known any more.
    pub(crate) fn why_gone(&self, claim: ClaimId) -> Gone {
        self.lock().end_reason(claim).unwrap_or(Gone::Expired)
    }

    /// The claims that hang on this session.
    pub(crate) fn of_session(&self, session: i64) -> Vec<ClaimId> {
        self.lock()
            .own
            .iter()
            .filter(|(_, own)| own.session_id() == session)
            .map(|(id, _)| *id)
            .collect()
    }
}

impl<C: OwnClaim> Claims<C> {
    pub(crate) fn remove(&mut self, claim: ClaimId) -> Option<C> {
        self.looks.remove(&claim);
        self.own.remove(&claim)
    }

    /// Forgets a claim, and records why, in one step: in between it would be taken for one that was
    /// never made.
    pub(crate) fn end(&mut self, claim: ClaimId, why: Gone) -> Option<C> {
        let own = self.remove(claim)?;
        let now = BootClock.now();
        if self.ended.len() >= ENDS {
            self.ended.retain(|_, ended| ended.until > now);
        }
        let until = now + own.claim().lease;
        self.ended.insert(claim, Ended { why, until });
        Some(own)
    }

    /// The claim is made again: why its last life ended does not matter any more, unless it is
    /// [turned away](Claims::restore_end).
    pub(crate) fn take_end(&mut self, claim: ClaimId) -> Option<Ended> {
        self.ended.remove(&claim)
    }

    /// The claim was turned away: it has had no new life, and the last one ended as it did.
    pub(super) fn restore_end(&mut self, claim: ClaimId, ended: Ended) {
        self.ended.entry(claim).or_insert(ended);
    }

    pub(crate) fn end_reason(&self, claim: ClaimId) -> Option<Gone> {
        self.ended
            .get(&claim)
            .filter(|ended| ended.until > BootClock.now())
            .map(|ended| ended.why)
    }

    /// The lock for a read of the claim's position; `None` for a claim that is not known.
    pub(crate) fn look_lock(&mut self, claim: ClaimId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let is_own = self.own.contains_key(&claim);
        is_own.then(|| Arc::clone(&self.looks.entry(claim).or_default().lock))
    }

    /// Removes a claim, unless its position is being read: then with the lock of that read.
    pub(super) fn remove_idle(
        &mut self,
        claim: ClaimId,
    ) -> Result<Option<C>, Arc<tokio::sync::Mutex<()>>> {
        match self.looks.get(&claim) {
            Some(look) if look.lock.try_lock().is_err() => Err(Arc::clone(&look.lock)),
            _ => Ok(self.remove(claim)),
        }
    }

    /// Whether a read because of an event is to begin. One that is in flight is repeated.
    pub(super) fn begin_look(&mut self, claim: ClaimId) -> bool {
        let look = self.looks.entry(claim).or_default();
        let begins = look.by_event == ByEvent::None;
        look.by_event = if begins {
            ByEvent::InFlight
        } else {
            ByEvent::Again
        };
        begins
    }

    /// A read because of an event is done; whether another one is due.
    pub(super) fn end_look(&mut self, claim: ClaimId) -> bool {
        let Some(look) = self.looks.get_mut(&claim) else {
            return false;
        };
        let again = look.by_event == ByEvent::Again;
        look.by_event = if again {
            ByEvent::InFlight
        } else {
            ByEvent::None
        };
        again
    }

    /// The reads because of events are over, also those that were dropped.
    pub(super) fn stop_looks(&mut self, claim: ClaimId) {
        if let Some(look) = self.looks.get_mut(&claim) {
            look.by_event = ByEvent::None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Lease;

    struct Own(Arc<Claim>);

    impl OwnClaim for Own {
        type Session = ();

        fn claim(&self) -> &Arc<Claim> {
            &self.0
        }

        fn session(&self) -> &() {
            &()
        }

        fn session_id(&self) -> i64 {
            7
        }

        fn fence(&self) -> Fence {
            Fence::NONE
        }

        fn stage(&self, _: Moment) -> Stage {
            Stage::Waiting
        }

        fn grant(&self, _: Moment) -> Grant {
            let lease = Lease::of(self.0.lease);
            Grant {
                fence: Fence::NONE,
                lease,
            }
        }
    }

    fn table(leases: [u64; 2]) -> (ClaimTable<Own>, [ClaimId; 2]) {
        let (table, claims) = (ClaimTable::default(), [1, 2].map(ClaimId::from_bits));
        for (id, lease) in claims.into_iter().zip(leases) {
            let claim = Claim::of_mutex(id, "name", Duration::from_secs(lease));
            table.lock().own.insert(id, Own(Arc::new(claim)));
        }
        (table, claims)
    }

    #[test]
    fn the_end_of_a_claim_is_remembered_for_its_lease() {
        let (table, [one, two]) = table([60, 0]);
        assert_eq!(table.of_session(7).len(), 2);
        let end = |claim, why| table.lock().end(claim, why).is_some();
        assert!(end(one, Gone::Revoked) && end(two, Gone::Taken));
        assert!(!end(one, Gone::Taken), "it ends once");
        assert_eq!(table.why_gone(one), Gone::Revoked);
        assert_eq!(table.why_gone(two), Gone::Expired, "forgotten");
        let ended = table.lock().take_end(one).expect("it is remembered");
        assert_eq!(table.lock().end_reason(one), None, "it is made again");
        table.lock().restore_end(one, ended);
        assert_eq!(table.why_gone(one), Gone::Revoked, "and turned away");
        assert!(table.of_session(7).is_empty());
    }

    #[test]
    fn events_during_a_read_cause_one_more_read() {
        let (table, [one, _]) = table([60, 60]);
        let mut claims = table.lock();
        assert!(claims.begin_look(one));
        assert!(!claims.begin_look(one) && !claims.begin_look(one));
        assert!(claims.end_look(one), "once more");
        assert!(!claims.end_look(one));
        assert!(claims.begin_look(one));
        claims.stop_looks(one);
        assert!(claims.begin_look(one), "the last one was dropped");
    }

    #[test]
    fn a_claim_whose_position_is_being_read_is_not_removed() {
        let (table, [one, two]) = table([60, 60]);
        let lock = table.lock().look_lock(one).expect("its own claim");
        let reading = lock.try_lock().expect("no other read");
        assert!(table.lock().remove_idle(one).is_err());
        assert!(table.lock().remove_idle(two).is_ok_and(|own| own.is_some()));
        drop(reading);
        assert!(table.lock().remove_idle(one).is_ok_and(|own| own.is_some()));
        assert!(table.lock().look_lock(one).is_none() && table.lock().looks.is_empty());
    }
}
