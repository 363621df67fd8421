//! The keys, fields and channels of Redisson's objects.

use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::ClaimId;

/// What the channels of all objects begin with.
pub(in crate::stores::redis) const CHANNELS: &[u8] = b"redisson_";

/// What the channels of mutexes begin with.
pub(super) const LOCK_CHANNELS: &[u8] = b"redisson_lock__channel:";

/// What our own notes begin with.
const NOTES: &str = "palisade:1:redisson:";
/// What all keys of ours begin with that Redisson does not know.
const OURS: &str = "palisade:1:redisson";

/// The keys of one name.
pub(super) struct Keys {
    /// The object itself.
    pub(super) lock: String,
    /// The name as it stands in the keys beside it: in braces, unless it has some.
    pub(super) tag: String,
}

impl Keys {
    /// Refuses a name whose keys cannot be in one slot of a cluster. Redisson would lock it there,
    /// and could not unlock it.
    pub(super) fn of(name: &Name, key: String, in_cluster: bool) -> Result<Keys> {
        check_key(name, &key)?;
        if in_cluster && !has_one_slot(&key) {
            return Err(Error::config(format!(
                "{name} cannot be a lock of Redisson in a cluster: the keys beside it would be in other slots; \
                 take a name without braces, or with one pair that has a text between"
            )));
        }
        let tag = if key.contains('{') {
            key.clone()
        } else {
            format!("{{{key}}}")
        };
        Ok(Keys { lock: key, tag })
    }

    /// The keys beside the lock, in the order that the scripts know them in.
    pub(super) fn beside(&self) -> [String; 8] {
        let beside = |prefix| format!("{prefix}{}", self.tag);
        [
            beside("redisson_lock_token:"),
            beside(NOTES),
            beside("redisson_lock_queue:"),
            beside("redisson_lock_timeout:"),
            beside("palisade:1:redisson-waiters:"),
            format!("{}:timeout", self.tag),
            beside("palisade:1:redisson-permits:"),
            beside("palisade:1:redisson-total:"),
        ]
    }

    /// Announces each release of a mutex.
    pub(super) fn lock_channel(&self) -> String {
        format!("redisson_lock__channel:{}", self.tag)
    }

    /// Tells one waiter of a fair lock that it is next.
    pub(super) fn fair_channel(&self, claim: ClaimId) -> String {
        format!("redisson_lock__channel:{}:{}", self.tag, field(claim))
    }

    /// Announces each change of the free permits of a semaphore.
    pub(super) fn semaphore_channel(&self) -> String {
        format!("redisson_sc:{}", self.tag)
    }

    /// Announces each release of a read/write lock.
    pub(super) fn rwlock_channel(&self) -> String {
        format!("redisson_rwlock:{}", self.tag)
    }
}

/// Refuses a name whose key would be a note of ours about another lock.
pub(in crate::stores::redis) fn check_key(name: &Name, key: &str) -> Result<()> {
    match key.starts_with(OURS) {
        false => Ok(()),
        true => Err(Error::config(format!(
            "{name} begins with {OURS}, where this format keeps its notes; take another name"
        ))),
    }
}

/// Whether all keys of a name are in one slot of a cluster.
fn has_one_slot(key: &str) -> bool {
    match key.split_once('{') {
        None => !key.contains('}'),
        Some((_, rest)) => rest.split_once('}').is_some_and(|(tag, _)| !tag.is_empty()),
    }
}

/// The field of a claim in the hash of a lock: the id of a client and the number of a thread, as
/// Redisson has them. Each claim is a client of its own, so none enters the lock of another.
pub(super) fn field(claim: ClaimId) -> String {
    let id = claim.reveal();
    let parts = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
    format!("{}:1", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(name: &str, in_cluster: bool) -> Result<Keys> {
        Keys::of(
            &Name::new(name).expect("a name"),
            name.to_owned(),
            in_cluster,
        )
    }

    #[test]
    fn companions_are_where_redisson_looks_for_them() {
        let plain = keys("orders", true).expect("a good name");
        assert_eq!(plain.lock, "orders");
        assert_eq!(plain.beside()[0], "redisson_lock_token:{orders}");
        assert_eq!(plain.lock_channel(), "redisson_lock__channel:{orders}");
        assert_eq!(plain.rwlock_channel(), "redisson_rwlock:{orders}");
        assert_eq!(
            plain.fair_channel(ClaimId::from_bits(1)),
            "redisson_lock__channel:{orders}:00000000-0000-0000-0000-000000000001:1"
        );
        let tagged = keys("x{t}y", true).expect("a good name");
        assert_eq!(tagged.beside()[2], "redisson_lock_queue:x{t}y");
    }

    #[test]
    fn names_whose_keys_would_be_apart_are_refused_in_a_cluster() {
        for name in ["a{b", "a{}b", "a}b", "}{", "a{}{b}"] {
            assert!(keys(name, true).is_err(), "{name}");
            assert!(keys(name, false).is_ok(), "{name}");
        }
        for name in ["a", "{a}", "a{b}c", "a}b{c}", "a{b}{c}"] {
            assert!(keys(name, true).is_ok(), "{name}");
        }
        assert!(keys("palisade:1:redisson:{a}", false).is_err());
        assert!(keys("palisade:1:redisson-waiters:{a}", false).is_err());
    }
}
