//! The warden tells holders of their loss by the clock alone: a thread of its own, which no runtime
//! can starve.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::registry::Registry;

/// Starts the warden. It ends when the registry is closed and empty.
pub(crate) fn start(registry: Arc<Registry>) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("palisade-warden".into())
        .spawn(move || watch(&registry))
        .map(drop)
}

fn watch(registry: &Registry) {
    // After a panic of a waker, the other holders must still be watched.
    while catch_unwind(AssertUnwindSafe(|| registry.look())).unwrap_or(true) {}
}
