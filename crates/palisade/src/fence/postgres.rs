//! A row that refuses stale writes, in a PostgreSQL database of yours.
//!
//! The table has a column `bigint NOT NULL DEFAULT 0` for the fence, and every write checks and
//! raises it in the same statement. The calls take your own connection or transaction; the text of
//! the statements is there for other drivers:
//!
//! ```
//! use palisade::fence::postgres::{FencedTable, Writes};
//!
//! let stock = FencedTable::new("stock", "item", "fence")?;
//! assert_eq!(
//!     stock.update_statement(Writes::Once, &["pieces"])?,
//!     r#"UPDATE "stock" SET "fence" = $2, "pieces" = $3 WHERE "item" = $1 AND "fence" < $2"#
//! );
//! # Ok::<(), palisade::Error>(())
//! ```
//!
//! A row only knows the fences it has seen: **install before you read**. One row belongs to one lock
//! name.

use std::fmt;

pub use tokio_postgres;
use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use super::Fence;
use crate::error::Error;
use crate::stores::sql::Identifier;

/// A table whose rows check the fence of each write.
#[derive(Clone, Debug)]
pub struct FencedTable {
    table: Identifier,
    key: Identifier,
    fence: Identifier,
}

/// How often one grant may write to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Once: a repeated request of the same grant is refused, too.
    Once,
    /// As often as it likes.
    Often,
}

/// Why a row was not written.
#[derive(Debug)]
#[non_exhaustive]
pub enum RowError {
    /// A later holder has written or installed its fence; or this one has, where it may only once.
    Stale {
        /// The highest fence that the row has seen.
        highest: Fence,
        /// The fence of this write.
        offered: Fence,
    },
    /// The grant came without a fence: this store, or this format of it, gives none.
    NoFence,
    /// There is no such row.
    NoRow,
    /// A name of a column is not safe in a statement.
    Name(Error),
    /// The database refused the statement.
    Sql(tokio_postgres::Error),
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::Stale { highest, offered } => write!(
                f,
                "stale: the row has seen fence {highest}, and this write has {offered}; if the lock was lost, take it anew"
            ),
            RowError::NoFence => f.write_str(
                "the grant has no fence: take the lock in a store and format that gives one",
            ),
            RowError::NoRow => f.write_str("there is no such row; insert it with its fence first"),
            RowError::Name(error) => error.fmt(f),
            RowError::Sql(error) => write!(f, "the database refused: {error}"),
        }
    }
}

impl std::error::Error for RowError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RowError::Sql(error) => Some(error),
            RowError::Name(error) => Some(error),
            _ => None,
        }
    }
}

impl From<tokio_postgres::Error> for RowError {
    fn from(error: tokio_postgres::Error) -> RowError {
        RowError::Sql(error)
    }
}

impl From<Error> for RowError {
    fn from(error: Error) -> RowError {
        RowError::Name(error)
    }
}

impl FencedTable {
    /// A table by its name, the column of its key, and the column of its fence.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn new(table: &str, key: &str, fence: &str) -> Result<FencedTable, Error> {
        Ok(FencedTable {
            table: Identifier::new("the name of the table", table)?,
            key: Identifier::new("the column of the key", key)?,
            fence: Identifier::new("the column of the fence", fence)?,
        })
    }

    /// The statement of a write to these columns: `$1` is the key, `$2` the fence, `$3` and so on
    /// the columns. Zero rows are a refusal.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn update_statement(&self, writes: Writes, columns: &[&str]) -> Result<String, Error> {
        let FencedTable { table, key, fence } = self;
        let mut set = format!("\"{fence}\" = $2");
        for (place, column) in (3..).zip(columns) {
            let column = Identifier::new("the name of a column", column)?;
            set.push_str(&format!(", \"{column}\" = ${place}"));
        }
        let order = match writes {
            Writes::Once => "<",
            Writes::Often => "<=",
        };
        Ok(format!(
            "UPDATE \"{table}\" SET {set} WHERE \"{key}\" = $1 AND \"{fence}\" {order} $2"
        ))
    }

    /// Raises the mark of a row before it is read, so that no earlier holder's write can follow the
    /// read.
    ///
    /// # Errors
    ///
    /// [`RowError::Stale`] when a later holder has written or installed its fence.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the mark may have been raised.
    pub async fn install(
        &self,
        database: &impl GenericClient,
        key: &(dyn ToSql + Sync),
        fence: Fence,
    ) -> Result<(), RowError> {
        self.update(database, key, fence, Writes::Often, &[]).await
    }

    /// Writes columns of a row, unless a later holder has written or installed its fence: check and
    /// write are one statement.
    ///
    /// # Errors
    ///
    /// [`RowError::Stale`] when a later holder was first; nothing is changed then.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may have been written.
    pub async fn update(
        &self,
        database: &impl GenericClient,
        key: &(dyn ToSql + Sync),
        fence: Fence,
        writes: Writes,
        columns: &[(&str, &(dyn ToSql + Sync))],
    ) -> Result<(), RowError> {
        if fence.is_none() {
            return Err(RowError::NoFence);
        }
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let statement = self.update_statement(writes, &names)?;
        let number = i64::try_from(fence.get()).unwrap_or(i64::MAX);
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![key, &number];
        values.extend(columns.iter().map(|(_, value)| *value));
        if database.execute(&statement, &values).await? > 0 {
            return Ok(());
        }
        let FencedTable {
            table,
            key: id,
            fence: mark,
        } = self;
        let read = format!("SELECT \"{mark}\" FROM \"{table}\" WHERE \"{id}\" = $1");
        let Some(row) = database.query_opt(&read, &[key]).await? else {
            return Err(RowError::NoRow);
        };
        let highest: i64 = row.try_get(0)?;
        Err(RowError::Stale {
            highest: u64::try_from(highest)
                .ok()
                .and_then(Fence::new)
                .unwrap_or(Fence::NONE),
            offered: fence,
        })
    }
}
