//! Rows that refuse stale writes, in a database of yours: what [`fence::postgres`](super::postgres)
//! and [`fence::mysql`](super::mysql) share. Begin with the page of your database.
//!
//! | type | what it does |
//! |---|---|
//! | [`FencedTable`] | refuses a write whose fence is lower than one that the row has seen |
//! | [`MarkedTable`] | refuses a write when another holder has marked the row since: excludes, but does not order |
//! | [`Requests`] | gives a repeated request the result of the first |
//!
//! # What to know
//!
//! - **Install before you read.** A row only knows the fences that it has seen.
//! - All writers must use these statements. A plain `UPDATE` checks no fence, and a `DELETE` makes
//!   the row forget it: keep the row, and say in a column that it is over.
//! - One row belongs to one lock name of one store.
//! - The column of the fence is a `bigint NOT NULL DEFAULT 0`. Bind the key with the type of its
//!   column.
//! - In a transaction a refusal is no error of the database: the transaction goes on, and what was
//!   written before the refusal is committed unless you roll back.

mod error;
mod fenced_table;
mod marked_table;
mod requests;
mod statement;

use std::fmt;

use async_trait::async_trait;

pub use self::error::RowError;
pub use self::fenced_table::{FencedTable, Writes};
pub use self::marked_table::{Mark, MarkedTable};
pub use self::requests::{Request, Requests};
use self::statement::Statement;
use crate::error::Error;
use crate::stores::sql::Identifier;

/// A database and the driver that speaks to it.
pub trait Driver: fmt::Debug + Clone + Send + Sync + 'static + sealed::Sealed {
    /// A value of a column, as the driver takes it.
    type Value<'v>: Send + Sync;
    /// An error of the driver.
    type Error: std::error::Error + Send + Sync + 'static;

    /// How its statements differ.
    #[doc(hidden)]
    const DIALECT: Dialect;
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
}

/// A transaction of the driver.
pub trait InTransaction<D: Driver>: Session<D> {}

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

pub(super) mod sealed {
    pub trait Sealed {}
}

/// A column of a row, as it is now.
enum Found {
    NoRow,
    Value(Option<String>),
}

/// A table, the column of its key, and the column that each write compares.
#[derive(Clone, Debug)]
struct Compared {
    table: Identifier,
    key: Identifier,
    column: Identifier,
}

impl Compared {
    fn new(table: &str, key: &str, what: &str, column: &str) -> Result<Compared, Error> {
        Ok(Compared {
            table: Identifier::new("the name of the table", table)?,
            key: Identifier::new("the column of the key", key)?,
            column: Identifier::new(what, column)?,
        })
    }

    /// `"a" = $3, "b" = $4`, with a separator before each.
    fn assignments(columns: &[&str]) -> Result<Vec<String>, Error> {
        let columns = (3..).zip(columns);
        columns
            .map(|(place, column)| Ok(format!("\"{}\" = ${place}", column_name(column)?)))
            .collect()
    }

    /// Reads the compared column. MySQL must lock the row: in a transaction it would answer from a
    /// snapshot that is older than what the UPDATE has compared.
    fn read_statement<D: Driver>(&self) -> Statement {
        let Compared { table, key, column } = self;
        let (text, lock) = match D::DIALECT {
            Dialect::Postgres => ("text", ""),
            Dialect::Mysql => ("CHAR", " FOR UPDATE"),
        };
        Statement::of::<D>(&format!(
            "SELECT CAST(\"{column}\" AS {text}) FROM \"{table}\" WHERE \"{key}\" = $1{lock}"
        ))
    }

    async fn read<D: Driver>(
        &self,
        database: &mut impl Session<D>,
        key: &D::Value<'_>,
    ) -> Result<Found, RowError<D::Error>> {
        let read = self.read_statement::<D>();
        let row = database
            .read(&read.text, &read.places(&[Param::Given(key)]))
            .await
            .map_err(RowError::Sql)?;
        Ok(match row {
            None => Found::NoRow,
            Some(columns) => Found::Value(columns.into_iter().next().flatten()),
        })
    }
}

fn column_name(name: &str) -> Result<Identifier, Error> {
    Identifier::new("the name of a column", name)
}
