//! Why a versioned row was not swapped.

use std::fmt;

use crate::database::{DriverError, Fault};
use crate::error::Error;

/// Why a versioned row could not be read or swapped. `E` is the error of the driver. A conflict is
/// not in this list: it is an answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum SwapError<E> {
    /// The database did not answer, so the swap may have been done. Read the row: the expected
    /// version says that it was not. A later one may be this swap's or another's; where that
    /// matters, do the swap in a transaction with a [request](crate::fence::sql::Requests).
    Unanswered(E),
    /// The database refused. Nothing was changed.
    Refused(E),
    /// Other clients were faster every time. This call changed nothing.
    Contended {
        /// How often it was tried.
        tries: u32,
    },
    /// The column of the version holds what is no version, so that no swap can expect it.
    Corrupt {
        /// What it holds; `None` for NULL.
        found: Option<String>,
    },
    /// More than one row has the key, so that no version is that of the key.
    NotUnique,
    /// The name of a column is not safe in a statement.
    Name(Error),
}

impl<E: DriverError> SwapError<E> {
    /// The database failed at a statement that changes nothing before it.
    pub(super) fn reading(error: E) -> SwapError<E> {
        SwapError::Refused(error)
    }

    /// The database failed at the swap itself.
    pub(super) fn swapping(error: E) -> SwapError<E> {
        match error.fault() {
            Fault::Unanswered => SwapError::Unanswered(error),
            _ => SwapError::Refused(error),
        }
    }

    /// Whether it failed only because of others at the same time (a deadlock, a serialization
    /// failure, a wait that ran out, too many conflicts), so that the same may succeed when it is
    /// done again. In a transaction, that is the whole transaction.
    pub fn may_retry(&self) -> bool {
        match self {
            SwapError::Refused(error) => matches!(error.fault(), Fault::Busy | Fault::Victim),
            SwapError::Contended { .. } => true,
            _ => false,
        }
    }
}

impl<E: fmt::Display> fmt::Display for SwapError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::Unanswered(error) => write!(
                f,
                "the database did not answer, so the swap may have been done; read the row before you go on: {error}"
            ),
            SwapError::Refused(error) => write!(f, "the database refused: {error}"),
            SwapError::Contended { tries } => write!(
                f,
                "others were faster {tries} times; try again later, or lock a row that is so much in demand"
            ),
            SwapError::Corrupt { found } => write!(
                f,
                "the row's version is {}; make the column a bigint NOT NULL DEFAULT 1, and correct the row",
                found.as_deref().unwrap_or("NULL")
            ),
            SwapError::NotUnique => f.write_str(
                "more than one row has this key; give the column of the key a unique index",
            ),
            SwapError::Name(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for SwapError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SwapError::Unanswered(error) | SwapError::Refused(error) => Some(error),
            SwapError::Name(error) => Some(error),
            _ => None,
        }
    }
}

impl<E> From<Error> for SwapError<E> {
    fn from(error: Error) -> SwapError<E> {
        SwapError::Name(error)
    }
}
