//! Row locks and names, for a transaction of a PostgreSQL database of yours: pessimistic locking.
//!
//! ```
//! use palisade::row_lock::postgres::{AdvisoryLock, LockedTable, tokio_postgres};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::postgres::Postgres::start();
//! # let url = server.url();
//! # let connect = || tokio_postgres::connect(&url, tokio_postgres::NoTls);
//! # let ((mut shop, ours), (mut other, theirs)) = (connect().await?, connect().await?);
//! # tokio::spawn(ours);
//! # tokio::spawn(theirs);
//! # shop.batch_execute("CREATE TABLE stock (item text PRIMARY KEY, pieces int)").await?;
//! # shop.batch_execute("INSERT INTO stock VALUES ('bolt', 7)").await?;
//! let stock = LockedTable::new("stock", "item")?;
//!
//! let transaction = shop.transaction().await?;
//! let mut bolts = stock.lock(&transaction, &"bolt", &["pieces"]).await?;
//! let pieces: i32 = bolts.row().get("pieces");
//! bolts.update(&[("pieces", &(pieces - 1))]).await?;
//!
//! // Another transaction cannot have the row now, and is told so at once.
//! let theirs = other.transaction().await?;
//! assert!(stock.try_lock(&theirs, &"bolt", &["pieces"]).await?.is_none());
//! transaction.commit().await?; // this ends the lock
//! assert!(stock.try_lock(&theirs, &"bolt", &["pieces"]).await?.is_some());
//!
//! // What has no row can be locked by a name.
//! let report = AdvisoryLock::named("monthly report");
//! assert!(report.try_lock(&theirs).await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! The lock cannot outlive its transaction:
//!
//! ```compile_fail,E0505
//! use palisade::row_lock::postgres::{LockedTable, tokio_postgres::Client};
//!
//! async fn sell(shop: &mut Client, stock: &LockedTable) -> Result<(), Box<dyn std::error::Error>> {
//!     let transaction = shop.transaction().await?;
//!     let mut bolts = stock.lock(&transaction, &"bolt", &["pieces"]).await?;
//!     transaction.commit().await?; // the row is used after this
//!     bolts.update(&[("pieces", &6)]).await?;
//!     Ok(())
//! }
//! ```
//!
//! and cannot be taken without one:
//!
//! ```compile_fail,E0277
//! use palisade::row_lock::postgres::{LockedTable, tokio_postgres::Client};
//!
//! async fn sell(shop: &Client, stock: &LockedTable) -> Result<(), Box<dyn std::error::Error>> {
//!     let bolts = stock.lock(shop, &"bolt", &["pieces"]).await?;
//!     Ok(())
//! }
//! ```
//!
//! The text of the statements is there for other drivers:
//!
//! ```
//! use palisade::row_lock::postgres::LockedTable;
//!
//! let jobs = LockedTable::new("job", "id")?;
//! assert_eq!(
//!     jobs.lock_free_statement(&["state"], &["id", "payload"], 10)?,
//!     r#"SELECT "id", "payload" FROM "job" WHERE "state" = $1 ORDER BY "id" LIMIT 10 FOR UPDATE SKIP LOCKED"#
//! );
//! # Ok::<(), palisade::Error>(())
//! ```
//!
//! [`row_lock`](super) says what to know before use.
//!
//! # Isolation
//!
//! READ COMMITTED, the default, is right: the row is read as it is when the lock is had. Under
//! REPEATABLE READ and SERIALIZABLE a row that was changed since the transaction's snapshot is
//! refused: [`RowLockError::Victim`].
//!
//! A name has no row that could be refused. **Under REPEATABLE READ, an [`AdvisoryLock`] does not
//! make the reads after it newer than the snapshot**, which was taken by the first statement: by
//! that lock itself, before its wait.

use std::fmt;
use std::time::Duration;

pub use tokio_postgres;

use super::wait::{self, Wait};
pub use crate::database::postgres::Postgres;
use crate::database::{InTransaction, Param};

/// A table whose rows a transaction locks, each by its key.
pub type LockedTable = super::LockedTable<Postgres>;
/// A row that is locked until the end of the transaction, which it borrows.
pub type LockedRow<'v, T> = super::LockedRow<'v, Postgres, T>;
/// Rows that are locked until the end of the transaction, which they borrow.
pub type LockedRows<T> = super::LockedRows<Postgres, T>;
/// Why a row was not locked, or not written.
pub type RowLockError = super::RowLockError<tokio_postgres::Error>;

