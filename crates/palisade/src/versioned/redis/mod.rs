//! Versioned keys in a Redis of yours.
//!
//! ```
//! use palisade::versioned::Swapped;
//! use palisade::versioned::redis::{VersionedKeys, redis};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::redis::Redis::start();
//! # let url = server.url();
//! let mut shop = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
//! let keys = VersionedKeys::new();
//!
//! let Swapped::Done(first) = keys.swap(&mut shop, "stock:bolt", None, "7").await? else { return Err("it was there".into()) };
//!
//! // Two programs have read 7. One of them is faster.
//! assert!(matches!(keys.swap(&mut shop, "stock:bolt", Some(first), "6").await?, Swapped::Done(_)));
//! let Swapped::Conflict(Some(now)) = keys.swap(&mut shop, "stock:bolt", Some(first), "6").await? else { return Err("lost".into()) };
//! assert_eq!(now.value, b"6"); // decide again, with the new value
//!
//! // The same as a loop.
//! let one_less = |old: Option<&[u8]>| {
//!     let left: u32 = std::str::from_utf8(old?).ok()?.parse().ok()?;
//!     Some(left.checked_sub(1)?.to_string().into_bytes()) // `None`: sold out, change nothing
//! };
//! assert!(keys.update(&mut shop, "stock:bolt", one_less).await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! All writers must use [`VersionedKeys`]: a plain `HSET` checks no version. Any [`ConnectionLike`]
//! will do: a single connection, a manager, a cluster. Redis 5 or later.
//!
//! # What is in the key
//!
//! | field of the hash | content |
//! |---|---|
//! | `palisade` | `versioned:1`, the format. A key without it is never touched: [`SwapError::Foreign`] |
//! | `version` | the version, in decimal |
//! | `value` | the value. Absent when it was removed. Programs in other languages may read it |
//! | `token` | the token of the swap that wrote the value: a swap that is sent twice is done once |
//! | `was` | the version that it replaced |
//!
//! # How far versions never repeat
//!
//! A version is max(last + 1, the server's clock in microseconds). The last version is kept with the
//! value, and for 24 hours after the value was removed; [`keep`](VersionedKeys::keep) changes the
//! time. After that, and after everything else that makes Redis forget a key (a flush, an eviction,
//! a `DEL`, a failover that loses the last writes), only the clock counts: versions repeat only if
//! the clock is then set back past the last change of that key.
//!
//! # Lost replies
//!
//! [`SwapError::Unanswered`] carries the swap, and [`settle`](VersionedKeys::settle) sends it
//! again: it is done at most once, and known to be done while its value is there. Some connections
//! repeat requests by themselves (a cluster's does, after a broken connection); then a swap that
//! was done, and replaced before it was repeated, is reported as a conflict. Set their retries to 0
//! where that matters.

mod error;

use std::time::Duration;

pub use error::{SwapError, UpdateError};
pub use redis;
use redis::aio::ConnectionLike;

use super::pause::pause;
use super::{PendingSwap, Settled, Swapped, Version, Versioned};
use crate::error::Error;
use crate::store::ClaimId;
use crate::stores::redis::client::{UserScript, is_refusal};

static SWAP: UserScript = UserScript::new(include_str!("swap.lua"));
static GET: UserScript = UserScript::new(include_str!("get.lua"));

const KEEP: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
const TRIES: u32 = 32;
/// How often [`VersionedKeys::update`] settles a swap whose reply was lost. A dead connection does
/// not come back by that.
const SETTLES: u32 = 3;

/// Keys that change only if the writer has seen their current version. See the [module docs](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionedKeys {
    keep: Duration,
    tries: u32,
}

/// The reply of the script.
enum Answer {
    Done(Version),
    /// `direct`: the current version replaced the expected one, so this swap was not done between
    /// them.
    Conflict {
        direct: bool,
        current: Option<Versioned>,
    },
}

impl Default for VersionedKeys {
    fn default() -> VersionedKeys {
        VersionedKeys::new()
    }
}

impl VersionedKeys {
    /// Keys that keep the version for 24 hours after the value was removed, and updates that try 32
    /// times.
    pub const fn new() -> VersionedKeys {
        VersionedKeys {
            keep: KEEP,
            tries: TRIES,
        }
    }

