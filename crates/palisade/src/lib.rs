//! Distributed locks that say what they guarantee.
mod capability;
mod error;
pub mod fence;
pub mod lease;
pub mod line;
mod name;
pub mod store;

pub use error::{Error, ErrorKind, Result};
pub use name::Name;
