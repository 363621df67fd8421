//! Rows that refuse stale writes, in a PostgreSQL database of yours.
//!
//! The table has a column `bigint NOT NULL DEFAULT 0` for the fence, and every write checks and
//! raises it in the same statement. The calls take your own connection or transaction:
//!
//! ```
//! use palisade::fence::Fence;
//! use palisade::fence::postgres::{FencedTable, RowError, Writes, tokio_postgres};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::postgres::Postgres::start();
//! # let (ours, later) = (Fence::new(33).ok_or("fence")?, Fence::new(34).ok_or("fence")?);
//! # let url = server.url();
//! let (mut shop, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
//! tokio::spawn(connection);
//! shop.batch_execute("CREATE TABLE stock (item text PRIMARY KEY, pieces int, fence bigint NOT NULL DEFAULT 0)").await?;
//! let stock = FencedTable::new("stock", "item", "fence")?;
//!
//! // `ours` is guard.fence()
//! stock.upsert(&shop, &"bolt", ours, Writes::Often, &[("pieces", &7)]).await?;
//!
//! // This process is paused past its lease. The next holder installs its fence before it reads.
//! stock.install(&shop, &"bolt", later).await?;
//!
//! // This process wakes up and goes on, here in a transaction. The row refuses.
//! let transaction = shop.transaction().await?;
//! let refused = stock.update(&transaction, &"bolt", ours, Writes::Often, &[("pieces", &6)]).await;
//! assert!(matches!(refused, Err(RowError::Stale { highest, .. }) if highest == later));
//! # Ok(())
//! # }
//! ```
//!
//! The text of the statements is there for other drivers:
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
//! [`fence::sql`](super::sql) says what to know before use.
//!
//! # Isolation
//!
//! Any will do. Under REPEATABLE READ and SERIALIZABLE the database refuses a write to a row that
//! another transaction has changed since: then [`may_retry`](RowError::may_retry) says that the
//! whole transaction can be run again. A stale writer is refused in that run.

pub use tokio_postgres;

pub use super::sql::{Mark, Request, Writes};
pub use crate::database::postgres::Postgres;
use crate::database::{DriverError, Fault};

/// A table whose rows check the fence of each write.
pub type FencedTable = super::sql::FencedTable<Postgres>;
/// A table whose rows take a write only while they have the holder's mark.
pub type MarkedTable = super::sql::MarkedTable<Postgres>;
/// A table of requests that were done, with their results.
pub type Requests = super::sql::Requests<Postgres>;
/// Why a row was not written.
pub type RowError = super::sql::RowError<tokio_postgres::Error>;

impl RowError {
    /// Whether the transaction failed only because of others at the same time, so that the whole of
    /// it can be run again.
    pub fn may_retry(&self) -> bool {
        match self {
            RowError::Sql(error) => matches!(error.fault(), Fault::Busy | Fault::Victim),
            _ => false,
        }
    }
}

impl From<tokio_postgres::Error> for RowError {
    fn from(error: tokio_postgres::Error) -> RowError {
        RowError::Sql(error)
    }
}
