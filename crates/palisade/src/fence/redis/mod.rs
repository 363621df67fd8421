//! Keys that refuse stale writes, in a Redis of yours.
//!
//! The highest fence stands beside the value, in the same key, and every write checks and raises it
//! in the same script:
//!
//! ```
//! use palisade::fence::Fence;
//! use palisade::fence::redis::{FencedKeys, KeyError, redis};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::redis::Redis::start();
//! # let (ours, later) = (Fence::new(33).ok_or("fence")?, Fence::new(34).ok_or("fence")?);
//! # let url = server.url();
//! let mut shop = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
//! let keys = FencedKeys::new();
//!
//! keys.set(&mut shop, "stock:bolt", ours, "7").await?; // `ours` is guard.fence()
//!
//! // This process is paused past its lease. The next holder installs its fence before it reads.
//! keys.install(&mut shop, "stock:bolt", later).await?;
//!
//! // This process wakes up and goes on. The key refuses the write.
//! let refused = keys.set(&mut shop, "stock:bolt", ours, "6").await;
//! assert!(matches!(refused, Err(KeyError::Stale { highest, .. }) if highest == later));
//! # Ok(())
//! # }
//! ```
//!
//! # How to use it
//!
//! - **Install before you read.** A key only knows the fences it has seen. With several keys,
//!   install on all of them before touching any.
//! - All writers must use [`FencedKeys`]. A plain `HSET` checks no fence, and neither does `DEL`.
//! - One key belongs to one lock name. Fences of different names, or of different stores, cannot be
//!   compared.
//! - Any [`ConnectionLike`] will do: a single connection, a manager, a cluster. Redis 5 or later.
//!
//! # Where the lock is in the same Redis
//!
//! There the write can check the lock itself: [`set_if_held`](FencedKeys::set_if_held) and
//! [`delete_if_held`](FencedKeys::delete_if_held) are one script that writes only while this claim
//! holds the lock. They need no `install`. They refuse a holder whose lease has ended, or whose
//! grant was revoked, even if the lock has had no other holder since. They check and raise the
//! fence as well, so both forms can be mixed.
//!
//! Lock and data must be in one slot of a cluster: [`Held::key`] makes such a key, and every other
//! key is refused.
//!
//! ```
//! use palisade::fence::redis::{FencedKeys, Held, KeyError, redis};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::redis::Redis::start();
//! # let grant = r#"{"name": "stock", "store": "redis", "claim": "00000000000000000000000000000001",
//! #     "kind": "mutex", "mode": "exclusive", "fence": "7", "lease_ms": 30000, "owner": "me"}"#;
//! # let grant = serde_json::from_str(grant)?;
//! # let mut shop = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
//! let held = Held::by_grant(&grant)?; // or Held::by(&guard)
//!
//! // The grant ended long ago. The write is refused although the key was never written.
//! let refused = FencedKeys::new().set_if_held(&mut shop, held.key("bolt"), &held, "6").await;
//! assert!(matches!(refused, Err(KeyError::NotHeld)));
//! # Ok(())
//! # }
//! ```
//!
//! # What is in the key
//!
//! A hash. It is one key, so that a cluster never splits the value from its fence, and `DEL`,
//! `RENAME`, `DUMP` or a failover never takes one without the other.
//!
//! | field | content |
//! |---|---|
//! | `palisade` | `fenced:1`, the format. A key without it is never touched: [`KeyError::Foreign`] |
//! | `fence` | the highest fence seen, in decimal. Compared digit by digit: Lua's numbers lose digits past 2^53 |
//! | `value` | the value. Absent when it was deleted, or never set. Programs in other languages may read it |
//! | `ends` | when the value ends, if it does: in milliseconds by the server's clock. Programs that read the fields must check it |
//!
//! # How long the fence is kept
//!
//! As long as the value, and for 24 hours after the value ended or was deleted. A fence that was
//! installed without a value is kept for 24 hours too. [`keep`](FencedKeys::keep) changes the time.
//! Then the whole key expires, and with it the memory of every holder. That is why the end of the
//! value is not the end of the key: a cache entry that takes its fence with it would let a stale
//! holder write again. 24 hours is the longest lease: only a write that was in flight for a day
//! could come later. An ended value uses memory until then, or until the next write to the key.
//!
//! Everything else that makes Redis forget the fence makes it forget the value too: eviction
//! (`maxmemory-policy`; keep `noeviction` for such data), a flush, a failover that loses the last
//! writes. **A fence is as durable as the data it protects**, not more.
//!
//! # Lost replies
//!
//! When a reply is lost ([`KeyError::Redis`]), the write may have been done or not. Writing the same
//! again with the same fence is harmless, and so is a connection that repeats requests by itself.
//! But a fence orders holders, not the writes of one holder: a request that was given up may still
//! be in flight, and arrive after the next one of the same holder. Where that matters, use
//! [`versioned`](crate::versioned).

