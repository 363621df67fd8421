//! Versioned rows in a database of yours: what [`versioned::postgres`](super::postgres) and
//! [`versioned::mysql`](super::mysql) share. Begin with the page of your database.
//!
//! # What to know
//!
//! - All writers must raise the version: `UPDATE … SET version = version + 1`. Programs in other
//!   languages may do so by themselves; many object mappers have a version column that works so.
//! - The key needs a unique index. Bind it with the type of its column.
//! - The version is an integer `NOT NULL DEFAULT 1`. A `bigint` never overflows.
//! - In a transaction, a conflict is no error of the database: roll back, and begin with a new
//!   read in a **new** transaction. Under REPEATABLE READ the old one still sees the old row.
//!
//! # How far versions never repeat
//!
//! A version is the one before plus 1. It begins at 1 when a row is made, and so it begins again when
//! a row is deleted and made anew: keep the row, and say in a column that it is over.

mod error;

use std::marker::PhantomData;

pub use self::error::SwapError;
use super::Version;
use super::pause::pause;
use crate::database::{
    Compared, Dialect, Driver, DriverError, Fault, Found, OutsideTransaction, Param, Session,
    Statement, column_name, names,
};
use crate::error::Error;

const TRIES: u32 = 32;

/// A table whose rows change only if the writer has seen their current version.
#[derive(Clone, Debug)]
pub struct VersionedTable<D> {
    compared: Compared,
    tries: u32,
    driver: PhantomData<D>,
}

/// A row that was read, and its version.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VersionedRow<R> {
    /// The columns that were asked for, in their order. The version follows them.
    pub row: R,
    /// The version, which a swap of this row expects.
    pub version: Version,
}

/// The answer to a swap of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a swap may not have been done"]
pub enum RowSwapped {
    /// Done. This is the version now.
    Done(Version),
    /// Not done: the row had another version than expected, namely this; or there is no row, where
    /// one was expected.
    Conflict(Option<Version>),
}

