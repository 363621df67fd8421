//! A database of yours, and the driver that speaks to it: what [`fence`](crate::fence),
//! [`versioned`](crate::versioned) and [`row_lock`](crate::row_lock) share.
//!
//! Their calls take your own connection or transaction. This module only names what they take:
//!
//! | trait | is | PostgreSQL | MySQL, MariaDB |
//! |---|---|---|---|
//! | [`Session`] | a connection or a transaction | `&Client`, `&Transaction` | `&mut Conn`, `&mut Transaction` |
//! | [`InTransaction`] | a transaction | `&Transaction` | `&mut Transaction` |
//! | [`OutsideTransaction`] | a connection that commits each statement | `&Client` | `&mut Conn` |
//!
//! A connection of a pool is given as what it dereferences to: `&**client`, `&mut *conn`.

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod statement;
mod table;

use std::fmt;

use async_trait::async_trait;

pub(crate) use self::statement::Statement;
pub(crate) use self::table::{Compared, Found, column_name, names};

/// A database and the driver that speaks to it.
pub trait Driver: fmt::Debug + Clone + Send + Sync + 'static + sealed::Sealed {
    /// A value of a column, as the driver takes it.
    type Value<'v>: Send + Sync;
    /// A value of a column that was computed, and that no variable of the caller holds.
    type Owned: Send + Sync;
    /// A row, as the driver gives it.
    type Row: Send + Sync;
    /// An error of the driver.
    type Error: DriverError;

    /// How its statements differ.
    #[doc(hidden)]
    const DIALECT: Dialect;

    #[doc(hidden)]
    fn lend(value: &Self::Owned) -> Self::Value<'_>;

    /// The same value for a shorter time.
    #[doc(hidden)]
    fn again<'s, 'v: 's>(value: &'s Self::Value<'v>) -> Self::Value<'s>;

    /// A column of text, by its place in the row.
    #[doc(hidden)]
    fn text(row: &Self::Row, column: usize) -> Result<Option<String>, Self::Error>;
}

/// An error of a driver.
pub trait DriverError: std::error::Error + Send + Sync + sealed::Sealed + 'static {
    /// What it means for the statement.
    #[doc(hidden)]
    fn fault(&self) -> Fault;
}

/// What an error of the driver means for the statement.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A lock was not to be had now, or not in time.
    Busy,
    /// The transaction was ended because of others at the same time: a deadlock, a serialization
    /// failure.
    Victim,
    /// A unique index has the key already.
    Duplicate,
    /// The server refused, for another reason. Nothing was done.
    Refused,
    /// The server did not answer: the statement may have been done.
    Unanswered,
}

/// How the statements of two databases differ.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    /// An UPDATE may count the rows that it changed instead of those that it found. A plain SELECT
    /// in a transaction reads an old snapshot where an UPDATE reads the row.
    Mysql,
}

/// A connection or a transaction of the driver.
#[async_trait]
pub trait Session<D: Driver>: Send + sealed::Sealed {
    /// Runs a statement, and says how many rows it affected.
    #[doc(hidden)]
    async fn execute<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, D::Value<'v>>],
    ) -> Result<u64, D::Error>;

    /// Reads the first row as texts.
    #[doc(hidden)]
    async fn read<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, D::Value<'v>>],
    ) -> Result<Option<Vec<Option<String>>>, D::Error>;

    /// Reads rows.
    #[doc(hidden)]
    async fn rows<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, D::Value<'v>>],
    ) -> Result<Vec<D::Row>, D::Error>;

    /// Runs a statement without values and without an answer, in one round trip.
    #[doc(hidden)]
    async fn run(&mut self, text: &str) -> Result<(), D::Error>;
}

/// A transaction of the driver.
pub trait InTransaction<D: Driver>: Session<D> {}

/// A connection of the driver that is not in a transaction: each statement is committed at once.
pub trait OutsideTransaction<D: Driver>: Session<D> {}

/// A value of a statement: one of ours, or one of the caller's.
#[doc(hidden)]
#[derive(Debug)]
pub enum Param<'p, V> {
    Number(i64),
    Text(&'p str),
    Given(&'p V),
}

impl<V> Clone for Param<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Param<'_, V> {}

mod sealed {
    pub trait Sealed {}
}
