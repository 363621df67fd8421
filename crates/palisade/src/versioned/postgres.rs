//! Versioned rows in a PostgreSQL database of yours: optimistic locking.
//!
//! ```
//! use palisade::versioned::postgres::{RowSwapped, VersionedTable, tokio_postgres};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::postgres::Postgres::start();
//! # let url = server.url();
//! let (shop, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
//! tokio::spawn(connection);
//! shop.batch_execute("CREATE TABLE stock (item text PRIMARY KEY, pieces int, version bigint NOT NULL DEFAULT 1)").await?;
//! shop.batch_execute("INSERT INTO stock VALUES ('bolt', 7)").await?;
//! let stock = VersionedTable::new("stock", "item", "version")?;
//!
//! // Two programs have read 7. One of them is faster.
//! let seen = stock.get(&shop, &"bolt", &["pieces"]).await?.ok_or("no such row")?;
//! assert_eq!(seen.row.get::<_, i32>("pieces"), 7);
//! let first = stock.swap(&shop, &"bolt", Some(seen.version), &[("pieces", &6)]).await?;
//! assert!(matches!(first, RowSwapped::Done(_)));
//! let second = stock.swap(&shop, &"bolt", Some(seen.version), &[("pieces", &6)]).await?;
//! assert!(matches!(second, RowSwapped::Conflict(Some(now)) if now > seen.version)); // read again, decide again
//!
//! // The same as a loop.
//! let sold = stock.update(&shop, &"bolt", &["pieces"], |row| {
//!     let pieces: i32 = row?.get("pieces");
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
//! use palisade::versioned::postgres::VersionedTable;
//!
//! let stock = VersionedTable::new("stock", "item", "version")?;
//! assert_eq!(
//!     stock.swap_statement(&["pieces"])?,
//!     r#"UPDATE "stock" SET "version" = "version" + 1, "pieces" = $3 WHERE "item" = $1 AND "version" = CAST($2 AS bigint)"#
//! );
//! # Ok::<(), palisade::Error>(())
//! ```
//!
//! [`versioned::sql`](super::sql) says what to know before use.

pub use tokio_postgres;

pub use super::sql::RowSwapped;
pub use crate::database::postgres::{Computed, Postgres};

/// A table whose rows change only if the writer has seen their current version.
pub type VersionedTable = super::sql::VersionedTable<Postgres>;
/// A row that was read, and its version.
pub type VersionedRow = super::sql::VersionedRow<tokio_postgres::Row>;
/// Why a versioned row could not be read or swapped.
pub type SwapError = super::sql::SwapError<tokio_postgres::Error>;
