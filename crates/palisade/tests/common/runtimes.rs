//! Claims that begin in one runtime and go on elsewhere.

use std::pin::Pin;
use std::task::Poll;

use palisade::{Client, Guard, Mutex, Result};
use tokio::runtime::{Builder, Runtime};

use super::actors::in_line;

pub fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub fn one_worker() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

pub type Acquiring = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

pub fn acquiring(mutex: &Mutex) -> Acquiring {
    let mutex = mutex.clone();
    Box::pin(async move { mutex.acquire().await })
}

/// Polls once, and leaves.
pub async fn poll_once(future: &mut Acquiring) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

/// Begins a claim in this runtime, and leaves the runtime when the claim is on its way or in line.
pub fn begin_in(runtime: &Runtime, future: &mut Acquiring) {
    runtime.block_on(async {
        assert!(!poll_once(future).await, "it cannot be ready at once");
    });
}

/// Drives a claim until it stands in line.
pub async fn poll_until_in_line(moved: &mut Acquiring, outside: &Client, name: &str) {
    let drive = std::future::poll_fn(|context| match moved.as_mut().poll(context) {
        Poll::Ready(_) => panic!("the name is held"),
        Poll::Pending => Poll::<()>::Pending,
    });
    tokio::select! {
        () = drive => {}
        () = in_line(outside, name, 1) => {}
    }
}

/// Runs on a thread of its own: a runtime must not be dropped or blocked on inside of another.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}
