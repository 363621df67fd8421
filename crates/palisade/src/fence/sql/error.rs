//! Why a row was not written.

use std::fmt;

use crate::error::Error;
use crate::fence::Fence;

/// Why a row was not written. `E` is the error of the driver. The message says what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum RowError<E> {
    /// A later holder has written or installed its fence; or this one has, where it may only once.
    /// Nothing was changed.
    Stale {
        /// The highest fence that the row has seen.
        highest: Fence,
        /// The fence of this write.
        offered: Fence,
    },
    /// The row has the mark of another holder, or none. Nothing was changed.
    NotMarked {
        /// The mark that the row has.
        found: Option<String>,
    },
    /// The grant came without a fence: this store, or this format of it, gives none.
    NoFence,
    /// There is no such row.
    NoRow,
    /// The column of the fence holds what is no fence, so that a stale write could not be refused.
    /// Nothing was changed.
    Corrupt {
        /// What it holds; `None` for NULL.
        found: Option<String>,
    },
    /// The name of a column is not safe in a statement, or the id of a request is too long.
    Name(Error),
    /// The database refused the statement, or did not answer. In the second case the write may have
    /// been done.
    Sql(E),
}

impl<E: fmt::Display> fmt::Display for RowError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::Stale { highest, offered } => write!(
                f,
                "stale: the row has seen fence {highest}, and this write has {offered}; if the lock was lost, take it anew"
            ),
            RowError::NotMarked { found: Some(_) } => f.write_str(
                "the row has the mark of another holder; take the lock anew, mark the row, and read before you write",
            ),
            RowError::NotMarked { found: None } => {
                f.write_str("the row has no mark; mark it, and read before you write")
            }
            RowError::NoFence => f.write_str(
                "the grant has no fence: take the lock in a store and format that gives one",
            ),
            RowError::NoRow => f.write_str(
                "there is no such row; insert it with its fence first, or use an upsert",
            ),
            RowError::Corrupt { found } => write!(
                f,
                "the row's fence is {}, so a stale write could not be refused; make the column a bigint NOT NULL DEFAULT 0, and correct the row",
                found.as_deref().unwrap_or("NULL")
            ),
            RowError::Name(error) => error.fmt(f),
            RowError::Sql(error) => write!(f, "the database refused: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RowError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RowError::Sql(error) => Some(error),
            RowError::Name(error) => Some(error),
            _ => None,
        }
    }
}

impl<E> From<Error> for RowError<E> {
    fn from(error: Error) -> RowError<E> {
        RowError::Name(error)
    }
}
