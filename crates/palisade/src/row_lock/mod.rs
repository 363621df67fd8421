//! Rows of your own tables, locked for a transaction: `SELECT … FOR UPDATE`.
//!
//! Where the work is one short transaction of one database, this is simpler and safer than any lock
//! beside the database: nothing can expire while the transaction is open, and a write after the end
//! of the lock cannot be, because the lock ends with the commit. Begin with the page of your
//! database: [`postgres`] or [`mysql`].
//!
//! | verb | in SQL | when the row is locked by another transaction |
//! |---|---|---|
//! | [`lock`](LockedTable::lock) | `FOR UPDATE` | waits, for as long as the database is set to |
//! | [`lock_timeout`](LockedTable::lock_timeout) | `FOR UPDATE`, with a limit | [`RowLockError::Timeout`] after it |
//! | [`try_lock`](LockedTable::try_lock) | `FOR UPDATE NOWAIT` | `None` |
//! | [`lock_free`](LockedTable::lock_free) | `FOR UPDATE SKIP LOCKED` | leaves it out: many workers at one queue |
//!
//! **The lock is bound to the transaction**, by its type. It can only be taken in a transaction: on
//! a plain connection `FOR UPDATE` locks nothing beyond its own statement. A [`LockedRow`] borrows
//! the transaction, so that it can be neither committed nor dropped while the row is still in use.
//!
//! # What is locked
//!
//! - **The key needs a unique index.** With one, exactly the row is locked. Without, MySQL locks
//!   every row that it has to look at, which is the whole table; PostgreSQL locks the rows that
//!   match, and there may be several: [`RowLockError::NotUnique`].
//! - **A row that is not there cannot be locked**: [`RowLockError::NoRow`]. On PostgreSQL nothing is
//!   locked then. On MySQL the gap is, in a way that lets two transactions in, and their inserts end
//!   in a deadlock. Insert the row first (`ON CONFLICT DO NOTHING`, `INSERT IGNORE`), or lock a name:
//!   [`postgres::AdvisoryLock`].
//! - Plain reads are not held up, and read what was committed before.
//! - Other writers wait, whether they use this module or not. That is the difference to a version
//!   and a fence, which all writers must check.
//!
//! # Why a long holder hurts
//!
//! - Every other writer of the row waits, each with a connection of its own, until the pool is empty
//!   and tasks that have nothing to do with the row wait as well. Set a limit
//!   ([`lock_timeout`](LockedTable::lock_timeout)), and do no requests to other systems while the
//!   row is locked.
//! - A paused holder, or one behind a cut network, keeps its lock until the server ends its session.
//!   There is no lease. Set `idle_in_transaction_session_timeout` (PostgreSQL), `wait_timeout` or
//!   `idle_transaction_timeout` (MySQL, MariaDB).
//! - On PostgreSQL an open transaction keeps old row versions from being removed, in every table. On
//!   MySQL the undo log grows.
//!
//! Where the work takes longer than a few requests to the database, take a lock of this crate, with
//! a lease and a [fence](crate::fence), instead.
//!
//! # Deadlocks
//!
//! Two transactions that lock two rows in opposite orders wait for each other. The database ends one
//! of them: [`RowLockError::Victim`]. **Run the whole transaction again**, from its first read,
//! because all that it had done is undone. Lock rows in one order everywhere, such as by their key,
//! and it does not happen.
//!
//! ```
//! use palisade::row_lock::postgres::tokio_postgres::{self, Client, NoTls};
//! use palisade::row_lock::postgres::{LockedTable, RowLockError};
//! use std::time::Duration;
//!
//! async fn sell(shop: &mut Client, stock: &LockedTable, item: &str, wanted: i32) -> Result<bool, RowLockError> {
//!     let transaction = shop.transaction().await?;
//!     let longest = Duration::from_secs(3);
//!     let mut row = stock.lock_timeout(&transaction, &item, &["pieces"], longest).await?;
//!     let left = row.row().get::<_, i32>("pieces") - wanted;
//!     if left < 0 {
//!         return Ok(false); // the transaction is dropped, and so rolled back
//!     }
//!     row.update(&[("pieces", &left)]).await?;
//!     transaction.commit().await?;
//!     Ok(true)
//! }
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let server = palisade_testkit::postgres::Postgres::start(); // yours
//!     let (mut shop, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
//!     tokio::spawn(connection);
//!     shop.batch_execute("CREATE TABLE stock (item text PRIMARY KEY, pieces int)").await?;
//!     shop.batch_execute("INSERT INTO stock VALUES ('bolt', 100)").await?;
//!     let stock = LockedTable::new("stock", "item")?;
//!
//!     let mut tries = 0..8;
//!     let sold = loop {
//!         match sell(&mut shop, &stock, "bolt", 60).await {
//!             Err(error) if error.may_retry() && tries.next().is_some() => {
//!                 tokio::time::sleep(Duration::from_millis(fastrand::u64(..50))).await; // not in step
//!             }
//!             answer => break answer?,
//!         }
//!     };
//!     assert!(sold);
//!     assert!(!sell(&mut shop, &stock, "bolt", 60).await?); // 40 are left
//!     Ok(())
//! }
//! ```

mod error;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod table;
mod wait;

pub use self::error::RowLockError;
pub use self::table::{LockedRow, LockedRows, LockedTable};
