//! Names.
use crate::error::{Error, Result};
use std::sync::Arc;

/// What is locked: any UTF-8 string of 1–512 bytes. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes.
    pub const LONGEST: usize = 512;

    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when it is empty or longer than 512 bytes.
    pub fn new(name: impl AsRef<str>) -> Result<Name> {
        let name = name.as_ref();
        match name.len() {
            0 => Err(Error::config("the name is empty; give 1 to 512 bytes")),
            1..=Self::LONGEST => Ok(Name(name.into())),
            long => Err(Error::config(format!("the name has {long} bytes; give 1 to 512"))),
        }
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
