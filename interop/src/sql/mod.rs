//! The programs that share a table of locks: plain Python on the table that [`Table::Simple`] names, and ShedLock.

mod library;
mod sqlx;

pub use library::{Library, Table};
