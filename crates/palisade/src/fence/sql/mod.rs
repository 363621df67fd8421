//! Rows that refuse stale writes, in a database of yours: what [`fence::postgres`](super::postgres)
//! and [`fence::mysql`](super::mysql) share. Begin with the page of your database.
//!
//! | type | what it does |
//! |---|---|
//! | [`FencedTable`] | refuses a write whose fence is lower than one that the row has seen |
//! | [`MarkedTable`] | refuses a write when another holder has marked the row since: excludes, but does not order |
//! | [`Requests`] | gives a repeated request the result of the first |
//!
//! # What to know
//!
//! - **Install before you read.** A row only knows the fences that it has seen.
//! - All writers must use these statements. A plain `UPDATE` checks no fence, and a `DELETE` makes
//!   the row forget it: keep the row, and say in a column that it is over.
//! - One row belongs to one lock name of one store.
//! - The column of the fence is a `bigint NOT NULL DEFAULT 0`. Bind the key with the type of its
//!   column.
//! - In a transaction a refusal is no error of the database: the transaction goes on, and what was
//!   written before the refusal is committed unless you roll back.

mod error;
mod fenced_table;
mod marked_table;
mod requests;

pub use self::error::RowError;
pub use self::fenced_table::{FencedTable, Writes};
pub use self::marked_table::{Mark, MarkedTable};
pub use self::requests::{Request, Requests};
use crate::database::{Compared, Dialect, Driver, Found, InTransaction, Param, Session, Statement};