mod error;
mod held;

use std::time::Duration;

pub use error::KeyError;
pub use held::Held;
pub use redis;
use redis::aio::ConnectionLike;

use super::Fence;
use crate::error::Error;
use crate::stores::redis::client::UserScript;

static WRITE: UserScript = UserScript::new(include_str!("write.lua"));
static WRITE_IF_HELD: UserScript = UserScript::new(concat!(
    include_str!("../../stores/redis/line/holds.lua"),
    include_str!("held.lua"),
    include_str!("write.lua")
));
static READ: UserScript = UserScript::new(include_str!("read.lua"));

/// As long as the longest lease.
const KEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// Past this, a duration in milliseconds means a mistake.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Keys that check the fence of every writer. See the [module docs](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencedKeys {
    /// How long a fence outlives its value; `None` is forever.
    keep: Option<Duration>,
}

/// The content of a fenced key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The value; `None` when it was deleted, has ended, or was never set.
    pub value: Option<Vec<u8>>,
    /// The highest fence that the key has seen.
    pub fence: Fence,
}

/// The effect of a write on the value.
enum Verb<'a> {
    Set {
        value: &'a [u8],
        ttl: Option<Duration>,
    },
    Delete,
    Install,
    Check,
}

impl Default for FencedKeys {
    fn default() -> FencedKeys {
        FencedKeys::new()
    }
}

impl FencedKeys {
    /// Keys that keep the fence for 24 hours after the value is gone.
    pub const fn new() -> FencedKeys {
        FencedKeys { keep: Some(KEEP) }
    }

    /// Keeps the fence for so long after the value is gone. It should be longer than any holder, or
    /// any request of one, can be delayed. All writers of a key should use the same time: each write
    /// starts its own anew.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for less than a millisecond or more than a hundred
    /// years.
    pub fn keep(self, keep: Duration) -> Result<FencedKeys, Error> {
        millis(keep)?;
        Ok(FencedKeys { keep: Some(keep) })
    }

    /// Keeps the fence of every key for ever. Each key that was ever written stays in Redis.
    #[must_use]
    pub fn keep_forever(self) -> FencedKeys {
        FencedKeys { keep: None }
    }

