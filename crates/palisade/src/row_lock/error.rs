//! Why a row was not locked.

use std::fmt;

use crate::database::{DriverError, Fault};
use crate::error::Error;

/// Why a row was not locked, or not written. `E` is the error of the driver.
#[derive(Debug)]
#[non_exhaustive]
pub enum RowLockError<E> {
    /// There is no such row, so nothing is locked.
    NoRow,
    /// So many rows have the key. All of them are locked until the end of the transaction.
    NotUnique {
        /// How many.
        rows: usize,
    },
    /// Another transaction held the lock for longer than the wait.
    ///
    /// After [`lock_timeout`](super::LockedTable::lock_timeout) the transaction goes on. After
    /// another verb it was a limit of the database that ended the wait, and on PostgreSQL the
    /// transaction can only be rolled back.
    Timeout,
    /// The database has ended the transaction because of others at the same time: a deadlock, a
    /// serialization failure. All that it had done is undone. Roll back, and run the whole of it
    /// again.
    Victim(E),
    /// The name of a column is not safe in a statement.
    Name(Error),
    /// The database refused, or did not answer. Roll back.
    Sql(E),
}

impl<E: DriverError> RowLockError<E> {
    /// Whether the transaction failed only because of others at the same time, so that the whole of
    /// it can be rolled back and run again.
    pub fn may_retry(&self) -> bool {
        matches!(self, RowLockError::Victim(_) | RowLockError::Timeout)
    }
}

impl<E: fmt::Display> fmt::Display for RowLockError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowLockError::NoRow => {
                f.write_str("there is no such row, so nothing is locked; insert the row first")
            }
            RowLockError::NotUnique { rows } => write!(
                f,
                "{rows} rows have this key, and all of them are locked now; give the column of the key a unique index"
            ),
            RowLockError::Timeout => f.write_str(
                "the row was locked by another transaction for the whole wait; run the transaction again later",
            ),
            RowLockError::Victim(error) => write!(
                f,
                "the database has undone this transaction because of others at the same time; run the whole of it again: {error}"
            ),
            RowLockError::Name(error) => error.fmt(f),
            RowLockError::Sql(error) => write!(f, "the database refused: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RowLockError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RowLockError::Sql(error) | RowLockError::Victim(error) => Some(error),
            RowLockError::Name(error) => Some(error),
            _ => None,
        }
    }
}

impl<E: DriverError> From<E> for RowLockError<E> {
    fn from(error: E) -> RowLockError<E> {
        match error.fault() {
            Fault::Busy => RowLockError::Timeout,
            Fault::Victim => RowLockError::Victim(error),
            _ => RowLockError::Sql(error),
        }
    }
}
