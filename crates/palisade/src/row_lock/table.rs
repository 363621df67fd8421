//! Tables whose rows a transaction locks.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::RowLockError;
use super::wait::{self, Wait};
use crate::database::{Dialect, Driver, InTransaction, Param, Statement, column_name};
use crate::error::Error;
use crate::stores::sql::Identifier;

/// A table whose rows a transaction locks, each by its key. See the [module docs](super).
#[derive(Clone, Debug)]
pub struct LockedTable<D> {
    table: Identifier,
    key: Identifier,
    driver: PhantomData<D>,
}

/// A row that is locked until the end of the transaction, which it borrows.
#[must_use = "the row as it is now, and locked, is in here"]
pub struct LockedRow<'v, D: Driver, T> {
    table: LockedTable<D>,
    key: D::Value<'v>,
    row: D::Row,
    transaction: T,
}

/// Rows that are locked until the end of the transaction, which they borrow.
#[must_use = "the rows as they are now, and locked, are in here"]
pub struct LockedRows<D: Driver, T> {
    rows: Vec<D::Row>,
    transaction: T,
}

impl<D: Driver> LockedTable<D> {
    /// A table by its name, and the column of its key, which has a unique index.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn new(table: &str, key: &str) -> Result<LockedTable<D>, Error> {
        Ok(LockedTable {
            table: Identifier::new("the name of the table", table)?,
            key: Identifier::new("the column of the key", key)?,
            driver: PhantomData,
        })
    }

    /// The statement of [`lock`](LockedTable::lock), for other drivers. The key is its only value.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn lock_statement(&self, columns: &[&str]) -> Result<String, Error> {
        Ok(self.locking(columns, "")?.text)
    }

    /// The statement of [`try_lock`](LockedTable::try_lock). On PostgreSQL its refusal ends the
    /// transaction, unless it runs in a savepoint.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn try_lock_statement(&self, columns: &[&str]) -> Result<String, Error> {
        Ok(self.locking(columns, " NOWAIT")?.text)
    }

    /// The statement of [`lock_free`](LockedTable::lock_free). Its values are those of the
    /// conditions, in their order.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn lock_free_statement(
        &self,
        conditions: &[&str],
        columns: &[&str],
        most: u32,
    ) -> Result<String, Error> {
        Ok(self.skipping(conditions, columns, most)?.text)
    }

    /// Locks a row and reads columns of it, as they are when it is locked. Waits for a transaction
    /// that has it locked, for as long as the database is set to: on PostgreSQL without a limit, on
    /// MySQL for 50 s.
    ///
    /// # Errors
    ///
    /// [`RowLockError::NoRow`] when there is no such row, [`RowLockError::Victim`] in a deadlock.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may be locked, and the connection may still wait: roll back.
    pub async fn lock<'v, T: InTransaction<D>>(
        &self,
        transaction: T,
        key: D::Value<'v>,
        columns: &[&str],
    ) -> Result<LockedRow<'v, D, T>, RowLockError<D::Error>> {
        let statement = self.locking(columns, "")?;
        self.acquire(transaction, key, &statement, Wait::AsSet)
            .await?
            .ok_or(RowLockError::Timeout)
    }

    /// Locks a row and reads columns of it, if no other transaction has it locked; `None` otherwise.
    /// Then the transaction goes on.
    ///
    /// PostgreSQL runs it in a savepoint, MySQL needs version 8.0, and MariaDB 10.3.
    ///
    /// # Errors
    ///
    /// As [`lock`](LockedTable::lock); busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may be locked: roll back.
    pub async fn try_lock<'v, T: InTransaction<D>>(
        &self,
        transaction: T,
        key: D::Value<'v>,
        columns: &[&str],
    ) -> Result<Option<LockedRow<'v, D, T>>, RowLockError<D::Error>> {
        let statement = self.locking(columns, " NOWAIT")?;
        self.acquire(transaction, key, &statement, Wait::Not).await
    }

    /// Locks a row and reads columns of it. Waits for at most so long; MySQL counts whole seconds, at
    /// least one, and rounds up.
    ///
    /// The limit is set for this statement and set back after it. PostgreSQL runs it in a savepoint,
    /// so that the transaction goes on after a time-out.
    ///
    /// # Errors
    ///
    /// [`RowLockError::Timeout`] when the wait ran out; otherwise as [`lock`](LockedTable::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may be locked: roll back. On MySQL the session may keep the limit:
    /// end the connection.
    pub async fn lock_timeout<'v, T: InTransaction<D>>(
        &self,
        transaction: T,
        key: D::Value<'v>,
        columns: &[&str],
        longest: Duration,
    ) -> Result<LockedRow<'v, D, T>, RowLockError<D::Error>> {
        let statement = self.locking(columns, "")?;
        self.acquire(transaction, key, &statement, Wait::AtMost(longest))
            .await?
            .ok_or(RowLockError::Timeout)
    }

    /// Locks rows that no other transaction has locked, and reads columns of them: at most so many of
    /// those whose columns have these values, by their keys. Perhaps none. So many workers take jobs
    /// out of one table, and none waits for another.
    ///
    /// Give the columns of the conditions and the key one index in this order. Without it, MySQL
    /// also locks rows that it had to look at, and other workers leave those out. MySQL needs version
    /// 8.0, and MariaDB 10.6.
    ///
    /// # Errors
    ///
    /// [`RowLockError::Victim`] in a deadlock.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, rows may be locked: roll back.
    pub async fn lock_free<'v, T: InTransaction<D>>(
        &self,
        mut transaction: T,
        conditions: &[(&str, D::Value<'v>)],
        columns: &[&str],
        most: u32,
    ) -> Result<LockedRows<D, T>, RowLockError<D::Error>> {
        let names: Vec<&str> = conditions.iter().map(|(name, _)| *name).collect();
        let statement = self.skipping(&names, columns, most)?;
        let values: Vec<_> = conditions
            .iter()
            .map(|(_, value)| Param::Given(value))
            .collect();
        let rows = transaction
            .rows(&statement.text, &statement.places(&values))
            .await?;
        Ok(LockedRows { rows, transaction })
    }

    async fn acquire<'v, T: InTransaction<D>>(
        &self,
        mut transaction: T,
        key: D::Value<'v>,
        statement: &Statement,
        wait: Wait,
    ) -> Result<Option<LockedRow<'v, D, T>>, RowLockError<D::Error>> {
        let locked = {
            let values = statement.places(&[Param::Given(&key)]);
            wait::rows(&mut transaction, &statement.text, &values, wait).await?
        };
        let Some(mut rows) = locked else {
            return Ok(None);
        };
        match (rows.pop(), rows.len()) {
            (None, _) => Err(RowLockError::NoRow),
            (Some(row), 0) => Ok(Some(LockedRow {
                table: self.clone(),
                key,
                row,
                transaction,
            })),
            (Some(_), others) => Err(RowLockError::NotUnique { rows: others + 1 }),
        }
    }

    fn locking(&self, columns: &[&str], wait: &str) -> Result<Statement, Error> {
        let LockedTable { table, key, .. } = self;
        let list = self.list(columns)?;
        Ok(Statement::of::<D>(&format!(
            "SELECT {list} FROM \"{table}\" WHERE \"{key}\" = $1 FOR UPDATE{wait}"
        )))
    }

    fn skipping(
        &self,
        conditions: &[&str],
        columns: &[&str],
        most: u32,
    ) -> Result<Statement, Error> {
        let LockedTable { table, key, .. } = self;
        let list = self.list(columns)?;
        let mut text = format!("SELECT {list} FROM \"{table}\"");
        for (place, name) in (1..).zip(conditions) {
            let and = if place == 1 { "WHERE" } else { "AND" };
            text.push_str(&format!(" {and} \"{}\" = ${place}", column_name(name)?));
        }
        text.push_str(&format!(
            " ORDER BY \"{key}\" LIMIT {most} FOR UPDATE SKIP LOCKED"
        ));
        Ok(Statement::of::<D>(&text))
    }

    /// The columns; the key where none is named.
    fn list(&self, columns: &[&str]) -> Result<String, Error> {
        if columns.is_empty() {
            return Ok(format!("\"{}\"", self.key));
        }
        let quoted = |name: &&str| Ok(format!("\"{}\"", column_name(name)?));
        let columns: Result<Vec<String>, Error> = columns.iter().map(quoted).collect();
        Ok(columns?.join(", "))
    }
}

