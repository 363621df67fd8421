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
//! // Two have read 7. One of them is faster.
//! assert!(matches!(keys.swap(&mut shop, "stock:bolt", Some(first), "6").await?, Swapped::Done(_)));
//! let Swapped::Conflict(Some(now)) = keys.swap(&mut shop, "stock:bolt", Some(first), "6").await? else { return Err("lost".into()) };
//! assert_eq!(now.value, b"6"); // look again, decide again
//!
//! // The same as a loop.
//! let one_less = |old: Option<&[u8]>| {
//!     let left: u32 = std::str::from_utf8(old?).ok()?.parse().ok()?;
//!     Some(left.checked_sub(1)?.to_string().into_bytes()) // `None`: sold out, leave it
//! };
//! assert!(keys.update(&mut shop, "stock:bolt", one_less).await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! Everybody who writes must write through [`VersionedKeys`]: a plain `HSET` asks nobody. Any connection will do that is a
//! [`ConnectionLike`]: a single one, a manager, a cluster. Redis 5 or later.
//!
//! # What is in the key
//!
//! | field of the hash | what |
//! |---|---|
//! | `palisade` | `versioned:1`, the format. A key without it is not ours, and is not touched: [`SwapError::Foreign`] |
//! | `version` | the version, in decimal |
//! | `value` | the value. Absent when it was removed. Programs in other languages may read it |
//! | `token` | of the swap that made it: so a swap whose answer was lost is found again, and is done once when it is sent twice |
//! | `was` | the version that it replaced |
//!
//! # How far versions never repeat
//!
//! A version is max(last + 1, the server's clock in microseconds). The last one is kept with the value, and for 24 hours after it
//! was removed, [or as you say](VersionedKeys::keep). After that, and after everything else that makes Redis forget a key (a
//! flush, an eviction, a `DEL`, a failover that loses the last writes), it is the clock alone: versions repeat only if the clock is
//! then set back past the last change of that key.
//!
//! # Lost answers
//!
//! [`SwapError::Unanswered`] carries the swap, and [`settle`](VersionedKeys::settle) sends it again: it is done at most once, and
//! known to be done while it stands there. Some connections repeat requests by themselves (a cluster's does, after a broken
//! connection); then a swap that was done, and replaced before it was repeated, is answered as a conflict. Set their retries to 0
//! where that matters.

mod error;

use std::time::Duration;

pub use error::{SwapError, UpdateError};
pub use redis;
use redis::aio::ConnectionLike;

use super::{PendingSwap, Settled, Swapped, Version, Versioned};
use crate::error::Error;
use crate::scripted::{Script, is_refusal};
use crate::store::ClaimId;

static SWAP: Script = Script::new(include_str!("swap.lua"));
static GET: Script = Script::new(include_str!("get.lua"));

const KEEP: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
const TRIES: u32 = 32;
/// How often a lost answer is asked for again by [`VersionedKeys::update`]. A dead connection does not come back by that.
const SETTLES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Keys that are changed only by who has seen what they hold. See the [module docs](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionedKeys {
    keep: Duration,
    tries: u32,
}

/// What the script said.
enum Answer {
    Done(Version),
    /// `direct`: what is there has replaced the expected version itself, so that ours never came between.
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
    /// Keys that remember the version for 24 hours after the value was removed, and updates that try 32 times.
    pub const fn new() -> VersionedKeys {
        VersionedKeys {
            keep: KEEP,
            tries: TRIES,
        }
    }

    /// Remembers the version for so long after the value was removed.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for less than a millisecond or more than a hundred years.
    pub fn keep(self, keep: Duration) -> Result<VersionedKeys, Error> {
        if keep > LONGEST || keep < Duration::from_millis(1) {
            return Err(Error::config(format!(
                "{keep:?} is not a time that Redis can count; give 1 ms to 100 years"
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
    /// [`SwapError::Foreign`] for a key that we did not write.
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

    /// Sets the value, if the expected version stands there; `None` expects that there is no value.
    ///
    /// # Errors
    ///
    /// [`SwapError::Unanswered`] when the answer was lost: [settle](VersionedKeys::settle) it.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the swap may be done or not, and nobody can settle it. To be certain, let it end.
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

    /// Removes the value, if the expected version stands there. [`Swapped::Done`] carries the version of the removal: the next
    /// value has a higher one.
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

    /// Finds out what became of a swap whose answer was lost, and does it if it was not done and still can be: afterwards it is
    /// certain, or [unknown](Settled::Unknown) for good. Use a new connection if the old one is broken.
    ///
    /// # Errors
    ///
    /// [`SwapError::Unanswered`] when this answer was lost too: settle it again.
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

    /// Gets, changes and swaps, until nobody else has come between. `change` is given the value and answers the new one, or `None` to
    /// leave it as it is; it may be called often, and should do nothing else.
    ///
    /// Answers the new version, or `None` if `change` left the value as it is. After a second conflict it waits a random time,
    /// longer each time, up to 100 ms, on tokio's clock. A lost answer is settled on the same connection.
    ///
    /// # Errors
    ///
    /// [`UpdateError::Contended`] when it was tried [as often as allowed](VersionedKeys::tries), [`UpdateError::Unknown`] when nobody
    /// can say whether the change was made, and what a single [`swap`](VersionedKeys::swap) may answer.
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
                // The answer says what is there: the first retry costs no second question.
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
            "the script answered {:?}; a bug",
            text(other.map(<[u8]>::to_vec))
        ))),
    }
}

fn text(bytes: Option<Vec<u8>>) -> String {
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// A random part of a time that doubles: those who met once do not meet again.
async fn pause(tried: u32) {
    let longest = FIRST_PAUSE
        .saturating_mul(1 << tried.min(10))
        .min(LONGEST_PAUSE);
    tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
}
