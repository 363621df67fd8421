//! Versioned keys in an etcd of yours.
//!
//! ```
//! use palisade::versioned::Swapped;
//! use palisade::versioned::etcd::VersionedKeys;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::etcd::Etcd::start();
//! # let url = format!("etcd://{}", server.address());
//! let shop = VersionedKeys::connect(url)?; // etcd://h1,h2,h3, as for locks
//!
//! let Swapped::Done(first) = shop.swap("stock/bolt", None, "7").await? else { return Err("it was there".into()) };
//!
//! // Two have read 7. One of them is faster.
//! assert!(matches!(shop.swap("stock/bolt", Some(first), "6").await?, Swapped::Done(_)));
//! let Swapped::Conflict(Some(now)) = shop.swap("stock/bolt", Some(first), "6").await? else { return Err("lost".into()) };
//! assert_eq!(now.value, b"6"); // look again, decide again
//!
//! // The same as a loop.
//! let one_less = |old: Option<&[u8]>| {
//!     let left: u32 = std::str::from_utf8(old?).ok()?.parse().ok()?;
//!     Some(left.checked_sub(1)?.to_string().into_bytes()) // `None`: sold out, leave it
//! };
//! assert!(shop.update("stock/bolt", one_less).await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! A version is the key's *mod revision*, which etcd itself keeps. So nothing is written beside the
//! value, and other programs may write the same keys with any client. The key is taken as it is;
//! the path of the URL, which is for locks, is not put before it.
//!
//! A [`VersionedKeys`] connects at its first use, in the tokio runtime of that call, and lives as
//! long as that runtime.
//!
//! # How far versions never repeat
//!
//! For as long as the cluster lives: a revision is given once. After a snapshot was restored
//! revisions go back, and a version that was read before may be that of another value. A client
//! that has seen a higher revision refuses such a cluster with
//! [`Protocol`](crate::ErrorKind::Protocol); one that is started afterwards cannot know. So do not
//! keep versions elsewhere for longer than the cluster lives.
//!
//! # Lost answers
//!
//! [`SwapError::Unanswered`] carries the swap, and [`settle`](VersionedKeys::settle) finds out. If
//! the expected version is still there, the swap is done now; if another value has replaced it,
//! ours was not done. If the *same* value has, or more than one change was made, the writer is
//! unknown: [`Settled::Unknown`].

mod error;

use std::fmt;
use std::sync::Arc;

pub use error::{SwapError, UpdateError};

use super::pause::pause;
use super::{PendingSwap, Settled, Swapped, Version, Versioned};
use crate::error::Error;
use crate::stores::etcd::client::user_keys::{DataClient, Value, may_be_done};

const TRIES: u32 = 32;
/// How often a lost answer is asked for again by [`VersionedKeys::update`].
const SETTLES: u32 = 3;

/// Keys that are changed only by a client that has seen their value. See the [module docs](self).
///
/// Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct VersionedKeys {
    data: Arc<DataClient>,
    tries: u32,
}

impl VersionedKeys {
    /// Keys in the etcd of this URL, as for locks. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a URL that cannot work.
    pub fn connect(url: impl AsRef<str>) -> Result<VersionedKeys, Error> {
        Ok(VersionedKeys {
            data: Arc::new(DataClient::open(url.as_ref())?),
            tries: TRIES,
        })
    }

    /// How often [`update`](VersionedKeys::update) tries, 32 unless told otherwise; at least once.
    #[must_use]
    pub fn tries(self, tries: u32) -> VersionedKeys {
        VersionedKeys {
            tries: tries.max(1),
            ..self
        }
    }

