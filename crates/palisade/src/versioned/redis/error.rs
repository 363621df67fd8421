//! Why a swap has no answer.

use std::fmt;

use redis::RedisError;

use crate::error::Error;
use crate::versioned::{PendingSwap, Versioned};

/// Why a versioned key could not be read or swapped. A conflict is not in this list: it is an answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum SwapError {
    /// Redis did not answer, so the swap may have been done. [Settle](super::VersionedKeys::settle) it.
    Unanswered {
        /// The swap.
        swap: Box<PendingSwap>,
        /// What happened to the connection.
        cause: RedisError,
    },
    /// There is something under the key that was not written by [`VersionedKeys`](super::VersionedKeys). Nothing was changed.
    Foreign {
        /// Redis' type of it (`string`, `list`, `hash`, …), or the format that it says it has.
        found: String,
    },
    /// The version in the key is not one that we would write. Nothing was changed.
    Corrupt {
        /// What stands there.
        found: String,
    },
    /// Refused before anything was sent, or an answer that we do not understand.
    Refused(Error),
    /// Redis refused; or it did not answer a question that changes nothing. Nothing was changed.
    Redis(RedisError),
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::Unanswered { cause, .. } => {
                write!(
                    f,
                    "redis did not answer, so the swap may have been done; settle it before you go on: {cause}"
                )
            }
            SwapError::Foreign { found } => write!(
                f,
                "the key holds something else ({found:?}), which this version did not write and does not touch; use another key, or \
                 delete it once nobody needs it"
            ),
            SwapError::Corrupt { found } => {
                write!(
                    f,
                    "the version in the key is {found:?}, which is none of ours; restore the key, or delete it"
                )
            }
            SwapError::Refused(error) => error.fmt(f),
            SwapError::Redis(error) => write!(f, "redis: {error}"),
        }
    }
}

impl std::error::Error for SwapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SwapError::Unanswered { cause, .. } | SwapError::Redis(cause) => Some(cause),
            SwapError::Refused(error) => error.source(),
            _ => None,
        }
    }
}

impl From<RedisError> for SwapError {
    fn from(error: RedisError) -> SwapError {
        SwapError::Redis(error)
    }
}

impl From<Error> for SwapError {
    fn from(error: Error) -> SwapError {
        SwapError::Refused(error)
    }
}

/// Why an update was not done, or nobody knows whether it was.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpdateError {
    /// Others were faster, every time. Nothing was changed by us.
    Contended {
        /// How often it was tried.
        tries: u32,
    },
    /// An answer was lost, and what stands there now is not ours: the change may have been made and replaced since. Whether to make
    /// it again is yours to decide.
    Unknown {
        /// What stands there now.
        current: Option<Versioned>,
    },
    /// As for a single swap.
    Swap(SwapError),
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpdateError::Contended { tries } => {
                write!(f, "others were faster {tries} times; try again later, or take a lock for so contended a key")
            }
            UpdateError::Unknown { .. } => f.write_str(
                "an answer was lost and others have written since: the change may have been made; look before you repeat it",
            ),
            UpdateError::Swap(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for UpdateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            UpdateError::Swap(error) => error.source(),
            _ => None,
        }
    }
}

impl From<SwapError> for UpdateError {
    fn from(error: SwapError) -> UpdateError {
        UpdateError::Swap(error)
    }
}