impl<D: Driver> VersionedTable<D> {
    /// A table by its name, the column of its key, and the column of its version. Updates try 32
    /// times.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn new(table: &str, key: &str, version: &str) -> Result<VersionedTable<D>, Error> {
        Ok(VersionedTable {
            compared: Compared::new(table, key, "the column of the version", version)?,
            tries: TRIES,
            driver: PhantomData,
        })
    }

    /// How often [`update`](VersionedTable::update) tries; at least once.
    #[must_use]
    pub fn tries(self, tries: u32) -> VersionedTable<D> {
        VersionedTable {
            tries: tries.max(1),
            ..self
        }
    }

    /// The statement that reads columns and the version after them, as text. The key is its only
    /// value.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn read_statement(&self, columns: &[&str]) -> Result<String, Error> {
        Ok(self.reading(columns)?.text)
    }

    /// The statement of a swap. Zero rows are a conflict.
    ///
    /// PostgreSQL: `$1` is the key, `$2` the expected version, `$3` and so on the columns. MySQL, in
    /// the order of the text: the columns, the key, the version.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn swap_statement(&self, columns: &[&str]) -> Result<String, Error> {
        Ok(self.swapping(columns)?.text)
    }

    /// Reads columns of a row, and its version; `None` when there is no such row.
    ///
    /// # Errors
    ///
    /// [`SwapError::Corrupt`] when the column of the version holds none.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn get(
        &self,
        mut database: impl Session<D>,
        key: D::Value<'_>,
        columns: &[&str],
    ) -> Result<Option<VersionedRow<D::Row>>, SwapError<D::Error>> {
        self.read(&mut database, &key, &self.reading(columns)?, columns.len())
            .await
    }

    /// Writes columns of a row if it has the expected version, and raises the version: check and
    /// write are one statement. `None` expects that there is no such row, and makes it.
    ///
    /// # Errors
    ///
    /// [`SwapError::Unanswered`] when it is unknown whether it was done.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may have been done or not.
    pub async fn swap<'v>(
        &self,
        mut database: impl Session<D>,
        key: D::Value<'v>,
        expected: Option<Version>,
        columns: &[(&str, D::Value<'v>)],
    ) -> Result<RowSwapped, SwapError<D::Error>> {
        self.write(&mut database, &key, expected, columns).await
    }

    /// Reads columns of a row, changes and swaps them, again after each conflict. `change` takes the
    /// row, or `None` when there is none, and returns the columns to write, or `None` to leave it. It
    /// may be called often, and should have no side effects.
    ///
    /// Returns the new version, or `None` if `change` left the row. After a conflict it waits a
    /// random time, longer each time, up to 100 ms, on tokio's clock. A deadlock and a serialization
    /// failure count as conflicts.
    ///
    /// Not in a transaction, where each read might answer from the same snapshot.
    ///
    /// # Errors
    ///
    /// [`SwapError::Contended`] when it was tried [as often as allowed](VersionedTable::tries),
    /// [`SwapError::Unanswered`] when it is unknown whether the change was made.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with its timer on.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the change was made once or not at all.
    pub async fn update<'c, F>(
        &self,
        mut database: impl OutsideTransaction<D>,
        key: D::Value<'_>,
        columns: &[&str],
        mut change: F,
    ) -> Result<Option<Version>, SwapError<D::Error>>
    where
        F: FnMut(Option<&D::Row>) -> Option<Vec<(&'c str, D::Owned)>>,
    {
        let reading = self.reading(columns)?;
        for tried in 1..=self.tries {
            let seen = self
                .read(&mut database, &key, &reading, columns.len())
                .await?;
            let expected = seen.as_ref().map(|seen| seen.version);
            let Some(changed) = change(seen.as_ref().map(|seen| &seen.row)) else {
                return Ok(None);
            };
            let changed: Vec<_> = changed
                .iter()
                .map(|(name, value)| (*name, D::lend(value)))
                .collect();
            match self
                .write(&mut database, &D::again(&key), expected, &changed)
                .await
            {
                Ok(RowSwapped::Done(version)) => return Ok(Some(version)),
                Ok(RowSwapped::Conflict(_)) => {}
                Err(error) if error.may_retry() => {}
                Err(error) => return Err(error),
            }
            if tried < self.tries {
                pause(tried).await;
            }
        }
        Err(SwapError::Contended { tries: self.tries })
    }

    async fn read(
        &self,
        database: &mut impl Session<D>,
        key: &D::Value<'_>,
        statement: &Statement,
        columns: usize,
    ) -> Result<Option<VersionedRow<D::Row>>, SwapError<D::Error>> {
        let rows = database
            .rows(&statement.text, &statement.places(&[Param::Given(key)]))
            .await;
        let mut rows = rows.map_err(SwapError::reading)?.into_iter();
        match (rows.next(), rows.next()) {
            (None, _) => Ok(None),
            (Some(row), None) => {
                let found = D::text(&row, columns).map_err(SwapError::reading)?;
                let version = parsed(found)?;
                Ok(Some(VersionedRow { row, version }))
            }
            (Some(_), Some(_)) => Err(SwapError::NotUnique),
        }
    }

    async fn write<'v>(
        &self,
        database: &mut impl Session<D>,
        key: &D::Value<'v>,
        expected: Option<Version>,
        columns: &[(&str, D::Value<'v>)],
    ) -> Result<RowSwapped, SwapError<D::Error>> {
        let mut values = vec![Param::Given(key)];
        let (statement, version) = match expected.map(|version| i64::try_from(version.get())) {
            None => (self.inserting(&names(columns))?, 1),
            Some(Ok(version)) => {
                values.push(Param::Number(version));
                let version = u64::try_from(version).unwrap_or(0).saturating_add(1);
                (self.swapping(&names(columns))?, version)
            }
            // No row can have it.
            Some(Err(_)) => return Ok(RowSwapped::Conflict(self.version(database, key).await?)),
        };
        values.extend(columns.iter().map(|(_, value)| Param::Given(value)));
        let written = database
            .execute(&statement.text, &statement.places(&values))
            .await;
        match written {
            // The version changes in any case, so that every driver counts the row.
            Ok(1) => Ok(RowSwapped::Done(Version::new(version))),
            Ok(0) => Ok(RowSwapped::Conflict(self.version(database, key).await?)),
            Ok(_) => Err(SwapError::NotUnique),
            Err(error) if expected.is_none() && error.fault() == Fault::Duplicate => {
                match self.version(database, key).await? {
                    // Another unique index stands in the way.
                    None => Err(SwapError::Refused(error)),
                    there => Ok(RowSwapped::Conflict(there)),
                }
            }
            Err(error) => Err(SwapError::swapping(error)),
        }
    }

    /// The version now; `None` when there is no such row.
    async fn version(
        &self,
        database: &mut impl Session<D>,
        key: &D::Value<'_>,
    ) -> Result<Option<Version>, SwapError<D::Error>> {
        match self.compared.read(database, key).await {
            Ok(Found::NoRow) => Ok(None),
            Ok(Found::Value(found)) => parsed(found).map(Some),
            Err(error) => Err(SwapError::reading(error)),
        }
    }

    fn reading(&self, columns: &[&str]) -> Result<Statement, Error> {
        let Compared { table, key, column } = &self.compared;
        let mut list = String::new();
        for name in columns {
            list.push_str(&format!("\"{}\", ", column_name(name)?));
        }
        let text = match D::DIALECT {
            Dialect::Postgres => "text",
            Dialect::Mysql => "CHAR",
        };
        Ok(Statement::of::<D>(&format!(
            "SELECT {list}CAST(\"{column}\" AS {text}) FROM \"{table}\" WHERE \"{key}\" = $1"
        )))
    }

    fn swapping(&self, columns: &[&str]) -> Result<Statement, Error> {
        let Compared { table, key, column } = &self.compared;
        let mut set = vec![format!("\"{column}\" = \"{column}\" + 1")];
        set.extend(Compared::assignments(columns)?);
        // The version is bound as a number of 64 bits, whatever the column is.
        let expected = match D::DIALECT {
            Dialect::Postgres => "CAST($2 AS bigint)",
            Dialect::Mysql => "$2",
        };
        Ok(Statement::of::<D>(&format!(
            "UPDATE \"{table}\" SET {} WHERE \"{key}\" = $1 AND \"{column}\" = {expected}",
            set.join(", ")
        )))
    }

    /// Its values are the key and the columns.
    fn inserting(&self, columns: &[&str]) -> Result<Statement, Error> {
        let Compared { table, key, column } = &self.compared;
        let (mut list, mut values) = (format!("\"{key}\", \"{column}\""), "$1, 1".to_owned());
        for (place, name) in (2..).zip(columns) {
            list.push_str(&format!(", \"{}\"", column_name(name)?));
            values.push_str(&format!(", ${place}"));
        }
        // The count of an upsert cannot be trusted on MySQL: there the error of the index is told.
        let conflict = match D::DIALECT {
            Dialect::Postgres => format!(" ON CONFLICT (\"{key}\") DO NOTHING"),
            Dialect::Mysql => String::new(),
        };
        Ok(Statement::of::<D>(&format!(
            "INSERT INTO \"{table}\" ({list}) VALUES ({values}){conflict}"
        )))
    }
}

fn parsed<E>(found: Option<String>) -> Result<Version, SwapError<E>> {
    match found.as_deref().map(str::parse) {
        Some(Ok(version)) => Ok(Version::new(version)),
        _ => Err(SwapError::Corrupt { found }),
    }
}