    /// The value and its version; `None` when there is none. Asks a majority, so the answer is the
    /// latest.
    ///
    /// # Errors
    ///
    /// [`SwapError::Refused`] when etcd refused or did not answer.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Versioned>, SwapError> {
        Ok(self.data.get(key.as_ref(), None).await?.map(versioned))
    }

    /// Sets the value, if the expected version stands there; `None` expects that there is no value.
    ///
    /// # Errors
    ///
    /// [`SwapError::Unanswered`] when the answer was lost: [settle](VersionedKeys::settle) it.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the swap may be done or not, and cannot be settled. To be certain, let it
    /// end.
    pub async fn swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<Version>,
        value: impl AsRef<[u8]>,
    ) -> Result<Swapped, SwapError> {
        self.send(&pending(key.as_ref(), expected, Some(value.as_ref())))
            .await
    }

    /// Removes the value, if the expected version stands there. [`Swapped::Done`] carries the
    /// version of the removal: the next value has a higher one.
    ///
    /// # Errors
    ///
    /// As [`swap`](VersionedKeys::swap).
    ///
    /// # Cancel safety
    ///
    /// As [`swap`](VersionedKeys::swap).
    pub async fn remove(
        &self,
        key: impl AsRef<[u8]>,
        expected: Version,
    ) -> Result<Swapped, SwapError> {
        self.send(&pending(key.as_ref(), Some(expected), None))
            .await
    }

    /// Finds out the result of a swap whose answer was lost, and does it if it was not done and
    /// still can be. Afterwards it is certain, or [unknown](Settled::Unknown) for good.
    ///
    /// # Errors
    ///
    /// [`SwapError::Unanswered`] when this answer was lost too: settle it again.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point, and called again with the same swap.
    pub async fn settle(&self, swap: &PendingSwap) -> Result<Settled, SwapError> {
        let current = match self.send(swap).await? {
            Swapped::Done(version) => return Ok(Settled::Done(version)),
            Swapped::Conflict(current) => current,
        };
        // Only a value that has replaced the expected version itself proves that ours did not. A
        // removal leaves nothing to compare.
        let Some(now) = &current else {
            return Ok(Settled::Unknown(None));
        };
        let is_ours = swap.value.as_ref() == Some(&now.value);
        let before = revision_of(Some(now.version))? - 1;
        let replaced = match self.data.get(&swap.key, Some(before)).await {
            Ok(replaced) => replaced.map(versioned).map(|replaced| replaced.version),
            Err(error) if may_be_done(&error) => return Err(unanswered(swap, error)),
            // Compaction has taken it.
            Err(_) => return Ok(Settled::Unknown(current)),
        };
        match !is_ours && replaced == swap.expected {
            true => Ok(Settled::Conflict(current)),
            false => Ok(Settled::Unknown(current)),
        }
    }

    /// Gets, changes and swaps, until no other client has written in between. `change` receives the
    /// value and returns the new one, or `None` to leave it as it is. It may be called often, and
    /// should do nothing else.
    ///
    /// Answers the new version, or `None` if `change` left the value as it is. After a second
    /// conflict it waits a random time, longer each time, up to 100 ms, on tokio's clock. A lost
    /// answer is settled.
    ///
    /// # Errors
    ///
    /// [`UpdateError::Contended`] when it was tried [as often as allowed](VersionedKeys::tries),
    /// [`UpdateError::Unknown`] when it is unknown whether the change was made, and what a single
    /// [`swap`](VersionedKeys::swap) may answer.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with its timer on.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the change was made once or not at all.
    pub async fn update<F>(
        &self,
        key: impl AsRef<[u8]>,
        mut change: F,
    ) -> Result<Option<Version>, UpdateError>
    where
        F: FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    {
        let key = key.as_ref();
        let mut current = self.get(key).await?;
        for tried in 1..=self.tries {
            let Some(value) = change(current.as_ref().map(|current| &current.value[..])) else {
                return Ok(None);
            };
            let expected = current.as_ref().map(|current| current.version);
            let swapped = match self.send(&pending(key, expected, Some(&value))).await {
                Err(SwapError::Unanswered { swap, .. }) => self.settled(&swap).await?,
                answer => answer?,
            };
            current = match swapped {
                Swapped::Done(version) => return Ok(Some(version)),
                // The answer carries the current value: the first retry costs no second read.
                Swapped::Conflict(current) if tried == 1 => current,
                Swapped::Conflict(_) if tried == self.tries => break,
                Swapped::Conflict(_) => {
                    pause(tried).await;
                    self.get(key).await?
                }
            };
        }
        Err(UpdateError::Contended { tries: self.tries })
    }

    async fn settled(&self, swap: &PendingSwap) -> Result<Swapped, UpdateError> {
        let mut tried = 1;
        loop {
            pause(tried).await;
            match self.settle(swap).await {
                Ok(Settled::Done(version)) => return Ok(Swapped::Done(version)),
                Ok(Settled::Conflict(current)) => return Ok(Swapped::Conflict(current)),
                Ok(Settled::Unknown(current)) => return Err(UpdateError::Unknown { current }),
                Err(SwapError::Unanswered { .. }) if tried < SETTLES => tried += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn send(&self, swap: &PendingSwap) -> Result<Swapped, SwapError> {
        let expected = revision_of(swap.expected)?;
        match self
            .data
            .swap((&swap.key, swap.value.as_deref()), expected)
            .await
        {
            Ok(Ok(revision)) => Ok(Swapped::Done(version(revision))),
            Ok(Err(current)) => Ok(Swapped::Conflict(current.map(versioned))),
            Err(error) if may_be_done(&error) => Err(unanswered(swap, error)),
            Err(error) => Err(SwapError::Refused(error)),
        }
    }
}

impl fmt::Debug for VersionedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionedKeys")
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}

/// etcd has no room for a token: the value is stored as it is.
fn pending(key: &[u8], expected: Option<Version>, value: Option<&[u8]>) -> PendingSwap {
    PendingSwap {
        key: key.to_vec(),
        expected,
        value: value.map(<[u8]>::to_vec),
        token: String::new(),
    }
}

fn unanswered(swap: &PendingSwap, cause: Error) -> SwapError {
    SwapError::Unanswered {
        swap: Box::new(swap.clone()),
        cause,
    }
}

fn version(revision: i64) -> Version {
    Version(u64::try_from(revision).unwrap_or_default())
}

/// The revision that etcd compares; 0 is the absence of the key, and so no version.
fn revision_of(version: Option<Version>) -> Result<i64, SwapError> {
    match version.map(|version| i64::try_from(version.0)) {
        None => Ok(0),
        Some(Ok(revision)) if revision > 0 => Ok(revision),
        Some(_) => Err(SwapError::Refused(Error::config(
            "that is no version of a key in etcd; take one that get or swap gave",
        ))),
    }
}

fn versioned(kept: Value) -> Versioned {
    Versioned {
        version: version(kept.revision),
        value: kept.value,
    }
}
