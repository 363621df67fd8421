//! Rows that refuse stale writes, in a MySQL or MariaDB database of yours.
//!
//! The table has a column `BIGINT NOT NULL DEFAULT 0` for the fence, and every write checks and
//! raises it in the same statement. The calls take your own connection or transaction:
//!
//! ```
//! use palisade::fence::Fence;
//! use palisade::fence::mysql::mysql_async::{Pool, TxOpts, prelude::Queryable};
//! use palisade::fence::mysql::{FencedTable, RowError, Writes};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = palisade_testkit::mariadb::MariaDb::start();
//! # let (ours, later) = (Fence::new(33).ok_or("fence")?, Fence::new(34).ok_or("fence")?);
//! # let url = server.url();
//! let mut shop = Pool::new(url.as_str()).get_conn().await?;
//! shop.query_drop("CREATE TABLE stock (item VARCHAR(99) PRIMARY KEY, pieces INT, fence BIGINT NOT NULL DEFAULT 0)").await?;
//! let stock = FencedTable::new("stock", "item", "fence")?;
//!
//! // `ours` is guard.fence()
//! let seven = [("pieces", 7.into())];
//! stock.upsert(&mut shop, "bolt".into(), ours, Writes::Often, &seven).await?;
//!
//! // This process is paused past its lease. The next holder installs its fence before it reads.
//! stock.install(&mut shop, "bolt".into(), later).await?;
//!
//! // This process wakes up and goes on, here in a transaction. The row refuses.
//! let mut transaction = shop.start_transaction(TxOpts::default()).await?;
//! let six = [("pieces", 6.into())];
//! let refused = stock.update(&mut transaction, "bolt".into(), ours, Writes::Often, &six).await;
//! assert!(matches!(refused, Err(RowError::Stale { highest, .. }) if highest == later));
//! # Ok(())
//! # }
//! ```
//!
//! The text of the statements is there for other drivers:
//!
//! ```
//! use palisade::fence::mysql::{FencedTable, Writes};
//!
//! let stock = FencedTable::new("stock", "item", "fence")?;
//! assert_eq!(
//!     stock.update_statement(Writes::Once, &["pieces"])?,
//!     "UPDATE `stock` SET `fence` = ?, `pieces` = ? WHERE `item` = ? AND `fence` < ?"
//! );
//! # Ok::<(), palisade::Error>(())
//! ```
//!
//! [`fence::sql`](super::sql) says what to know before use.
//!
//! # Counts
//!
//! A connection counts the rows that an `UPDATE` has changed, or those that it has found
//! (`client_found_rows`, the default of sqlx and of JDBC). In the first case a write of the same
//! values counts as zero. Here that is no refusal: zero rows are looked into.
//!
//! # Isolation
//!
//! Any will do: an `UPDATE` compares the row as it is, whatever the transaction has read before.
//! Deadlocks are possible, above all under REPEATABLE READ: then
//! [`may_retry`](RowError::may_retry) says that the whole transaction can be run again, and MySQL has
//! already rolled it back.

pub use mysql_async;

pub use super::sql::{Mark, Request, Writes};
pub use crate::database::mysql::Mysql;
use crate::database::{DriverError, Fault};

/// A table whose rows check the fence of each write.
pub type FencedTable = super::sql::FencedTable<Mysql>;
/// A table whose rows take a write only while they have the holder's mark.
pub type MarkedTable = super::sql::MarkedTable<Mysql>;
/// A table of requests that were done, with their results.
pub type Requests = super::sql::Requests<Mysql>;
/// Why a row was not written.
pub type RowError = super::sql::RowError<mysql_async::Error>;

impl RowError {
    /// Whether the transaction failed only because of others at the same time, so that the whole of
    /// it can be run again. Roll it back first: a wait that ran out has undone its statement only.
    pub fn may_retry(&self) -> bool {
        match self {
            RowError::Sql(error) => matches!(error.fault(), Fault::Busy | Fault::Victim),
            _ => false,
        }
    }
}

impl From<mysql_async::Error> for RowError {
    fn from(error: mysql_async::Error) -> RowError {
        RowError::Sql(error)
    }
}
