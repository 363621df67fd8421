//! The keys of claims, and which of them are used again.
//!
//! etcd keeps a place in its index for every key that ever was, until it is compacted, and each
//! claim passes the places of all earlier claims of its name. So a key whose claim has certainly
//! ended serves the next claim of this client on that name.
//!
//! ```text
//! claim ──► taken ──► its deletion is answered, and no write of it is in flight ──► free ──► the next claim
//!              └────► anything else                                              ──► never again
//! ```
//!
//! Such a key ends with random digits of its own, not with those of a claim: an unknown claim never
//! finds the key of another one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client::names::Names;
use super::sessions::Session;
use crate::error::Result;
use crate::lease::{BootClock, Clock, Moment};
use crate::name::Name;
use crate::store::{ByClaim, Claim, ClaimId};

/// Keys are kept for so many names at the least, and for twice as many at the most: those that were
/// used last.
const NAMES: usize = 512;
/// How many keys of one name are kept.
const OF_ONE_NAME: usize = 8;
/// How long after its claim began the core may still ask about a key.
const ASKED_ABOUT: Duration = Duration::from_secs(3600);
/// From how many claims on the pool drops those that are too old to be asked about.
const MANY: usize = 1024;

/// The key of a claim.
pub(super) struct LockKey {
    pub(super) name: Name,
    /// What the keys of the line begin with.
    pub(super) line: Vec<u8>,
    pub(super) bytes: Vec<u8>,
    /// Whether only this client can know it: it ends with random digits, and not with those of its
    /// claim.
    is_private: bool,
    /// Number of writes to this key whose outcome is unknown.
    unresolved_writes: AtomicUsize,
    /// The sessions that such writes name. Each lasts until the claim has ended: if the write has
    /// arrived, the key is attached to it.
    doubtful: Mutex<Vec<Arc<Session>>>,
}

impl LockKey {
    pub(super) fn named(names: &Names, name: &Name, end: ClaimId) -> Arc<LockKey> {
        LockKey::new(names, name, end, false)
    }

    fn new(names: &Names, name: &Name, end: ClaimId, is_private: bool) -> Arc<LockKey> {
        let line = names.line(name);
        let mut key = String::with_capacity(line.len() + 32);
        key.push_str(&line);
        end.write(&mut key);
        let (line, bytes) = (line.into_bytes(), key.into_bytes());
        let (unresolved_writes, doubtful) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(LockKey {
            name: name.clone(),
            line,
            bytes,
            is_private,
            unresolved_writes,
            doubtful,
        })
    }