    /// Makes this fence known before the key is read, so that no earlier holder's write can follow
    /// the read. The value stays as it is, and so does its end.
    ///
    /// # Errors
    ///
    /// [`KeyError::Stale`] when a later holder has written or installed its fence.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it completes, the fence may be installed or not. Installing it again is
    /// harmless.
    pub async fn install<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        fence: Fence,
    ) -> Result<(), KeyError>
    where
        C: ConnectionLike + Send,
    {
        self.write(connection, key.as_ref(), fence, Verb::Install)
            .await
            .map(drop)
    }

    /// Whether a write with this fence would pass now. Changes nothing, and so **protects
    /// nothing**: a later holder may write the next moment. It is for giving up early.
    ///
    /// # Errors
    ///
    /// [`KeyError::Stale`] when a later holder has written or installed its fence.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn check<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        fence: Fence,
    ) -> Result<(), KeyError>
    where
        C: ConnectionLike + Send,
    {
        self.write(connection, key.as_ref(), fence, Verb::Check)
            .await
            .map(drop)
    }

    /// Sets the value, unless a later holder has written or installed its fence. An equal fence
    /// passes, so that one holder can write twice. The new value has no end.
    ///
    /// # Errors
    ///
    /// [`KeyError::Stale`] when a later holder has written or installed its fence; nothing is changed
    /// then.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it completes, the value may be set or not. Setting the same again is
    /// harmless.
    pub async fn set<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        fence: Fence,
        value: impl AsRef<[u8]>,
    ) -> Result<(), KeyError>
    where
        C: ConnectionLike + Send,
    {
        let verb = Verb::Set {
            value: value.as_ref(),
            ttl: None,
        };
        self.write(connection, key.as_ref(), fence, verb)
            .await
            .map(drop)
    }

    /// Sets a value that ends by itself after `ttl`. The fence stays [for
    /// longer](FencedKeys::keep).
    ///
    /// # Errors
    ///
    /// As [`set`](FencedKeys::set), and [`KeyError::Config`] for less than a millisecond or more
    /// than a hundred years.
    ///
    /// # Cancel safety
    ///
    /// As [`set`](FencedKeys::set). Setting it again counts the time anew.
    pub async fn set_for<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        fence: Fence,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<(), KeyError>
    where
        C: ConnectionLike + Send,
    {
        let verb = Verb::Set {
            value: value.as_ref(),
            ttl: Some(ttl),
        };
        self.write(connection, key.as_ref(), fence, verb)
            .await
            .map(drop)
    }

    /// Deletes the value and keeps the fence, so that a stale holder cannot bring it back. Returns
    /// whether there was a value; called again after a lost reply, it returns `false`.
    ///
    /// # Errors
    ///
    /// [`KeyError::Stale`] when a later holder has written or installed its fence; nothing is changed
    /// then.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it completes, the value may be deleted or not. Deleting it again is
    /// harmless.
    pub async fn delete<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        fence: Fence,
    ) -> Result<bool, KeyError>
    where
        C: ConnectionLike + Send,
    {
        self.write(connection, key.as_ref(), fence, Verb::Delete)
            .await
    }

    /// Sets the value, if this grant holds the lock at this moment by the clock of Redis. Neither
    /// the local clock nor a later holder's `install` is needed for that. `key` must be in the
    /// lock's slot: [`Held::key`] makes such a key.
    ///
    /// # Errors
    ///
    /// [`KeyError::NotHeld`] when the lease has ended, or the grant was released, revoked or lost;
    /// nothing is changed then. And as [`set`](FencedKeys::set), and [`KeyError::Config`] for a key
    /// that may be in another slot.
    ///
    /// # Cancel safety
    ///
    /// As [`set`](FencedKeys::set).
    pub async fn set_if_held<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        held: &Held,
        value: impl AsRef<[u8]>,
    ) -> Result<(), KeyError>
    where
        C: ConnectionLike + Send,
    {
        let verb = Verb::Set {
            value: value.as_ref(),
            ttl: None,
        };
        self.write_if_held(connection, key.as_ref(), held, verb)
            .await
            .map(drop)
    }

    /// Deletes the value and keeps the fence, if this grant holds the lock at this moment. Returns
    /// the same as [`delete`](FencedKeys::delete).
    ///
    /// # Errors
    ///
    /// As [`set_if_held`](FencedKeys::set_if_held).
    ///
    /// # Cancel safety
    ///
    /// As [`delete`](FencedKeys::delete).
    pub async fn delete_if_held<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
        held: &Held,
    ) -> Result<bool, KeyError>
    where
        C: ConnectionLike + Send,
    {
        self.write_if_held(connection, key.as_ref(), held, Verb::Delete)
            .await
    }

    /// The value and the highest fence; `None` when the key was never written, or has expired.
    ///
    /// [Install](FencedKeys::install) first if you are going to write a value that depends on it.
    ///
    /// # Errors
    ///
    /// [`KeyError::Foreign`] for a key that [`FencedKeys`] did not write.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn get<C>(
        &self,
        connection: &mut C,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Entry>, KeyError>
    where
        C: ConnectionLike + Send,
    {
        let mut answer = READ
            .run(connection, &[key.as_ref()], &[])
            .await?
            .into_iter();
        match answer.next().as_deref() {
            Some(b"none") => Ok(None),
            Some(b"ok") => {
                let fence = fence_of(answer.next())?;
                Ok(Some(Entry {
                    value: answer.next(),
                    fence,
                }))
            }
            other => Err(refusal(other, answer.next(), Fence::NONE)),
        }
    }

    async fn write<C>(
        &self,
        connection: &mut C,
        key: &[u8],
        fence: Fence,
        verb: Verb<'_>,
    ) -> Result<bool, KeyError>
    where
        C: ConnectionLike + Send,
    {
        let words = self.words(fence, &verb)?;
        let [name, number, keep, ttl] = words.each_ref().map(|word| word.as_bytes());
        let args = [name, number, keep, ttl, verb.value()];
        written(WRITE.run(connection, &[key], &args).await?, fence)
    }

    async fn write_if_held<C>(
        &self,
        connection: &mut C,
        key: &[u8],
        held: &Held,
        verb: Verb<'_>,
    ) -> Result<bool, KeyError>
    where
        C: ConnectionLike + Send,
    {
        held.check_slot(key)?;
        let (fence, lock) = (held.fence(), held.lock_key());
        let words = self.words(fence, &verb)?;
        let [name, number, keep, ttl] = words.each_ref().map(|word| word.as_bytes());
        let args = [
            name,
            number,
            keep,
            ttl,
            verb.value(),
            held.claim().as_bytes(),
        ];
        written(
            WRITE_IF_HELD
                .run(connection, &[key, lock.as_bytes()], &args)
                .await?,
            fence,
        )
    }

    /// The script's arguments before the value.
    fn words(&self, fence: Fence, verb: &Verb<'_>) -> Result<[String; 4], KeyError> {
        if fence.is_none() {
            return Err(KeyError::NoFence);
        }
        let (verb, ttl) = match verb {
            Verb::Set { ttl, .. } => ("set", *ttl),
            Verb::Delete => ("delete", None),
            Verb::Install => ("install", None),
            Verb::Check => ("check", None),
        };
        let [keep, ttl] =
            [self.keep, ttl].map(|time| time.map_or_else(|| Ok("0".to_owned()), millis));
        Ok([verb.to_owned(), fence.to_string(), keep?, ttl?])
    }
}

