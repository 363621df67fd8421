//! One way to run: the caller's task polls a store's future inside the client's runtime.
//!
//! Sockets, timers and tasks that the future creates belong to the client's runtime, whatever
//! runtime the caller has, if any.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

use super::{Boxed, Core};
use crate::error::{Error, Result};
use crate::lease::wake;

/// Polls a future in the caller's task, with the client's runtime as the current one.
///
/// # Cancel safety
///
/// That of the future.
pub(crate) async fn inside<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut known: Option<(Waker, Waker)> = None;
    poll_fn(move |context| {
        let caller = context.waker();
        let (_, waker) = match &mut known {
            Some(known) if known.0.will_wake(caller) => known,
            known => known.insert((
                caller.clone(),
                Waker::from(Arc::new(CallerWaker(caller.clone()))),
            )),
        };
        let _inside = runtime.enter();
        future.as_mut().poll(&mut Context::from_waker(waker))
    })
    .await
}

/// The caller's waker, as the client's thread may call it: a panic in it must not end the task that
/// brings answers to others.
struct CallerWaker(Waker);

impl Wake for CallerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake(|| self.0.wake_by_ref());
    }
}

/// Turns a panic of a store into an error: neither the caller's task nor the client's thread ends
/// by it.
pub(super) fn caught<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Boxed<Result<T>> {
    let mut future = Box::pin(future);
    Box::pin(poll_fn(move |context| {
        catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Err(broken_off())))
    }))
}

pub(crate) fn broken_off() -> Error {
    Error::protocol("the store broke off in the middle of a request; this is a bug in the store")
}

/// A store's future that is run to its end: by the caller's task, or by the client's thread once
/// the caller has dropped it.
pub(super) struct ToTheEnd<T: Send + 'static> {
    core: Arc<Core>,
    future: Option<Boxed<Result<T>>>,
}

impl<T: Send + 'static> ToTheEnd<T> {
    pub(super) fn new(
        core: &Arc<Core>,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> ToTheEnd<T> {
        ToTheEnd {
            core: Arc::clone(core),
            future: Some(caught(future)),
        }
    }
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Some(future) = &mut self.future else {
            return Poll::Pending;
        };
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.core.spawn(async move { drop(future.await) });
        }
    }
}

/// Whether this thread can enter a runtime. A thread that runs its last destructors cannot.
pub(super) fn can_enter() -> bool {
    !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}
