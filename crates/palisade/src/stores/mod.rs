//! The stores: one folder each, and the table of their URLs.

pub mod memory;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::store::Store;
use crate::url::StoreUrl;

/// A store as the table knows it: its schemes, and how to open it.
struct Entry {
    schemes: &'static [&'static str],
    open: fn(StoreUrl) -> Result<Arc<dyn Store>>,
}

/// Adding a store is one line here, one folder, and one line in the conformance matrix.
const STORES: &[Entry] = &[Entry { schemes: &["memory"], open: memory::open }];

/// Opens the store of a URL. Parses and returns: the first use connects.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    match STORES.iter().find(|entry| entry.schemes.contains(&url.scheme())) {
        Some(entry) => (entry.open)(url),
        None => {
            let known: Vec<&str> = STORES.iter().flat_map(|entry| entry.schemes).copied().collect();
            Err(Error::config(format!("no store has the scheme {}:; known here: {}", url.scheme(), known.join(", "))))
        }
    }
}
