//! A row that refuses stale writes, in a SQLite database of yours.
//!
//! The table has a column for the fence, and every write checks and raises it in the same
//! statement:
//!
//! ```
//! use palisade::fence::Fence;
//! use palisade::fence::sqlite::{FencedTable, RowError, rusqlite::Connection};
//!
//! # let (ours, later) = (Fence::new(33).ok_or("fence")?, Fence::new(34).ok_or("fence")?);
//! let database = Connection::open_in_memory()?;
//! database.execute_batch("CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER, fence INTEGER NOT NULL DEFAULT 0)")?;
//! database.execute_batch("INSERT INTO stock (item, pieces) VALUES ('bolt', 7)")?;
//! let stock = FencedTable::new("stock", "item", "fence")?;
//!
//! stock.update(&database, &"bolt", ours, &[("pieces", &6)])?; // `ours` is guard.fence()
//!
//! // We are paused past our lease. The next holder makes itself known before it reads.
//! stock.install(&database, &"bolt", later)?;
//!
//! // We wake up and go on. The row refuses.
//! let refused = stock.update(&database, &"bolt", ours, &[("pieces", &5)]);
//! assert!(matches!(refused, Err(RowError::Stale { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A row only knows the fences it has seen: **install before you read**. One row belongs to one
//! lock name.

use std::fmt;

pub use rusqlite;
use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension};

use super::Fence;
use crate::error::Error;

/// A table whose rows check the fence of each write.
#[derive(Clone, Debug)]
pub struct FencedTable {
    table: String,
    key: String,
    fence: String,
}

/// Why a row was not written.
#[derive(Debug)]
#[non_exhaustive]
pub enum RowError {
    /// A later holder has written or installed its fence.
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
    /// The database refused the statement.
    Sql(rusqlite::Error),
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::Stale { highest, offered } => {
                write!(
                    f,
                    "stale: fence {offered} is older than fence {highest}, which was here since; the lock was lost, take it anew"
                )
            }
            RowError::NoFence => f.write_str(
                "the grant has no fence: take the lock in a store and format that gives one",
            ),
            RowError::NoRow => f.write_str("there is no such row; insert it with its fence first"),
            RowError::Sql(error) => write!(f, "the database refused: {error}"),
        }
    }
}

impl std::error::Error for RowError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RowError::Sql(error) => Some(error),
            _ => None,
        }
    }
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> RowError {
        RowError::Sql(error)
    }
}

impl FencedTable {
    /// A table by its name, the column of its key, and the column (`INTEGER NOT NULL DEFAULT 0`) of
    /// its fence.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn new(table: &str, key: &str, fence: &str) -> Result<FencedTable, Error> {
        Ok(FencedTable {
            table: quoted(table)?,
            key: quoted(key)?,
            fence: quoted(fence)?,
        })
    }

    /// Raises the mark of a row before it is read, so that no earlier holder's write can follow the
    /// read.
    ///
    /// # Errors
    ///
    /// [`RowError::Stale`] when a later holder has written or installed its fence.
    pub fn install(
        &self,
        database: &Connection,
        key: &dyn ToSql,
        fence: Fence,
    ) -> Result<(), RowError> {
        self.update(database, key, fence, &[])
    }

    /// Writes columns of a row, unless a later holder has written or installed its fence: check and
    /// write are one statement. An equal fence passes, so that one holder can write twice.
    ///
    /// # Errors
    ///
    /// [`RowError::Stale`] when a later holder was first; nothing is changed then.
    pub fn update(
        &self,
        database: &Connection,
        key: &dyn ToSql,
        fence: Fence,
        columns: &[(&str, &dyn ToSql)],
    ) -> Result<(), RowError> {
        let offered = number(fence)?;
        let FencedTable {
            table,
            key: key_column,
            fence: fence_column,
        } = self;
        let mut assignments = vec![format!("{fence_column} = ?1")];
        for (place, (column, _)) in columns.iter().enumerate() {
            assignments.push(format!(
                "{} = ?{}",
                quoted(column).map_err(bad_column)?,
                place + 3
            ));
        }
        let statement = format!(
            "UPDATE {table} SET {} WHERE {key_column} = ?2 AND {fence_column} <= ?1",
            assignments.join(", ")
        );
        let mut values: Vec<&dyn ToSql> = vec![&offered, key];
        values.extend(columns.iter().map(|(_, value)| *value));
        match database
            .prepare_cached(&statement)?
            .execute(values.as_slice())?
        {
            0 => Err(self.why_refused(database, key, fence)),
            _ => Ok(()),
        }
    }

    /// The highest fence that a row has seen; `None` when there is no such row.
    ///
    /// # Errors
    ///
    /// [`RowError::Sql`] when the database refuses.
    pub fn highest(
        &self,
        database: &Connection,
        key: &dyn ToSql,
    ) -> Result<Option<Fence>, RowError> {
        let FencedTable {
            table,
            key: key_column,
            fence,
        } = self;
        let statement = format!("SELECT {fence} FROM {table} WHERE {key_column} = ?1");
        let seen: Option<i64> = database
            .prepare_cached(&statement)?
            .query_row([key], |row| row.get(0))
            .optional()?;
        Ok(seen.map(|seen| {
            u64::try_from(seen)
                .ok()
                .and_then(Fence::new)
                .unwrap_or(Fence::NONE)
        }))
    }

    fn why_refused(&self, database: &Connection, key: &dyn ToSql, offered: Fence) -> RowError {
        match self.highest(database, key) {
            Ok(Some(highest)) => RowError::Stale { highest, offered },
            Ok(None) => RowError::NoRow,
            Err(error) => error,
        }
    }
}

