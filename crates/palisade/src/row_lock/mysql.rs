//! Row locks for a transaction of a MySQL or MariaDB database of yours: pessimistic locking.
//!
//! ```
//! use palisade::row_lock::mysql::LockedTable;
//! use palisade::row_lock::mysql::mysql_async::{Conn, TxOpts, prelude::Queryable};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::mariadb::MariaDb::start();
//! # let url = server.url();
//! # let (mut shop, mut other) = (Conn::from_url(&url).await?, Conn::from_url(&url).await?);
//! # shop.query_drop("CREATE TABLE stock (item VARCHAR(99) PRIMARY KEY, pieces INT)").await?;
//! # shop.query_drop("INSERT INTO stock VALUES ('bolt', 7)").await?;
//! let stock = LockedTable::new("stock", "item")?;
//!
//! let mut transaction = shop.start_transaction(TxOpts::default()).await?;
//! let mut bolts = stock.lock(&mut transaction, "bolt".into(), &["pieces"]).await?;
//! let pieces: i32 = bolts.row().get("pieces").ok_or("NULL")?;
//! bolts.update(&[("pieces", (pieces - 1).into())]).await?;
//!
//! // Another transaction cannot have the row now, and is told so at once.
//! let mut theirs = other.start_transaction(TxOpts::default()).await?;
//! assert!(stock.try_lock(&mut theirs, "bolt".into(), &["pieces"]).await?.is_none());
//! transaction.commit().await?; // this ends the lock
//! assert!(stock.try_lock(&mut theirs, "bolt".into(), &["pieces"]).await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! The lock cannot outlive its transaction:
//!
//! ```compile_fail,E0505
//! use palisade::row_lock::mysql::{LockedTable, mysql_async::{Conn, TxOpts}};
//!
//! async fn sell(shop: &mut Conn, stock: &LockedTable) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut transaction = shop.start_transaction(TxOpts::default()).await?;
//!     let mut bolts = stock.lock(&mut transaction, "bolt".into(), &["pieces"]).await?;
//!     transaction.commit().await?; // the row is used after this
//!     bolts.update(&[("pieces", 6.into())]).await?;
//!     Ok(())
//! }
//! ```
//!
//! and cannot be taken without one:
//!
//! ```compile_fail,E0277
//! use palisade::row_lock::mysql::{LockedTable, mysql_async::Conn};
//!
//! async fn sell(shop: &mut Conn, stock: &LockedTable) -> Result<(), Box<dyn std::error::Error>> {
//!     let bolts = stock.lock(shop, "bolt".into(), &["pieces"]).await?;
//!     Ok(())
//! }
//! ```
//!
//! The text of the statements is there for other drivers:
//!
//! ```
//! use palisade::row_lock::mysql::LockedTable;
//!
//! let stock = LockedTable::new("stock", "item")?;
//! assert_eq!(
//!     stock.try_lock_statement(&["pieces"])?,
//!     "SELECT `pieces` FROM `stock` WHERE `item` = ? FOR UPDATE NOWAIT"
//! );
//! # Ok::<(), palisade::Error>(())
//! ```
//!
//! [`row_lock`](super) says what to know before use.
//!
//! # Isolation
//!
//! Any will do: a locking read answers with the row as it is, whatever the transaction has read
//! before. **A plain `SELECT` after it does not**, under REPEATABLE READ, the default: it reads the
//! snapshot that the transaction's first plain read made. Take what you need from
//! [`LockedRow::row`](super::LockedRow::row).
//!
//! # Names
//!
//! There is no lock of a name that ends with the transaction: `GET_LOCK` belongs to the session, and
//! outlives a commit and a rollback. Lock a row of a table that is there for it.

pub use mysql_async;

pub use crate::database::mysql::Mysql;

/// A table whose rows a transaction locks, each by its key.
pub type LockedTable = super::LockedTable<Mysql>;
/// A row that is locked until the end of the transaction, which it borrows.
pub type LockedRow<'v, T> = super::LockedRow<'v, Mysql, T>;
/// Rows that are locked until the end of the transaction, which they borrow.
pub type LockedRows<T> = super::LockedRows<Mysql, T>;
/// Why a row was not locked, or not written.
pub type RowLockError = super::RowLockError<mysql_async::Error>;
