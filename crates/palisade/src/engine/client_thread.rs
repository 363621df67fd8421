//! The client's own thread: one small runtime for connections, keeper, waiting claims and releases.
//!
//! It is never joined and never blocks a drop. It ends by itself when the last guard is gone and
//! the last release is sent.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use tokio::runtime::{Builder, Handle};
use tokio_util::task::TaskTracker;

use crate::lease::keeper::Keeper;
use crate::lease::warden;

/// Starts the client's thread and the warden. The receiver is told when the thread has dropped the
/// store.
pub(super) fn start(keeper: Keeper, background: TaskTracker) -> io::Result<(Handle, Receiver<()>)> {
    let (ended, hears) = std::sync::mpsc::channel();
    let registry = Arc::clone(&keeper.registry);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let keeper = Arc::new(keeper);
    std::thread::Builder::new()
        .name("palisade".into())
        .spawn(move || {
            runtime.block_on(async move {
                let renewals = keeper.renewals.clone();
                keeper.keep().await;
                background.wait().await;
                renewals.wait().await;
            });
            // Drops the tasks that never end, and with them the last reference to the store.
            drop(runtime);
            let _ = ended.send(());
        })?;
    // Last: if anything above fails, nothing is left running.
    warden::start(registry)?;
    Ok((handle, hears))
}
