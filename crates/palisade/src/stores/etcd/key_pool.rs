//! Where claims stand: their keys, and which of them are used again.
//!
//! etcd keeps a place in its index for every key that ever was, until it is compacted, and whoever asks for a name passes the places of
//! all its earlier claims. So a key whose claim has surely ended serves the next claim of this client on that name.
//!
//! ```text
//! claim ──► taken ──► its deletion is answered, and nothing else of it may be on its way ──► free ──► the next claim
//!              └────► anything else                                                       ──► never again
//! ```
//!
//! Such a key ends with random digits of its own, and not with those of a claim: whoever comes back to a claim that has ended, and that
//! nothing is known of here, never finds the key of another claim.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::shared::Shared;
use crate::error::Result;
use crate::lease::{BootClock, Clock, Moment};
use crate::name::Name;
use crate::store::{ByClaim, Claim, ClaimId};

/// Of so many names keys are kept at the least, and of twice as many at the most: those that were used last.
const NAMES: usize = 512;
/// How many keys of one name are kept.
const OF_ONE_NAME: usize = 8;
/// A claim that nobody knows any more may be asked about for so long.
const ASKED_ABOUT: Duration = Duration::from_secs(3600);
/// From how many claims on those are looked for that nobody will ask about.
const MANY: usize = 1024;

/// Where a claim's key is.
pub(super) struct LockKey {
    /// What the keys of the line begin with.
    pub(super) line: Vec<u8>,
    pub(super) key: Vec<u8>,
    /// Whether the key is of our own making, and not one that follows from a claim, which others may know.
    is_private: bool,
    /// Requests that could make or delete the key whatever became of it, and whose end nobody has seen.
    unresolved_writes: AtomicUsize,
}

impl LockKey {
    /// Nobody but this client ever makes this key: its end is random, and no claim says it.
    pub(super) fn is_private(&self) -> bool {
        self.is_private
    }

