//! Work that several wait for and nobody owns: it is done once, by a task, however many ask for it and whoever leaves.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::error::{Error, Result};

pub(crate) struct SharedTask<T> {
    done: OnceLock<Result<T>>,
    changed: Notify,
}

impl<T: Clone + Send + Sync + 'static> SharedTask<T> {
    /// Begins the work in this runtime. If that ends before the work does, the work has failed.
    pub(crate) fn start(runtime: &Handle, work: impl Future<Output = Result<T>> + Send + 'static) -> Arc<SharedTask<T>> {
        let task = Arc::new(SharedTask { done: OnceLock::new(), changed: Notify::new() });
        let finishes = Finishes(Arc::clone(&task));
        runtime.spawn(async move {
            let result = work.await;
            finishes.0.finish(result);
        });
        task
    }

    fn finish(&self, result: Result<T>) {
        let _ = self.done.set(result);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.get().is_some()
    }

    /// Waits for the result.
    pub(crate) async fn result(&self) -> Result<T> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = self.done.get() {
                return result.clone();
            }
            changed.await;
        }
    }
}

/// Ends the task also when its task is dropped with its runtime, or panics.
struct Finishes<T: Clone + Send + Sync + 'static>(Arc<SharedTask<T>>);

impl<T: Clone + Send + Sync + 'static> Drop for Finishes<T> {
    fn drop(&mut self) {
        if !self.0.is_done() {
            self.0.finish(Err(Error::unavailable("the runtime in which the connection was made has ended")));
        }
    }
}
