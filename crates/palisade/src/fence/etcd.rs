//! Writes in etcd that the lock itself admits.
//!
//! Where lock and data are in the same etcd, no maximum has to be kept: a transaction that compares the create revision of the
//! lock's own key passes only while this very grant holds, by the word of the server and in the same step. It is refused from the
//! moment the grant ends, though nobody came after it.
//!
//! [`Held`] has the key and the revision, for whatever client of etcd you write with. With `etcdctl txn` it is
//!
//! ```text
//! c("locks/stock/00000000000000000000000000000001") = "7"
//!
//! put stock/bolt 6
//! ```
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade::fence::etcd::Held;
//!
//! # let grant = r#"{"name": "stock", "store": "etcd", "claim": "00000000000000000000000000000001",
//! #     "kind": "mutex", "mode": "exclusive", "fence": "7", "lease_ms": 30000, "owner": "me"}"#;
//! # let grant = serde_json::from_str(grant)?;
//! let held = Held::by_grant(&grant)?.prefix("locks"); // or Held::by(&guard); the URL is etcd://host/locks
//! assert_eq!(held.lock_key(), b"locks/stock/00000000000000000000000000000001");
//! assert_eq!(held.create_revision(), 7);
//! # Ok(())
//! # }
//! ```

use std::fmt;

use super::Fence;
use crate::error::{Error, Result};
use crate::guard::{DetachedGrant, Exclusive, Guard};
use crate::name::Name;
use crate::store::{ClaimId, Mode};
use crate::stores::etcd::CAPABILITY;

/// An exclusive grant of a lock in etcd, as a transaction can compare it.
///
/// It says nothing about whether the grant still holds. That is for etcd to say, with each write.
#[derive(Clone, PartialEq, Eq)]
pub struct Held {
    name: Name,
    prefix: String,
    claim: ClaimId,
    fence: Fence,
    exact_name: bool,
}

impl Held {
    /// The grant of this guard.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when the lock is not in etcd.
    pub fn by(guard: &Guard<Exclusive>) -> Result<Held> {
        let claim = &guard.grip().kept.claim;
        in_etcd(guard.grip().core.capability().store)?;
        Ok(Held::new(claim.name.clone(), claim.id, guard.fence()))
    }

    /// The grant that was carried here from another process.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when the lock is not in etcd, or the grant is not exclusive.
    pub fn by_grant(grant: &DetachedGrant) -> Result<Held> {
        in_etcd(&grant.store)?;
        if grant.mode != Mode::Exclusive {
            return Err(Error::config(format!("the grant is {}, and only an exclusive one may write", grant.mode)));
        }
        Ok(Held::new(grant.name.clone(), grant.claim_id()?, grant.fence))
    }

    fn new(name: Name, claim: ClaimId, fence: Fence) -> Held {
        Held { name, prefix: String::new(), claim, fence, exact_name: false }
    }

    /// The path of the lock's URL, if it has one.
    #[must_use]
    pub fn prefix(self, path: &str) -> Held {
        Held { prefix: path.trim_matches('/').to_owned(), ..self }
    }

    /// For a lock whose URL says `names=exact`.
    #[must_use]
    pub fn exact_name(self) -> Held {
        Held { exact_name: true, ..self }
    }

    /// The key of the lock that this grant holds by. A secret: who knows it, and may write it, can end the grant.
    pub fn lock_key(&self) -> Vec<u8> {
        let name = if self.exact_name { self.name.as_str().to_owned() } else { self.name.mapped(CAPABILITY.name_limit) };
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        format!("{}{slash}{name}/{}", self.prefix, self.claim.reveal()).into_bytes()
    }

    /// The create revision that the key has while this grant holds: the same number as the fence.
    pub fn create_revision(&self) -> i64 {
        i64::try_from(self.fence.get()).unwrap_or(i64::MAX)
    }
}

fn in_etcd(store: &str) -> Result<()> {
    match store {
        "etcd" => Ok(()),
        other => Err(Error::config(format!("the lock is in {other}, and etcd cannot check it there; write with the fence"))),
    }
}

/// Without the claim, which is a secret.
impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("name", &self.name).field("fence", &self.fence).finish_non_exhaustive()
    }
}