    /// A write that attaches the key to this session may yet arrive.
    pub(super) fn doubts(&self, session: &Arc<Session>) {
        self.doubtful
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(session));
    }

    /// What it ends with, behind the prefix of its line.
    pub(super) fn end(&self) -> Option<String> {
        String::from_utf8(self.bytes.get(self.line.len()..)?.to_vec()).ok()
    }

    /// A write begins that could create or delete the key at any time, until it is
    /// [resolved](LockKey::write_resolved).
    pub(super) fn write_begins(&self) {
        self.unresolved_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// A write was answered, and was sent only once.
    pub(super) fn write_resolved(&self) {
        self.unresolved_writes.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no write is in flight that could create or delete the key.
    pub(super) fn is_settled(&self) -> bool {
        self.unresolved_writes.load(Ordering::Relaxed) == 0
    }
}

/// The keys of this client: those of its claims, and those that are free.
#[derive(Default)]
pub(super) struct KeyPool(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    /// By claim, from its first request until it has certainly ended.
    taken: ByClaim<Taken>,
    /// How many may be taken before old ones are dropped.
    limit: usize,
    /// Free keys: of the names that were used last, and of those before them.
    young: HashMap<Name, Vec<Arc<LockKey>>>,
    old: HashMap<Name, Vec<Arc<LockKey>>>,
}

struct Taken {
    key: Arc<LockKey>,
    since: Moment,
    /// Until when its name must stay closed, while the release is not answered: a second attempt
    /// must not open it.
    closed_until: Option<Moment>,
}

impl KeyPool {
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a claim that was made here.
    pub(super) fn of(&self, claim: ClaimId) -> Option<Arc<LockKey>> {
        self.lock()
            .taken
            .get(&claim)
            .map(|taken| Arc::clone(&taken.key))
    }

    /// The key for a claim: the one that it had before, else a free one, else a new one.
    pub(super) fn for_claim(&self, names: &Names, claim: &Claim) -> Result<Arc<LockKey>> {
        let mut pool = self.lock();
        if let Some(taken) = pool.taken.get(&claim.id) {
            return Ok(Arc::clone(&taken.key));
        }
        let key = if claim.detachable {
            // Others must be able to find it by its claim.
            LockKey::named(names, &claim.name, claim.id)
        } else if let Some(key) = pool.take_free(&claim.name) {
            key
        } else {
            LockKey::new(names, &claim.name, ClaimId::random()?, true)
        };
        pool.take(claim.id, &key, BootClock.now());
        Ok(key)
    }

    /// A claim has certainly ended. Its key is free if it is certainly gone, and only this client
    /// can know it.
    pub(super) fn give_back(&self, claim: ClaimId, key: &Arc<LockKey>, is_gone: bool) {
        let mut pool = self.lock();
        pool.taken.remove(&claim);
        if is_gone && key.is_private && key.is_settled() {
            pool.free(Arc::clone(key));
        }
    }

    /// These claims have ended, and their keys are not used again.
    pub(super) fn discard(&self, claims: &[ClaimId]) {
        let mut pool = self.lock();
        claims
            .iter()
            .for_each(|claim| drop(pool.taken.remove(claim)));
    }

    /// The store has lost what it confirmed: no key is known to be gone.
    pub(super) fn clear(&self) {
        let mut pool = self.lock();
        pool.young.clear();
        pool.old.clear();
    }

    /// Remembers until when the name of a claim must stay closed.
    pub(super) fn close_until(&self, claim: ClaimId, key: &Arc<LockKey>, until: Moment) {
        let mut pool = self.lock();
        if !pool.taken.contains_key(&claim) {
            pool.take(claim, key, BootClock.now());
        }
        if let Some(taken) = pool.taken.get_mut(&claim) {
            taken.closed_until = Some(until);
        }
    }

    /// How long the name of a claim must stay closed, where that is not over.
    pub(super) fn closed_for(&self, claim: ClaimId) -> Option<Duration> {
        let until = self.lock().taken.get(&claim)?.closed_until?;
        Some(until.since(BootClock.now())).filter(|left| !left.is_zero())
    }
}

impl Pool {
    fn take_free(&mut self, name: &Name) -> Option<Arc<LockKey>> {
        [&mut self.young, &mut self.old]
            .into_iter()
            .find_map(|keys| keys.get_mut(name)?.pop())
    }

    fn take(&mut self, claim: ClaimId, key: &Arc<LockKey>, now: Moment) {
        if self.taken.len() >= self.limit.max(MANY) {
            self.taken
                .retain(|_, taken| now.since(taken.since) < ASKED_ABOUT);
            self.limit = self.taken.len() * 2;
        }
        self.taken.insert(
            claim,
            Taken {
                key: Arc::clone(key),
                since: now,
                closed_until: None,
            },
        );
    }

    fn free(&mut self, key: Arc<LockKey>) {
        if let Some(keys) = self.young.get_mut(&key.name) {
            if keys.len() < OF_ONE_NAME {
                keys.push(key);
            }
            return;
        }
        let name = key.name.clone();
        let mut keys = self.old.remove(&name).unwrap_or_default();
        keys.push(key);
        if self.young.len() >= NAMES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize, name: usize) -> Arc<LockKey> {
        let (name, bytes) = (self::name(name), number.to_string().into_bytes());
        let (unresolved_writes, doubtful) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(LockKey {
            name,
            line: Vec::new(),
            bytes,
            is_private: true,
            unresolved_writes,
            doubtful,
        })
    }

    fn name(number: usize) -> Name {
        Name::new(number.to_string()).unwrap()
    }

    #[test]
    fn few_keys_are_kept_of_one_name_and_of_the_names_that_were_used_last() {
        let mut pool = Pool::default();
        for number in 0..2 * OF_ONE_NAME {
            pool.free(key(number, 0));
        }
        let kept = std::iter::from_fn(|| pool.take_free(&name(0))).count();
        assert_eq!(kept, OF_ONE_NAME);
        assert!(pool.take_free(&name(1)).is_none());
        for number in 0..5 * NAMES {
            pool.free(key(number, number));
        }
        let kept: Vec<usize> = (0..5 * NAMES)
            .filter(|number| pool.take_free(&name(*number)).is_some())
            .collect();
        assert!((NAMES..=2 * NAMES).contains(&kept.len()), "{}", kept.len());
        assert_eq!(
            kept.first(),
            Some(&(5 * NAMES - kept.len())),
            "the last ones"
        );
    }

    #[test]
    fn a_name_that_is_used_again_keeps_its_key_though_others_come() {
        let mut pool = Pool::default();
        pool.free(key(0, 0));
        for number in 1..10 * NAMES {
            pool.free(key(number, number));
            let own = pool.take_free(&name(0)).expect("its key");
            assert_eq!(own.bytes, b"0");
            pool.free(own);
        }
    }

    #[test]
    fn claims_that_are_too_old_to_be_asked_about_do_not_pile_up() {
        let mut pool = Pool::default();
        let (long_ago, now) = (Moment::at(ASKED_ABOUT), Moment::at(ASKED_ABOUT * 3));
        let one = key(0, 0);
        for claim in 0..10 * MANY {
            let claim = ClaimId::from_bits(claim as u128);
            pool.take(claim, &one, now);
            pool.taken.get_mut(&claim).unwrap().since = long_ago;
        }
        assert!(pool.taken.len() <= 2 * MANY, "{}", pool.taken.len());
    }

    #[test]
    fn a_key_with_a_write_in_flight_is_not_used_again() {
        let (pool, claim) = (KeyPool::default(), ClaimId::from_bits(1));
        for (settled, reused) in [(true, true), (false, false)] {
            let key = key(1, 0);
            if !settled {
                key.write_begins();
            }
            pool.give_back(claim, &key, true);
            assert_eq!(pool.lock().take_free(&name(0)).is_some(), reused);
        }
    }
}