fn number(fence: Fence) -> Result<i64, RowError> {
    if fence.is_none() {
        return Err(RowError::NoFence);
    }
    // A fence is below 2^63.
    Ok(i64::try_from(fence.get()).unwrap_or(i64::MAX))
}

fn bad_column(error: Error) -> RowError {
    RowError::Sql(rusqlite::Error::InvalidColumnName(error.to_string()))
}

/// Names cannot be bound as values: only plain ones are taken, and quoted all the same.
fn quoted(name: &str) -> Result<String, Error> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let starts_well =
        name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    if starts_well && name.len() <= 63 && name.chars().all(plain) {
        return Ok(format!("\"{name}\""));
    }
    Err(Error::config(format!(
        "{name:?} is not a plain name; use letters, digits and underscores"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock() -> (Connection, FencedTable) {
        let database = Connection::open_in_memory().expect("a database");
        let schema = "CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER, fence INTEGER NOT NULL DEFAULT 0);
                      INSERT INTO stock (item, pieces) VALUES ('bolt', 7), ('nut', 9)";
        database.execute_batch(schema).expect("made");
        (
            database,
            FencedTable::new("stock", "item", "fence").expect("plain names"),
        )
    }

    fn fence(number: u64) -> Fence {
        Fence::new(number).expect("a fence")
    }

    fn pieces(database: &Connection) -> i64 {
        database
            .query_row("SELECT pieces FROM stock WHERE item = 'bolt'", [], |row| {
                row.get(0)
            })
            .expect("a row")
    }

    #[test]
    fn lower_is_refused_equal_and_higher_pass() {
        let (database, stock) = stock();
        stock
            .update(&database, &"bolt", fence(5), &[("pieces", &6)])
            .expect("the first");
        stock
            .update(&database, &"bolt", fence(5), &[("pieces", &5)])
            .expect("one holder writes twice");
        stock
            .update(&database, &"bolt", fence(7), &[("pieces", &4)])
            .expect("the next holder");
        let refused = stock.update(&database, &"bolt", fence(6), &[("pieces", &0)]);
        assert!(
            matches!(refused, Err(RowError::Stale { highest, offered }) if (highest, offered) == (fence(7), fence(6)))
        );
        assert_eq!(pieces(&database), 4, "a refused write changes nothing");
        stock
            .update(&database, &"nut", fence(1), &[("pieces", &8)])
            .expect("each row has its own mark");
    }

    #[test]
    fn install_stops_the_old_holder_before_the_new_one_writes() {
        let (database, stock) = stock();
        stock
            .install(&database, &"bolt", fence(9))
            .expect("installed");
        assert!(matches!(
            stock.update(&database, &"bolt", fence(8), &[("pieces", &0)]),
            Err(RowError::Stale { .. })
        ));
        assert!(matches!(
            stock.install(&database, &"bolt", fence(8)),
            Err(RowError::Stale { .. })
        ));
        assert_eq!(
            (
                pieces(&database),
                stock.highest(&database, &"bolt").expect("read")
            ),
            (7, Some(fence(9)))
        );
    }

    #[test]
    fn fences_do_not_lose_digits() {
        let (database, stock) = stock();
        let high = fence((1 << 53) + 1);
        stock.install(&database, &"bolt", high).expect("installed");
        assert!(matches!(
            stock.install(&database, &"bolt", fence(1 << 53)),
            Err(RowError::Stale { .. })
        ));
        stock
            .install(&database, &"bolt", Fence::MAX)
            .expect("the highest there is");
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let (database, stock) = stock();
        assert!(matches!(
            stock.install(&database, &"bolt", Fence::NONE),
            Err(RowError::NoFence)
        ));
        assert!(matches!(
            stock.install(&database, &"screw", fence(1)),
            Err(RowError::NoRow)
        ));
        let nasty = "pieces = 0; DROP TABLE stock; --";
        assert!(matches!(
            stock.update(&database, &"bolt", fence(1), &[(nasty, &0)]),
            Err(RowError::Sql(_))
        ));
        for bad in ["", "1st", "a b", "a\"b", nasty, &"x".repeat(64)] {
            assert!(FencedTable::new(bad, "item", "fence").is_err(), "{bad:?}");
        }
    }
}
