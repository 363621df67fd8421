//! Distributed locks that say what they guarantee.
mod capability;
mod duration;
mod error;
pub mod fence;
pub mod lease;
pub mod line;
mod name;
pub mod store;
pub mod url;

pub use duration::{parse_duration, show_duration};
pub use error::{Error, ErrorKind, Result};
pub use name::Name;
pub use url::StoreUrl;