impl Verb<'_> {
    fn value(&self) -> &[u8] {
        if let Verb::Set { value, .. } = self {
            value
        } else {
            b""
        }
    }
}

/// Reads the reply to a write: whether there was a value before.
fn written(answer: Vec<Vec<u8>>, offered: Fence) -> Result<bool, KeyError> {
    let mut answer = answer.into_iter();
    match answer.next().as_deref() {
        Some(b"ok") => Ok(answer.next().as_deref() == Some(b"1")),
        other => Err(refusal(other, answer.next(), offered)),
    }
}

/// Why the script refused.
fn refusal(word: Option<&[u8]>, about: Option<Vec<u8>>, offered: Fence) -> KeyError {
    match word {
        Some(b"stale") => fence_of(about).map_or_else(
            |error| error,
            |highest| KeyError::Stale { highest, offered },
        ),
        Some(b"lost") => KeyError::NotHeld,
        Some(b"foreign") => KeyError::Foreign { found: text(about) },
        Some(b"corrupt") => KeyError::Corrupt { found: text(about) },
        other => KeyError::Config(Error::protocol(format!(
            "the script replied {:?}; this is a bug in Palisade",
            text(other.map(<[u8]>::to_vec))
        ))),
    }
}

fn fence_of(about: Option<Vec<u8>>) -> Result<Fence, KeyError> {
    let found = text(about);
    found
        .parse()
        .ok()
        .filter(|fence: &Fence| !fence.is_none() && fence.to_string() == found)
        .ok_or(KeyError::Corrupt { found })
}

fn text(bytes: Option<Vec<u8>>) -> String {
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

fn millis(time: Duration) -> Result<String, Error> {
    if time > LONGEST || time < Duration::from_millis(1) {
        return Err(Error::config(format!(
            "{time:?} is not a duration that Redis can count; use 1 ms to 100 years"
        )));
    }
    Ok(time.as_millis().to_string())
}
