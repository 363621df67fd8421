//! A task that begins in the caller's thread and goes on in the client's.
//!
//! What it asks first is on its way before any thread is woken. From its first wake on, which usually comes from the client's thread with
//! the answer, it is a task of the client's runtime like any other: nothing depends on what becomes of the caller.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

use super::Boxed;

/// Runs a task, from here on.
pub(super) fn begin(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    // A thread that is just ending has no place for a runtime any more.
    if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
        drop(runtime.spawn(task));
        return;
    }
    let mut task: Boxed<()> = Box::pin(task);
    let begun = Arc::new(Begun { runtime: runtime.clone(), state: Mutex::new(State::Here) });
    let waker = Waker::from(Arc::clone(&begun));
    // Whatever it starts or sleeps by belongs to the client's runtime.
    let inside = runtime.enter();
    // As in any task, a panic ends this one only. It may run in a drop while another panic unwinds.
    let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut Context::from_waker(&waker))));
    drop(inside);
    if let Ok(Poll::Pending) = polled {
        begun.goes_on_later(task);
    }
}

struct Begun {
    runtime: Handle,
    state: Mutex<State>,
}

enum State {
    /// It is polled in the caller's thread.
    Here,
    /// The same, and it was woken meanwhile.
    Woken,
    /// It waits to be woken.
    Parked(Boxed<()>),
    /// It is a task of the client's runtime.
    There,
}

impl Begun {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_on_later(&self, task: Boxed<()>) {
        let mut state = self.state();
        match &*state {
            State::Here => *state = State::Parked(task),
            State::Woken | State::Parked(_) | State::There => {
                *state = State::There;
                drop(state);
                drop(self.runtime.spawn(task));
            }
        }
    }
}

impl Wake for Begun {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state();
        let parked = match &*state {
            State::Here => {
                *state = State::Woken;
                None
            }
            State::Parked(_) => Some(std::mem::replace(&mut *state, State::There)),
            State::Woken | State::There => None,
        };
        drop(state);
        // Without the lock: a runtime that has ended drops the task while it is given to it.
        if let Some(State::Parked(task)) = parked {
            drop(self.runtime.spawn(task));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;

    use super::*;

    fn client() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
    }

    fn this_thread() -> ThreadId {
        std::thread::current().id()
    }

    #[test]
    fn it_begins_here_and_goes_on_there() {
        let client = client();
        let (wake, woken) = oneshot::channel::<()>();
        let (ended, end) = std::sync::mpsc::channel();
        let begun = Arc::new(Mutex::new(None));
        let begins = Arc::clone(&begun);
        begin(client.handle(), async move {
            *begins.lock().expect("no panic") = Some(this_thread());
            woken.await.expect("woken");
            // By the client's clock: this thread has none.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            ended.send(this_thread()).expect("somebody listens");
        });
        assert_eq!(*begun.lock().expect("no panic"), Some(this_thread()), "before anybody was woken");
        wake.send(()).expect("it waits");
        assert_ne!(end.recv().expect("it ends"), this_thread());
    }

    #[test]
    fn one_that_is_woken_while_it_begins_goes_on() {
        let client = client();
        let (ended, end) = std::sync::mpsc::channel();
        begin(client.handle(), async move {
            tokio::task::yield_now().await;
            ended.send(()).expect("somebody listens");
        });
        end.recv().expect("it ends");
    }

    #[test]
    fn one_that_panics_or_is_forgotten_is_dropped() {
        let client = client();
        let (dropped, drops) = std::sync::mpsc::channel::<()>();
        let held = dropped.clone();
        begin(client.handle(), async move {
            let _held = held;
            panic!("on purpose");
        });
        let (forgets, forgotten) = oneshot::channel::<()>();
        begin(client.handle(), async move {
            let _held = dropped;
            drop(forgotten.await);
        });
        // The client ends first: what would go on there does not.
        client.shutdown_background();
        drop(forgets);
        assert!(drops.recv().is_err(), "all of it is gone");
    }
}
