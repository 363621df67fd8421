//! Why a fenced key did not take a write.

use std::fmt;

use redis::RedisError;

use crate::error::Error;
use crate::fence::Fence;

/// Why a fenced key did not take a write, or could not be read. The message says what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyError {
    /// A later holder has written or installed its fence. Nothing was changed.
    Stale {
        /// The highest fence that the key has seen.
        highest: Fence,
        /// The fence of this write.
        offered: Fence,
    },
    /// The grant does not hold the lock: its lease has ended, or it was released, revoked or lost.
    /// Nothing was changed.
    NotHeld,
    /// The grant came without a fence: this store, or this format of it, gives none.
    NoFence,
    /// The key was not written by [`FencedKeys`](super::FencedKeys). Nothing was changed.
    Foreign {
        /// Redis' type of it (`string`, `list`, `hash`, …), or the format that it says it has.
        found: String,
    },
    /// The fence in the key is not a number that we would write, so that a stale write could not be
    /// refused. Nothing was changed.
    Corrupt {
        /// The content of the field.
        found: String,
    },
    /// Refused before anything was sent: a duration or a key that cannot work.
    Config(Error),
    /// Redis refused, or did not answer. In the second case the write may have been done: do the
    /// same again, which is harmless.
    Redis(RedisError),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Stale { highest, offered } => write!(
                f,
                "stale: fence {offered} is older than fence {highest}, which this key has seen; the lock was lost, acquire it again"
            ),
            KeyError::NotHeld => f.write_str(
                "this grant no longer holds the lock; acquire it again, and read before you write",
            ),
            KeyError::NoFence => {
                f.write_str("the grant has no fence; use a store and a format that gives one")
            }
            KeyError::Foreign { found } => write!(
                f,
                "the key holds something else ({found:?}), which this version did not write and does not touch; use another key, or \
                 delete it once it is not needed"
            ),
            KeyError::Corrupt { found } => write!(
                f,
                "the fence in the key is {found:?}, so a stale write could not be refused; restore the key, or delete it once \
                 every holder so far has stopped"
            ),
            KeyError::Config(error) => error.fmt(f),
            KeyError::Redis(error) => write!(f, "redis: {error}"),
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KeyError::Redis(error) => Some(error),
            KeyError::Config(error) => error.source(),
            _ => None,
        }
    }
}

impl From<RedisError> for KeyError {
    fn from(error: RedisError) -> KeyError {
        KeyError::Redis(error)
    }
}

impl From<Error> for KeyError {
    fn from(error: Error) -> KeyError {
        KeyError::Config(error)
    }
}
