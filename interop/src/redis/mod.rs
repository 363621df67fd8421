//! The libraries whose lock is a string in Redis: `SET name token NX PX lease`, and compare before
//! delete and extend. Ours with `format=simple` is one of them.

pub(crate) mod connection;
mod library;
mod raw;
mod rslock;

pub use library::Library;
pub use raw::Raw;
pub use rslock::Rslock;