impl<D: Driver, T: InTransaction<D>> LockedRow<'_, D, T> {
    /// The columns that were asked for; the key where none was.
    pub fn row(&self) -> &D::Row {
        &self.row
    }

    /// The transaction, for other statements while the row is in use.
    pub fn transaction(&mut self) -> &mut T {
        &mut self.transaction
    }

    /// Writes columns of the row. What [`row`](LockedRow::row) gives stays as it was read.
    ///
    /// # Errors
    ///
    /// [`RowLockError::NoRow`] when this transaction has deleted the row. Only PostgreSQL says so.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may have been written: roll back.
    pub async fn update<'u>(
        &mut self,
        columns: &[(&str, D::Value<'u>)],
    ) -> Result<(), RowLockError<D::Error>> {
        if columns.is_empty() {
            return Err(RowLockError::Name(Error::config(
                "there is no column to write; name at least one",
            )));
        }
        let LockedTable { table, key, .. } = &self.table;
        let mut set = Vec::new();
        for (place, (name, _)) in (2..).zip(columns) {
            set.push(format!("\"{}\" = ${place}", column_name(name)?));
        }
        let statement = Statement::of::<D>(&format!(
            "UPDATE \"{table}\" SET {} WHERE \"{key}\" = $1",
            set.join(", ")
        ));
        let key = D::again(&self.key);
        let written: Vec<_> = columns.iter().map(|(_, value)| D::again(value)).collect();
        let mut values = vec![Param::Given(&key)];
        values.extend(written.iter().map(Param::Given));
        let affected = self
            .transaction
            .execute(&statement.text, &statement.places(&values))
            .await?;
        // MySQL may count none where the row has these values already.
        if affected == 0 && D::DIALECT == Dialect::Postgres {
            return Err(RowLockError::NoRow);
        }
        Ok(())
    }
}

impl<D: Driver, T: InTransaction<D>> LockedRows<D, T> {
    /// The rows, by their keys.
    pub fn rows(&self) -> &[D::Row] {
        &self.rows
    }

    /// The transaction, for other statements while the rows are in use.
    pub fn transaction(&mut self) -> &mut T {
        &mut self.transaction
    }
}

impl<D: Driver, T> fmt::Debug for LockedRow<'_, D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedRow")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl<D: Driver, T> fmt::Debug for LockedRows<D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedRows")
            .field("rows", &self.rows.len())
            .finish_non_exhaustive()
    }
}

impl<E> From<Error> for RowLockError<E> {
    fn from(error: Error) -> RowLockError<E> {
        RowLockError::Name(error)
    }
}
