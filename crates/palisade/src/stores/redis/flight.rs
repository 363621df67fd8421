//! Work that several wait for and nobody owns: it is done once, by a task, however many ask for it and whoever leaves.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::error::{Error, Result};

pub(super) struct Flight<T> {
    landed: OnceLock<Result<T>>,
    changed: Notify,
}

impl<T: Clone + Send + Sync + 'static> Flight<T> {
    /// Begins the work in this runtime. If that ends before the work does, the work has failed.
    pub(super) fn start(runtime: &Handle, work: impl Future<Output = Result<T>> + Send + 'static) -> Arc<Flight<T>> {
        let flight = Arc::new(Flight { landed: OnceLock::new(), changed: Notify::new() });
        let lands = Lands(Arc::clone(&flight));
        runtime.spawn(async move {
            let result = work.await;
            lands.0.land(result);
        });
        flight
    }

    fn land(&self, result: Result<T>) {
        let _ = self.landed.set(result);
        self.changed.notify_waiters();
    }

    pub(super) fn has_landed(&self) -> bool {
        self.landed.get().is_some()
    }

    /// Waits for the result.
    pub(super) async fn result(&self) -> Result<T> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = self.landed.get() {
                return result.clone();
            }
            changed.await;
        }
    }
}

/// Ends the flight also when its task is dropped with its runtime, or panics.
struct Lands<T: Clone + Send + Sync + 'static>(Arc<Flight<T>>);

impl<T: Clone + Send + Sync + 'static> Drop for Lands<T> {
    fn drop(&mut self) {
        if !self.0.has_landed() {
            self.0.land(Err(Error::unavailable("the runtime in which the connection was made has ended")));
        }
    }
}