    /// Keeps the version for so long after the value was removed.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for less than a millisecond or more than a hundred
    /// years.
    pub fn keep(self, keep: Duration) -> Result<VersionedKeys, Error> {
        if keep > LONGEST || keep < Duration::from_millis(1) {
            return Err(Error::config(format!(
                "{keep:?} is not a duration that Redis can count; use 1 ms to 100 years"
            )));
        }
        Ok(VersionedKeys { keep, ..self })
    }

    /// How often [`update`](VersionedKeys::update) tries; at least once.
    #[must_use]
    pub fn tries(self, tries: u32) -> VersionedKeys {
        VersionedKeys {
            tries: tries.max(1),
            ..self
        }
    }

    /// The value and its version; `None` when there is none.
    ///
    /// # Errors
    ///
    /// [`SwapError::Foreign`] for a key that [`VersionedKeys`] did not write.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn get<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Versioned>, SwapError>
    where
        C: ConnectionLike + Send,
    {
        let mut answer = GET.run(connection, &[key.as_ref()], &[]).await?.into_iter();
        match answer.next().as_deref() {
            Some(b"none") => Ok(None),
            Some(b"ok") => Ok(Some(versioned(answer.next(), answer.next())?)),
            other => Err(refusal(other, answer.next())),
        }
    }

