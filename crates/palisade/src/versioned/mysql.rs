//! Versioned rows in a MySQL or MariaDB database of yours: optimistic locking.
//!
//! ```
//! use palisade::versioned::mysql::mysql_async::{Pool, prelude::Queryable};
//! use palisade::versioned::mysql::{RowSwapped, VersionedTable};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::mariadb::MariaDb::start();
//! # let url = server.url();
//! let mut shop = Pool::new(url.as_str()).get_conn().await?;
//! shop.query_drop("CREATE TABLE stock (item VARCHAR(99) PRIMARY KEY, pieces INT, version BIGINT NOT NULL DEFAULT 1)").await?;
//! shop.query_drop("INSERT INTO stock (item, pieces) VALUES ('bolt', 7)").await?;
//! let stock = VersionedTable::new("stock", "item", "version")?;
//!
//! // Two programs have read 7. One of them is faster.
//! let seen = stock.get(&mut shop, "bolt".into(), &["pieces"]).await?.ok_or("no such row")?;
//! assert_eq!(seen.row.get::<i32, _>("pieces"), Some(7));
//! let first = stock.swap(&mut shop, "bolt".into(), Some(seen.version), &[("pieces", 6.into())]).await?;
//! assert!(matches!(first, RowSwapped::Done(_)));
//! let second = stock.swap(&mut shop, "bolt".into(), Some(seen.version), &[("pieces", 6.into())]).await?;
//! assert!(matches!(second, RowSwapped::Conflict(Some(now)) if now > seen.version)); // read again, decide again
//!
//! // The same as a loop.
//! let sold = stock.update(&mut shop, "bolt".into(), &["pieces"], |row| {
//!     let pieces: i32 = row?.get("pieces")?;
//!     (pieces > 0).then(|| vec![("pieces", (pieces - 1).into())]) // `None`: sold out, change nothing
//! }).await?;
//! assert!(sold.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! The text of the statements is there for other drivers:
//!
//! ```
//! use palisade::versioned::mysql::VersionedTable;
//!
//! let stock = VersionedTable::new("stock", "item", "version")?;
//! assert_eq!(
//!     stock.swap_statement(&["pieces"])?,
//!     "UPDATE `stock` SET `version` = `version` + 1, `pieces` = ? WHERE `item` = ? AND `version` = ?"
//! );
//! # Ok::<(), palisade::Error>(())
//! ```
//!
//! [`versioned::sql`](super::sql) says what to know before use.

pub use mysql_async;

pub use super::sql::RowSwapped;
pub use crate::database::mysql::Mysql;

/// A table whose rows change only if the writer has seen their current version.
pub type VersionedTable = super::sql::VersionedTable<Mysql>;
/// A row that was read, and its version.
pub type VersionedRow = super::sql::VersionedRow<mysql_async::Row>;
/// Why a versioned row could not be read or swapped.
pub type SwapError = super::sql::SwapError<mysql_async::Error>;
