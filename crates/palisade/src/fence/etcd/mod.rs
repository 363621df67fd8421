//! Writes in etcd that the lock itself admits.
//!
//! Where lock and data are in the same etcd, no maximum has to be kept. A transaction that compares
//! the create revision of the lock's own key passes only while this very grant holds, checked by
//! the server in the same step. It is refused from the moment the grant ends, even if there is no
//! later holder. No clock is involved.
//!
//! ```
//! use palisade::fence::etcd::{FencedKeys, Held, KeyError};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::etcd::Etcd::start();
//! # let url = format!("etcd://{}/locks", server.address());
//! let locks = palisade::connect(&url).await?; //   etcd://h1,h2,h3/locks
//! let shop = FencedKeys::connect(&url)?; //        the same URL: members, login, TLS, and where the locks are
//!
//! let guard = locks.mutex("stock").acquire().await?;
//! let held = Held::by(&guard)?;
//! shop.put(&held, "stock/bolt", "7").await?;
//! assert_eq!(shop.get("stock/bolt").await?, Some(b"7".to_vec()));
//!
//! // Two keys in one step.
//! shop.write(&held, &[("stock/bolt", Some("6")), ("reserved/bolt", None)]).await?;
//!
//! locks.revoke("stock", guard.fence()).await?;
//! assert!(matches!(shop.put(&held, "stock/bolt", "5").await, Err(KeyError::NotHeld)));
//! # Ok(())
//! # }
//! ```
//!
//! # How to use it
//!
//! - All writers of those keys must write so. A plain put checks nothing.
//! - Keys are taken as they are: without a prefix, a lease or a mark of ours. Other programs may
//!   read them with any client.
//! - Read while you hold, and write what follows from it: the keys stay unchanged until the grant
//!   ends.
//! - A [`FencedKeys`] connects at its first use, in the tokio runtime of that call, and lives as
//!   long as that runtime.
//!
//! # Lost answers
//!
//! [`KeyError::Etcd`] with [`Unavailable`](crate::ErrorKind::Unavailable): the write may have been
//! done. Writing the same again is harmless. But a request that was given up may still be in
//! flight, and pass after the next one of the same holder; where that matters, use
//! [`versioned::etcd`](crate::versioned::etcd).
//!
//! # With another client
//!
//! [`Held`] has the key and the revision, for whatever client of etcd you write with. With `etcdctl
//! txn` it is
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

mod held;

use std::fmt;
use std::sync::Arc;

pub use held::Held;

use crate::error::Error;
use crate::stores::etcd::client::user_keys::{DataClient, Writing, may_be_done};

/// Keys in an etcd that only the holder of a lock there can write. See the [module docs](self).
///
/// Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct FencedKeys(Arc<DataClient>);

impl FencedKeys {
    /// Keys in the etcd of this URL, which is the one that the locks have. Nothing is connected
    /// yet.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a URL that cannot work.
    pub fn connect(url: impl AsRef<str>) -> Result<FencedKeys, Error> {
        Ok(FencedKeys(Arc::new(DataClient::open(url.as_ref())?)))
    }

    /// Reads a key; `None` when it is not there. Asks a majority, so the answer is the latest.
    ///
    /// # Errors
    ///
    /// [`KeyError::Etcd`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, KeyError> {
        Ok(self
            .0
            .get(key.as_ref(), None)
            .await?
            .map(|found| found.value))
    }

    /// Sets a key, if this very grant holds the lock at this moment.
    ///
    /// # Errors
    ///
    /// [`KeyError::NotHeld`] when the lease has ended, or the grant was released, revoked or lost;
    /// nothing is changed then.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the write may be done or not.
    pub async fn put(
        &self,
        held: &Held,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), KeyError> {
        self.send(held, &[(key.as_ref(), Some(value.as_ref()))])
            .await
            .map(drop)
    }

    /// Deletes a key, if this very grant holds the lock at this moment; whether there was one.
    ///
    /// # Errors
    ///
    /// As [`put`](FencedKeys::put).
    ///
    /// # Cancel safety
    ///
    /// As [`put`](FencedKeys::put).
    pub async fn delete(&self, held: &Held, key: impl AsRef<[u8]>) -> Result<bool, KeyError> {
        Ok(self
            .send(held, &[(key.as_ref(), None)])
            .await?
            .first()
            .copied()
            .unwrap_or_default())
    }

    /// Sets and deletes several keys in one step, or none of them. No key may be there twice; a
    /// server takes 127 at once, unless it is told otherwise.
    ///
    /// # Errors
    ///
    /// As [`put`](FencedKeys::put).
    ///
    /// # Cancel safety
    ///
    /// As [`put`](FencedKeys::put).
    pub async fn write<K, V>(&self, held: &Held, writes: &[(K, Option<V>)]) -> Result<(), KeyError>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let writes: Vec<Writing<'_>> = writes
            .iter()
            .map(|(key, value)| (key.as_ref(), value.as_ref().map(AsRef::as_ref)))
            .collect();
        self.send(held, &writes).await.map(drop)
    }

    /// Asks whether this very grant holds the lock at this moment. It may have ended by the time of
    /// the answer: a write checks by itself.
    ///
    /// # Errors
    ///
    /// As [`put`](FencedKeys::put).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn check(&self, held: &Held) -> Result<(), KeyError> {
        self.send(held, &[]).await.map(drop)
    }

    async fn send(&self, held: &Held, writes: &[Writing<'_>]) -> Result<Vec<bool>, KeyError> {
        if held.fence().is_none() {
            return Err(KeyError::NotHeld);
        }
        let lock = held.lock_key_of(&self.0);
        self.0
            .write_if_held(&lock, held.create_revision(), writes)
            .await?
            .ok_or(KeyError::NotHeld)
    }
}

impl fmt::Debug for FencedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedKeys").finish_non_exhaustive()
    }
}

/// Why a key was not written, or could not be read. The message says what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyError {
    /// The grant does not hold the lock: its lease has ended, or it was released, revoked or lost.
    /// Nothing was changed.
    NotHeld,
    /// etcd refused, or did not answer. Unanswered ([`Unavailable`](crate::ErrorKind::Unavailable)),
    /// the write may have been done; doing it again is harmless.
    Etcd(Error),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::NotHeld => {
                f.write_str("the lock is not held by this grant any more; take it anew, and read before you write")
            }
            KeyError::Etcd(error) if may_be_done(error) => write!(f, "the write may have been done; do the same again: {error}"),
            KeyError::Etcd(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KeyError::NotHeld => None,
            KeyError::Etcd(error) => Some(error),
        }
    }
}

impl From<Error> for KeyError {
    fn from(error: Error) -> KeyError {
        KeyError::Etcd(error)
    }
}
