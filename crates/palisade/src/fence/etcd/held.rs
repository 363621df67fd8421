//! Grants that a transaction can compare.

use std::fmt;

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::guard::{DetachedGrant, Exclusive, Guard};
use crate::name::Name;
use crate::store::{ClaimId, Mode};
use crate::stores::etcd::client::names::NAME_LIMIT;
use crate::stores::etcd::client::user_keys::DataClient;

/// An exclusive grant of a lock in etcd, as a transaction can compare it.
///
/// It does not say whether the grant still holds. etcd checks that with each write.
#[derive(Clone, PartialEq, Eq)]
pub struct Held {
    name: Name,
    /// The prefix as given by the user; otherwise the URL has it.
    prefix: Option<String>,
    /// The end of the lock's key: the claim's id, unless the claim uses a key of an earlier one.
    end: ClaimId,
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
        let claim = &guard.held().tracked.claim;
        in_etcd(guard.held().core.capability().store)?;
        // A grant that is known to be gone has no key, and then no key has its revision.
        let end = guard.held().lock_key().and_then(|end| ClaimId::parse(&end));
        Ok(Held::new(
            claim.name.clone(),
            end.unwrap_or(claim.id),
            guard.fence(),
        ))
    }

    /// The grant that was carried here from another process.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when the lock is not in etcd, or the grant is not
    /// exclusive.
    pub fn by_grant(grant: &DetachedGrant) -> Result<Held> {
        in_etcd(&grant.store)?;
        if grant.mode != Mode::Exclusive {
            return Err(Error::config(format!(
                "the grant is {}, and only an exclusive one may write",
                grant.mode
            )));
        }
        Ok(Held::new(
            grant.name.clone(),
            grant.claim_id()?,
            grant.fence,
        ))
    }

    fn new(name: Name, end: ClaimId, fence: Fence) -> Held {
        Held {
            name,
            prefix: None,
            end,
            fence,
            exact_name: false,
        }
    }

    /// The path of the lock's URL, if it has one, for a client of your own.
    /// [`FencedKeys`](super::FencedKeys) know it by their URL.
    #[must_use]
    pub fn prefix(self, path: &str) -> Held {
        Held {
            prefix: Some(path.trim_matches('/').to_owned()),
            ..self
        }
    }

    /// For a lock whose URL says `names=exact`, and a client of your own.
    #[must_use]
    pub fn exact_name(self) -> Held {
        Held {
            exact_name: true,
            ..self
        }
    }

    /// The key of the lock that this grant holds by. A secret: a client that knows it, and may
    /// write it, can end the grant.
    pub fn lock_key(&self) -> Vec<u8> {
        let name = if self.exact_name {
            self.name.as_str().to_owned()
        } else {
            self.name.mapped(NAME_LIMIT)
        };
        let prefix = self.prefix.as_deref().unwrap_or_default();
        let slash = if prefix.is_empty() { "" } else { "/" };
        format!("{prefix}{slash}{name}/{}", self.end.reveal()).into_bytes()
    }

    /// The same, where the URL of the locks has the prefix.
    pub(super) fn lock_key_of(&self, data: &DataClient) -> Vec<u8> {
        match (&self.prefix, self.exact_name) {
            (None, false) => {
                format!("{}{}", data.names().line(&self.name), self.end.reveal()).into_bytes()
            }
            _ => self.lock_key(),
        }
    }

    pub(super) fn fence(&self) -> Fence {
        self.fence
    }

    /// The create revision that the key has while this grant holds: the same number as the fence.
    pub fn create_revision(&self) -> i64 {
        i64::try_from(self.fence.get()).unwrap_or(i64::MAX)
    }
}

fn in_etcd(store: &str) -> Result<()> {
    match store {
        "etcd" => Ok(()),
        other => Err(Error::config(format!(
            "the lock is in {other}, and etcd cannot check it there; write with the fence"
        ))),
    }
}

/// Without the key, which is a secret.
impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