    /// A request is sent that could make or delete the key at any time. If nobody says that it has arrived, it may do so for ever.
    pub(super) fn sent(&self) {
        self.unresolved_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// The one that was sent has been answered, and was sent only once.
    pub(super) fn arrived(&self) {
        self.unresolved_writes.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether nothing is on its way that could make or delete the key.
    pub(super) fn is_sure(&self) -> bool {
        self.unresolved_writes.load(Ordering::Relaxed) == 0
    }
}

/// The seats of this client: those of its claims, and those that are free.
#[derive(Default)]
pub(super) struct KeyPool {
    /// Of each claim from its first request on, until it has surely ended.
    taken: ByClaim<(Arc<LockKey>, Moment)>,
    /// How many there may be before some are looked for that nobody will ask about.
    limit: usize,
    /// Those that were used last, and those before them.
    young: HashMap<Name, Vec<Arc<LockKey>>>,
    old: HashMap<Name, Vec<Arc<LockKey>>>,
}

impl KeyPool {
    pub(super) fn of(&self, claim: ClaimId) -> Option<Arc<LockKey>> {
        self.taken.get(&claim).map(|(seat, _)| Arc::clone(seat))
    }

    fn take_free(&mut self, name: &Name) -> Option<Arc<LockKey>> {
        [&mut self.young, &mut self.old].into_iter().find_map(|seats| seats.get_mut(name)?.pop())
    }

    fn take(&mut self, claim: ClaimId, seat: &Arc<LockKey>, now: Moment, is_known: impl Fn(ClaimId) -> bool) {
        if self.taken.len() >= self.limit.max(MANY) {
            self.taken.retain(|claim, (_, since)| now.since(*since) < ASKED_ABOUT || is_known(*claim));
            self.limit = self.taken.len() * 2;
        }
        self.taken.insert(claim, (Arc::clone(seat), now));
    }

    fn free(&mut self, name: &Name, seat: Arc<LockKey>) {
        if let Some(seats) = self.young.get_mut(name) {
            if seats.len() < OF_ONE_NAME {
                seats.push(seat);
            }
            return;
        }
        let mut seats = self.old.remove(name).unwrap_or_default();
        seats.push(seat);
        if self.young.len() >= NAMES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name.clone(), seats);
    }

    /// Of these nothing is left in the store.
    pub(super) fn left(&mut self, claims: &[ClaimId]) {
        claims.iter().for_each(|claim| drop(self.taken.remove(claim)));
    }

    /// The store has lost what it confirmed: nobody knows which keys are there.
    pub(super) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

impl Shared {
    /// Where the key of a claim is that was asked for here. Else it follows from the claim alone, so that whoever adopts it finds it.
    pub(super) fn seat(&self, name: &Name, claim: ClaimId) -> Arc<LockKey> {
        let seat = self.claims.lock().seats.of(claim);
        seat.unwrap_or_else(|| self.seat_named(name, claim, false))
    }

    fn seat_named(&self, name: &Name, end: ClaimId, is_private: bool) -> Arc<LockKey> {
        let line = self.settings.names.line(name);
        let mut key = String::with_capacity(line.len() + 32);
        key.push_str(&line);
        end.write(&mut key);
        Arc::new(LockKey { line: line.into_bytes(), key: key.into_bytes(), is_private, unresolved_writes: AtomicUsize::new(0) })
    }

    /// Where a claim is to stand: where it stood when it was asked for before, else where another has surely left.
    pub(super) fn seat_for(&self, claim: &Claim) -> Result<Arc<LockKey>> {
        if claim.detachable {
            // Others must find it by the claim.
            return Ok(self.seat_named(&claim.name, claim.id, false));
        }
        let mut book = self.claims.lock();
        if let Some(seat) = book.seats.of(claim.id) {
            return Ok(seat);
        }
        let seat = match book.seats.take_free(&claim.name) {
            Some(seat) => seat,
            None => self.seat_named(&claim.name, ClaimId::random()?, true),
        };
        let book = &mut *book;
        book.seats.take(claim.id, &seat, BootClock.now(), |claim| book.known.contains_key(&claim));
        Ok(seat)
    }

    /// A claim has ended, by the word of the store. Its seat is free if its key was made by nobody else, is gone for sure, and nothing
    /// is on its way that could bring it back.
    pub(super) fn leave(self: &Arc<Self>, name: &Name, claim: ClaimId, seat: &Arc<LockKey>, is_gone: bool) {
        if !seat.is_sure() {
            // What comes late would stay for as long as its session. Until then whoever asks for this claim again finds it.
            self.delete_later(claim, seat, self.cluster.request_timeout * 2);
            return;
        }
        let mut book = self.claims.lock();
        book.seats.taken.remove(&claim);
        if is_gone && seat.is_private() {
            book.seats.free(name, Arc::clone(seat));
        }
    }

    /// The end of the key that a claim holds by, where it does not follow from the claim.
    pub(super) fn key_end(&self, claim: ClaimId) -> Option<String> {
        let seat = self.claims.lock().known.get(&claim).map(|known| Arc::clone(&known.seat))?;
        let end = seat.key.get(seat.line.len()..)?;
        String::from_utf8(end.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(number: usize) -> Arc<LockKey> {
        let key = number.to_string().into_bytes();
        Arc::new(LockKey { line: Vec::new(), key, is_private: true, unresolved_writes: AtomicUsize::new(0) })
    }

    fn name(number: usize) -> Name {
        Name::new(number.to_string()).unwrap()
    }

    #[test]
    fn few_keys_are_kept_of_one_name_and_of_the_names_that_were_used_last() {
        let mut seats = KeyPool::default();
        for number in 0..2 * OF_ONE_NAME {
            seats.free(&name(0), seat(number));
        }
        let kept = std::iter::from_fn(|| seats.take_free(&name(0))).count();
        assert_eq!(kept, OF_ONE_NAME);
        assert!(seats.take_free(&name(1)).is_none());
        for number in 0..5 * NAMES {
            seats.free(&name(number), seat(number));
        }
        let kept: Vec<usize> = (0..5 * NAMES).filter(|number| seats.take_free(&name(*number)).is_some()).collect();
        assert!((NAMES..=2 * NAMES).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept.first(), Some(&(5 * NAMES - kept.len())), "the last ones");
    }

    #[test]
    fn who_uses_a_name_again_keeps_its_key_though_others_come() {
        let mut seats = KeyPool::default();
        seats.free(&name(0), seat(0));
        for number in 1..10 * NAMES {
            seats.free(&name(number), seat(number));
            let own = seats.take_free(&name(0)).expect("its key");
            assert_eq!(own.key, b"0");
            seats.free(&name(0), own);
        }
    }

    /// A member that is behind tells of it when the key is another claim's.
    #[tokio::test]
    async fn the_end_of_an_earlier_claim_by_the_same_key_ends_nothing() {
        use super::super::client::proto::KeyValue;
        use super::super::client::watch::Told;
        use super::super::session::Session;
        use super::super::settings::Settings;

        let url: crate::url::StoreUrl = "etcd://127.0.0.1:1/lock".parse().unwrap();
        let shared = Shared::new(Settings::read(&url).unwrap()).unwrap();
        let claim = Claim { name: name(1), ..Claim::of_mutex(ClaimId::from_bits(1), "seat", Duration::from_secs(60)) };
        let session = Session::new(7, BootClock.now(), 60);
        let place = shared.seat_for(&claim).unwrap();
        shared.holds(&claim, &place, 20, &session);
        let verified = |to: Option<bool>| {
            let mut book = shared.claims.lock();
            let known = book.known.get_mut(&claim.id).unwrap();
            to.inspect(|to| known.verified = *to);
            known.verified
        };
        verified(Some(true));
        for (deleted_at, believed) in [(19, true), (21, false)] {
            let kv = KeyValue { key: place.key.clone(), mod_revision: deleted_at, ..KeyValue::default() };
            shared.on_own_key(claim.id, Told::Deleted(&kv));
            assert_eq!(verified(None), believed, "deleted at {deleted_at}, made at 20");
        }
    }

    #[test]
    fn claims_that_nobody_will_ask_about_do_not_pile_up() {
        let mut seats = KeyPool::default();
        let (long_ago, now) = (Moment::at(ASKED_ABOUT), Moment::at(ASKED_ABOUT * 3));
        let one = seat(0);
        for claim in 0..10 * MANY {
            let claim = ClaimId::from_bits(claim as u128);
            seats.take(claim, &one, now, |claim| claim.bits() < 10);
            seats.taken.get_mut(&claim).unwrap().1 = long_ago;
        }
        assert!(seats.taken.len() <= 2 * MANY, "{}", seats.taken.len());
        assert!((0..10).all(|claim| seats.of(ClaimId::from_bits(claim)).is_some()), "these are known still");
    }
}