    /// Sets the value, if the key has the expected version; `None` expects that there is no value.
    ///
    /// # Errors
    ///
    /// [`SwapError::Unanswered`] when the reply was lost: [settle](VersionedKeys::settle) the swap.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it completes, the swap may be done or not, and cannot be settled. To be
    /// certain, let it complete.
    pub async fn swap<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        expected: Option<Version>,
        value: impl AsRef<[u8]>,
    ) -> Result<Swapped, SwapError>
    where
        C: ConnectionLike + Send,
    {
        self.begin(connection, key.as_ref(), expected, Some(value.as_ref()))
            .await
    }

    /// Removes the value, if the key has the expected version. [`Swapped::Done`] carries the version
    /// of the removal: the next value has a higher one.
    ///
    /// # Errors
    ///
    /// As [`swap`](VersionedKeys::swap).
    ///
    /// # Cancel safety
    ///
    /// As [`swap`](VersionedKeys::swap).
    pub async fn remove<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        expected: Version,
    ) -> Result<Swapped, SwapError>
    where
        C: ConnectionLike + Send,
    {
        self.begin(connection, key.as_ref(), Some(expected), None)
            .await
    }

    /// Settles a swap whose reply was lost: does it, if it was not done and still can be. Then the
    /// outcome is certain, or [unknown](Settled::Unknown) for good. Use a new connection if the old
    /// one is broken.
    ///
    /// # Errors
    ///
    /// [`SwapError::Unanswered`] when this reply was lost too: settle it again.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point, and called again with the same swap.
    pub async fn settle<C>(
        &self,
        connection: &mut C,
        swap: &PendingSwap,
    ) -> Result<Settled, SwapError>
    where
        C: ConnectionLike + Send,
    {
        Ok(match self.send(connection, swap).await? {
            Answer::Done(version) => Settled::Done(version),
            Answer::Conflict {
                direct: true,
                current,
            } => Settled::Conflict(current),
            Answer::Conflict {
                direct: false,
                current,
            } => Settled::Unknown(current),
        })
    }

    /// Gets, changes and swaps the value, again after each conflict. `change` takes the value and
    /// returns the new one, or `None` to keep it; it may be called often, and should have no side
    /// effects.
    ///
    /// Returns the new version, or `None` if `change` kept the value. After a second conflict it
    /// waits a random time, longer each time, up to 100 ms, on tokio's clock. A lost reply is
    /// settled on the same connection.
    ///
    /// # Errors
    ///
    /// [`UpdateError::Contended`] when it was tried [as often as allowed](VersionedKeys::tries),
    /// [`UpdateError::Unknown`] when it cannot be known whether the change was made, and the errors
    /// of a single [`swap`](VersionedKeys::swap).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with its timer on.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the change was made once or not at all.
    pub async fn update<C, F>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        mut change: F,
    ) -> Result<Option<Version>, UpdateError>
    where
        C: ConnectionLike + Send,
        F: FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    {
        let key = key.as_ref();
        let mut current = self.get(connection, key).await?;
        for tried in 1..=self.tries {
            let Some(value) = change(current.as_ref().map(|current| &current.value[..])) else {
                return Ok(None);
            };
            let expected = current.as_ref().map(|current| current.version);
            let swapped = match self.begin(connection, key, expected, Some(&value)).await {
                Err(SwapError::Unanswered { swap, .. }) => self.settled(connection, &swap).await?,
                answer => answer?,
            };
            current = match swapped {
                Swapped::Done(version) => return Ok(Some(version)),
                // The reply has the current value: the first retry needs no second request.
                Swapped::Conflict(current) if tried == 1 => current,
                Swapped::Conflict(_) if tried == self.tries => break,
                Swapped::Conflict(_) => {
                    pause(tried).await;
                    self.get(connection, key).await?
                }
            };
        }
        Err(UpdateError::Contended { tries: self.tries })
    }

    async fn settled<C>(
        &self,
        connection: &mut C,
        swap: &PendingSwap,
    ) -> Result<Swapped, UpdateError>
    where
        C: ConnectionLike + Send,
    {
        let mut tried = 1;
        loop {
            pause(tried).await;
            match self.settle(connection, swap).await {
                Ok(Settled::Done(version)) => return Ok(Swapped::Done(version)),
                Ok(Settled::Conflict(current)) => return Ok(Swapped::Conflict(current)),
                Ok(Settled::Unknown(current)) => return Err(UpdateError::Unknown { current }),
                Err(SwapError::Unanswered { .. }) if tried < SETTLES => tried += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn begin<C>(
        &self,
        connection: &mut C,
        key: &[u8],
        expected: Option<Version>,
        value: Option<&[u8]>,
    ) -> Result<Swapped, SwapError>
    where
        C: ConnectionLike + Send,
    {
        let token = ClaimId::random()?.reveal();
        let swap = PendingSwap {
            key: key.to_vec(),
            expected,
            value: value.map(<[u8]>::to_vec),
            token,
        };
        Ok(match self.send(connection, &swap).await? {
            Answer::Done(version) => Swapped::Done(version),
            Answer::Conflict { current, .. } => Swapped::Conflict(current),
        })
    }

    async fn send<C>(&self, connection: &mut C, swap: &PendingSwap) -> Result<Answer, SwapError>
    where
        C: ConnectionLike + Send,
    {
        let expected = swap
            .expected
            .map(|version| version.to_string())
            .unwrap_or_default();
        let keep = self.keep.as_millis().to_string();
        let (verb, value) = swap
            .value
            .as_deref()
            .map_or(("remove", &b""[..]), |value| ("set", value));
        let args = [
            expected.as_bytes(),
            swap.token.as_bytes(),
            keep.as_bytes(),
            verb.as_bytes(),
            value,
        ];
        let answer = SWAP
            .run(connection, &[&swap.key], &args)
            .await
            .map_err(|cause| match is_refusal(&cause) {
                true => SwapError::Redis(cause),
                false => SwapError::Unanswered {
                    swap: Box::new(swap.clone()),
                    cause,
                },
            })?;
        let mut answer = answer.into_iter();
        match answer.next().as_deref() {
            Some(b"done") => Ok(Answer::Done(version(answer.next())?)),
            Some(b"conflict") => {
                let direct = answer.next().as_deref() == Some(b"1");
                let current = match (answer.next(), answer.next()) {
                    (None, _) => None,
                    (version, value) => Some(versioned(version, value)?),
                };
                Ok(Answer::Conflict { direct, current })
            }
            other => Err(refusal(other, answer.next())),
        }
    }
}

fn versioned(number: Option<Vec<u8>>, value: Option<Vec<u8>>) -> Result<Versioned, SwapError> {
    Ok(Versioned {
        version: version(number)?,
        value: value.unwrap_or_default(),
    })
}

fn version(number: Option<Vec<u8>>) -> Result<Version, SwapError> {
    let found = text(number);
    found
        .parse()
        .map(Version)
        .map_err(|_| SwapError::Corrupt { found })
}

/// Why the script refused.
fn refusal(word: Option<&[u8]>, about: Option<Vec<u8>>) -> SwapError {
    match word {
        Some(b"foreign") => SwapError::Foreign { found: text(about) },
        Some(b"corrupt") => SwapError::Corrupt { found: text(about) },
        other => SwapError::Refused(Error::protocol(format!(
            "the script replied {:?}; this is a bug in Palisade",
            text(other.map(<[u8]>::to_vec))
        ))),
    }
}

fn text(bytes: Option<Vec<u8>>) -> String {
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}
