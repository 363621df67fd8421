//! Why a swap has no answer.

use std::fmt;

use crate::error::Error;
use crate::versioned::{PendingSwap, Versioned};

/// Why a versioned key could not be read or swapped. A conflict is not in this list: it is an
/// answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum SwapError {
    /// etcd did not answer, so the swap may have been done. [Settle](super::VersionedKeys::settle)
    /// it.
    Unanswered {
        /// The swap.
        swap: Box<PendingSwap>,
        /// The failure of the request.
        cause: Error,
    },
    /// Refused, by us or by etcd; or etcd did not answer a question that changes nothing. Nothing
    /// was changed.
    Refused(Error),
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::Unanswered { cause, .. } => {
                write!(
                    f,
                    "etcd did not answer, so the swap may have been done; settle it before you go on: {cause}"
                )
            }
            SwapError::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SwapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SwapError::Unanswered { cause, .. } | SwapError::Refused(cause) => Some(cause),
        }
    }
}

impl From<Error> for SwapError {
    fn from(error: Error) -> SwapError {
        SwapError::Refused(error)
    }
}

/// Why an update was not done, or why it is unknown whether it was.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpdateError {
    /// Other clients were faster, every time. This call changed nothing.
    Contended {
        /// How often it was tried.
        tries: u32,
    },
    /// An answer was lost, and the current value may be another client's: the change may have been
    /// made. Whether to make it again is for the caller to decide.
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
                write!(
                    f,
                    "others were faster {tries} times; try again later, or take a lock for so contended a key"
                )
            }
            UpdateError::Unknown { .. } => f.write_str(
                "an answer was lost, and the change may have been made; look before you repeat it",
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