/// A name that a transaction locks until its end, where there is no row to lock:
/// `pg_advisory_xact_lock`.
///
/// It excludes those that lock the same key in the same **database**. It is no lock of a
/// [`Client`](crate::Client), has no fence, and is not listed; `pg_locks` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvisoryLock(Key);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    Name(String),
    Number(i64),
    Pair(i32, i32),
}

impl AdvisoryLock {
    /// By a name. Its key is `hashtextextended(name, 0)`, so that SQL and other languages can lock
    /// the same: `SELECT pg_advisory_xact_lock(hashtextextended('monthly report', 0))`. Two names
    /// with one key would only wait for each other; among 64 bits that is rare. PostgreSQL 11 or
    /// later.
    pub fn named(name: impl Into<String>) -> AdvisoryLock {
        AdvisoryLock(Key::Name(name.into()))
    }

    /// By a number.
    pub fn number(key: i64) -> AdvisoryLock {
        AdvisoryLock(Key::Number(key))
    }

    /// By two numbers, such as that of a table and that of a row. No pair meets a
    /// [`number`](AdvisoryLock::number).
    pub fn pair(first: i32, second: i32) -> AdvisoryLock {
        AdvisoryLock(Key::Pair(first, second))
    }

    /// Waits for as long as the database is set to: without a limit by default.
    ///
    /// # Errors
    ///
    /// [`RowLockError::Victim`](super::RowLockError::Victim) in a deadlock.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may be locked: roll back.
    pub async fn lock<T: InTransaction<Postgres>>(
        &self,
        transaction: T,
    ) -> Result<LockedName<T>, RowLockError> {
        self.acquire(transaction, Wait::AsSet)
            .await?
            .ok_or(RowLockError::Timeout)
    }

    /// Locks it if no other transaction or session has it; `None` otherwise. The transaction goes on.
    ///
    /// # Errors
    ///
    /// When the database refuses or does not answer; busy is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may be locked: roll back.
    pub async fn try_lock<T: InTransaction<Postgres>>(
        &self,
        mut transaction: T,
    ) -> Result<Option<LockedName<T>>, RowLockError> {
        let text = self.statement("SELECT CAST(pg_try_advisory_xact_lock", " AS text)");
        let row = transaction.read(&text, &self.values()).await?;
        let answer = row.and_then(|columns| columns.into_iter().next().flatten());
        Ok((answer.as_deref() == Some("true")).then_some(LockedName { transaction }))
    }

    /// Waits for at most so long. It runs in a savepoint, so that the transaction goes on after a
    /// time-out.
    ///
    /// # Errors
    ///
    /// [`RowLockError::Timeout`](super::RowLockError::Timeout) when the wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may be locked: roll back.
    pub async fn lock_timeout<T: InTransaction<Postgres>>(
        &self,
        transaction: T,
        longest: Duration,
    ) -> Result<LockedName<T>, RowLockError> {
        self.acquire(transaction, Wait::AtMost(longest))
            .await?
            .ok_or(RowLockError::Timeout)
    }

    async fn acquire<T: InTransaction<Postgres>>(
        &self,
        mut transaction: T,
        wait: Wait,
    ) -> Result<Option<LockedName<T>>, RowLockError> {
        let text = self.statement("SELECT pg_advisory_xact_lock", "");
        let rows = wait::rows(&mut transaction, &text, &self.values(), wait).await?;
        Ok(rows.map(|_| LockedName { transaction }))
    }

    fn statement(&self, before: &str, after: &str) -> String {
        match self.0 {
            Key::Name(_) => format!("{before}(hashtextextended($1, 0)){after}"),
            Key::Number(key) => format!("{before}(CAST('{key}' AS bigint)){after}"),
            Key::Pair(first, second) => {
                format!("{before}(CAST('{first}' AS int), CAST('{second}' AS int)){after}")
            }
        }
    }

    fn values<V>(&self) -> Vec<Param<'_, V>> {
        match &self.0 {
            Key::Name(name) => vec![Param::Text(name)],
            Key::Number(_) | Key::Pair(..) => Vec::new(),
        }
    }
}

/// A name that is locked until the end of the transaction, which it borrows.
#[must_use = "as long as this is there, the transaction is"]
pub struct LockedName<T> {
    transaction: T,
}

impl<T> LockedName<T> {
    /// The transaction, for the statements that the name protects.
    pub fn transaction(&mut self) -> &mut T {
        &mut self.transaction
    }
}

impl<T> fmt::Debug for LockedName<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedName").finish_non_exhaustive()
    }
}
