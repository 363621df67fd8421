//! The warden tells holders of their loss by the clock alone: a thread of its own, which no runtime can starve.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::ledger::Ledger;

/// Starts the warden. It ends when the ledger is closed and empty.
pub(crate) fn start(ledger: Arc<Ledger>) -> std::io::Result<()> {
    std::thread::Builder::new().name("palisade-warden".into()).spawn(move || watch(&ledger)).map(drop)
}

fn watch(ledger: &Ledger) {
    // Whatever panics in there, the other holders must not be left unwatched.
    while catch_unwind(AssertUnwindSafe(|| ledger.look())).unwrap_or(true) {}
}
