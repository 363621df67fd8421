//! Why a swap or an update failed.

use std::fmt;

use redis::RedisError;

use crate::error::Error;
use crate::versioned::{PendingSwap, Versioned};

/// Why a versioned key could not be read or swapped. A conflict is not an error: see
/// [`Swapped`](crate::versioned::Swapped).
#[derive(Debug)]
#[non_exhaustive]
pub enum SwapError {
    /// Redis did not answer, so the swap may have been done. [Settle](super::VersionedKeys::settle)
    /// it.
    Unanswered {
        /// The swap.
        swap: Box<PendingSwap>,
        /// What happened to the connection.
        cause: RedisError,
    },
    /// The key was not written by [`VersionedKeys`](super::VersionedKeys). Nothing was changed.
    Foreign {
        /// Redis' type of it (`string`, `list`, `hash`, …), or the format that it says it has.
        found: String,
    },
    /// The version in the key is malformed. Nothing was changed.
    Corrupt {
        /// The content of the field.
        found: String,
    },
    /// Refused before anything was sent, or a reply that cannot be read.
    Refused(Error),
    /// Redis refused, or did not reply to a request that only reads. Nothing was changed.
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
                 delete it once it is not needed"
            ),
            SwapError::Corrupt { found } => {
                write!(
                    f,
                    "the version in the key is {found:?}, which is malformed; restore the key, or delete it"
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

/// Why an update was not done, or may not have been done.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpdateError {
    /// Other writers were faster, every time. This update changed nothing.
    Contended {
        /// How often it was tried.
        tries: u32,
    },
    /// A reply was lost, and the current value is from another writer: the change may have been
    /// made and replaced since. The caller decides whether to make it again.
    Unknown {
        /// The current value.
        current: Option<Versioned>,
    },
    /// As for a single swap.
    Swap(SwapError),
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpdateError::Contended { tries } => {
                write!(f, "other writers were faster {tries} times; try again later, or use a lock for this key")
            }
            UpdateError::Unknown { .. } => f.write_str(
                "a reply was lost and other writers have written since: the change may have been made; read the value before you repeat it",
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
