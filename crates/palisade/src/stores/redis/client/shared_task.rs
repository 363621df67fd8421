//! Work that is done once, by a task of its own, for all callers that need it at that time.

use tokio::sync::watch;

use crate::error::{Error, Result};

/// A caller that leaves, or is not polled, does not stop it for the others.
#[derive(Clone)]
pub(super) struct SharedTask<T>(watch::Receiver<Option<Result<T>>>);

impl<T: Clone + Send + Sync + 'static> SharedTask<T> {
    pub(super) fn spawn(work: impl Future<Output = Result<T>> + Send + 'static) -> SharedTask<T> {
        let (tell, told) = watch::channel(None);
        tokio::spawn(async move {
            let result = work.await;
            let _ = tell.send(Some(result));
        });
        SharedTask(told)
    }

    /// Also when the task was dropped with its runtime, or panicked.
    pub(super) fn is_done(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }

    pub(super) async fn result(&self) -> Result<T> {
        let mut told = self.0.clone();
        let result = told
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|result| result.clone());
        result.unwrap_or_else(|| Err(Error::unavailable("the client has ended")))
    }
}
