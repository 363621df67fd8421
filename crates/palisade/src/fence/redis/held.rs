//! Grants that a script can check, and keys in the slots of their locks.

use std::fmt;

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::guard::{DetachedGrant, Exclusive, Guard};
use crate::name::Name;
use crate::store::Mode;
use crate::stores::redis::line_key;

/// An exclusive grant of a lock in Redis, for writes that check the lock itself: see
/// [`FencedKeys::set_if_held`](super::FencedKeys::set_if_held).
///
/// The grant may have ended: Redis checks that with each write.
#[derive(Clone, PartialEq, Eq)]
pub struct Held {
    name: Name,
    prefix: Option<String>,
    claim: String,
    fence: Fence,
    exact_name: bool,
}

impl Held {
    /// The grant of this guard.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when the lock is not in Redis, or not in the format
    /// `palisade`.
    pub fn by(guard: &Guard<Exclusive>) -> Result<Held> {
        let claim = &guard.held().tracked.claim;
        let capability = guard.held().core.capability();
        in_redis(capability.store)?;
        if capability.format != "palisade" {
            return Err(Error::config(format!(
                "the lock has the format {}, which no script of ours can check; use format=palisade, or write with the fence",
                capability.format
            )));
        }
        Ok(Held::new(
            claim.name.clone(),
            claim.id.reveal(),
            guard.fence(),
        ))
    }

    /// The grant that was carried here from another process.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when the lock is not in Redis, or the grant is not
    /// exclusive.
    pub fn by_grant(grant: &DetachedGrant) -> Result<Held> {
        in_redis(&grant.store)?;
        if grant.mode != Mode::Exclusive {
            return Err(Error::config(format!(
                "the grant is {}, and only an exclusive one may write",
                grant.mode
            )));
        }
        Ok(Held::new(
            grant.name.clone(),
            grant.claim_id()?.reveal(),
            grant.fence,
        ))
    }

    fn new(name: Name, claim: String, fence: Fence) -> Held {
        Held {
            name,
            prefix: None,
            claim,
            fence,
            exact_name: false,
        }
    }

    /// The `prefix=` of the lock's URL, if it has one.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Held {
        Held {
            prefix: Some(prefix.into()),
            ..self
        }
    }

    /// For a lock whose URL says `names=exact`. A name that begins with `}` has no hash tag: no key
    /// can be in the slot of such a lock.
    #[must_use]
    pub fn exact_name(self) -> Held {
        Held {
            exact_name: true,
            ..self
        }
    }

    /// The fence of the grant.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// A key for data of yours in the slot of the lock: `what` behind the lock's hash tag.
    ///
    /// ```
    /// # use palisade::fence::redis::Held;
    /// # let grant = r#"{"name": "orders/42", "store": "redis", "claim": "00000000000000000000000000000001",
    /// #     "kind": "mutex", "mode": "exclusive", "fence": "7", "lease_ms": 30000, "owner": "me"}"#;
    /// # let held = Held::by_grant(&serde_json::from_str(grant)?)?;
    /// assert_eq!(held.key("stock"), "{orders%2f42}:stock"); // the lock is `orders/42`
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn key(&self, what: &str) -> String {
        format!("{{{}}}:{what}", self.tag())
    }

    pub(super) fn claim(&self) -> &str {
        &self.claim
    }

    pub(super) fn lock_key(&self) -> String {
        line_key(self.prefix.as_deref(), &self.name, self.exact_name)
    }

    fn tag(&self) -> String {
        let key = self.lock_key();
        String::from_utf8_lossy(hash_tag(key.as_bytes()).unwrap_or_default()).into_owned()
    }

    /// Refuses a key in another slot: in a cluster, one script cannot use both. Also refused where
    /// there is no cluster yet.
    pub(super) fn check_slot(&self, key: &[u8]) -> Result<()> {
        let tag = self.tag();
        if hash_tag(key) == Some(tag.as_bytes()) {
            return Ok(());
        }
        let key = String::from_utf8_lossy(key);
        Err(Error::config(format!(
            "the key {key:?} may be in another slot than the lock {:?}; give it the lock's hash tag, as Held::key does: {:?}",
            self.name.as_str(),
            self.key(&key)
        )))
    }
}

/// The claim is a secret.
impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

fn in_redis(store: &str) -> Result<()> {
    if store == "redis" {
        return Ok(());
    }
    Err(Error::config(format!(
        "the lock is in {store}, which no script in Redis can check; write with the fence instead"
    )))
}

/// The part that Redis Cluster hashes instead of the whole key: between the first `{` and the next
/// `}`, if that is not empty.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let begin = key.iter().position(|&byte| byte == b'{')? + 1;
    let length = key
        .get(begin..)?
        .iter()
        .position(|&byte| byte == b'}')
        .filter(|&length| length > 0)?;
    key.get(begin..begin + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(name: &str) -> Held {
        Held::new(Name::new(name).unwrap(), String::new(), Fence::MAX)
    }

    #[test]
    fn a_key_has_the_tag_of_its_lock() {
        for name in [
            "a",
            "orders/42",
            "{}",
            "}{",
            "a{b}c",
            &"x".repeat(512),
            "größe",
        ] {
            for (held, what) in [
                (held(name), "stock"),
                (held(name), "{other}"),
                (held(name).prefix("app"), ""),
            ] {
                let key = held.key(what);
                assert!(held.check_slot(key.as_bytes()).is_ok(), "{key}");
                assert_eq!(
                    hash_tag(key.as_bytes()),
                    hash_tag(held.lock_key().as_bytes()),
                    "{key}"
                );
            }
        }
    }

    #[test]
    fn the_tag_is_what_redis_hashes() {
        let tag = |key: &'static str| {
            hash_tag(key.as_bytes()).map(|tag| std::str::from_utf8(tag).unwrap())
        };
        assert_eq!(tag("a{b}c{d}"), Some("b"));
        assert_eq!(tag("{{b}}"), Some("{b"));
        assert_eq!([tag("a{}{b}"), tag("a"), tag("a{b"), tag("}a{")], [None; 4]);
    }

    #[test]
    fn a_key_elsewhere_is_refused_with_what_to_do() {
        for key in [
            "stock",
            "{stock}",
            "a{}b",
            "{orders}:stock",
            "x{orders%2f4}",
        ] {
            let error = held("orders/42")
                .check_slot(key.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(error.contains("{orders%2f42}:"), "{error}");
        }
    }
}
