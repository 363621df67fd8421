//! A task that begins in the caller's thread, and goes on there or in the client's.
//!
//! What it asks first is on its way before any thread is woken. When it is woken, usually by the client's thread with the answer, it is
//! lent to the caller, if he waits for it: he is woken in any case, and goes on with it himself. Whatever is not done by then is a
//! task of the client's runtime like any other.
//!
//! Nothing depends on what becomes of the caller. If he leaves, it goes on in the client's runtime; and if he does not look after
//! it in time, because his thread is blocked or nobody polls him any more, it does so as well.

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Boxed;
use crate::lease::wake;

/// For so long, and at most twice as long, a caller may leave lying what was lent to him. Others may wait for it.
const PATIENCE: Duration = Duration::from_millis(20);

/// What was lent to callers, and where it goes on without them.
pub(super) struct Lender {
    runtime: Handle,
    patience: Duration,
    lent: Mutex<Lent>,
}

#[derive(Default)]
struct Lent {
    /// Since the last look. Nothing is lent without a caller, who has it: one that has left has seen to it.
    lately: Vec<Weak<Begun>>,
    /// Before that.
    earlier: Vec<Weak<Begun>>,
    /// Whether somebody will look.
    is_seen_to: bool,
}

impl Lender {
    pub(super) fn of(runtime: &Handle) -> Arc<Lender> {
        Lender::with_patience(runtime, PATIENCE)
    }

    fn with_patience(runtime: &Handle, patience: Duration) -> Arc<Lender> {
        Arc::new(Lender { runtime: runtime.clone(), patience, lent: Mutex::default() })
    }

    /// Runs a task, from here on.
    pub(super) fn begin(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) -> Going {
        let begun = Arc::new(Begun { lender: Arc::clone(self), state: Mutex::new(State::Here) });
        begun.poll_here(Box::pin(task));
        Going(Some(begun))
    }

    fn notes(self: &Arc<Self>, begun: &Arc<Begun>) {
        let mut lent = locked(&self.lent);
        lent.lately.push(Arc::downgrade(begun));
        let is_seen_to = std::mem::replace(&mut lent.is_seen_to, true);
        drop(lent);
        if !is_seen_to {
            self.runtime.spawn(Arc::clone(self).look());
        }
    }

    /// Takes back what callers have left lying, until nothing is lent any more.
    async fn look(self: Arc<Self>) {
        let mut goes_on = true;
        while goes_on {
            tokio::time::sleep(self.patience).await;
            let overdue = {
                let mut lent = locked(&self.lent);
                let lately = std::mem::take(&mut lent.lately);
                goes_on = !lately.is_empty();
                lent.is_seen_to = goes_on;
                std::mem::replace(&mut lent.earlier, lately)
            };
            overdue.iter().filter_map(Weak::upgrade).for_each(|begun| begun.take_back());
        }
    }
}

/// The caller's side of a task.
pub(crate) struct Going(Option<Arc<Begun>>);

impl Going {
    /// One that the caller has no part in.
    pub(super) fn elsewhere() -> Going {
        Going(None)
    }

    /// Waits for what the task brings.
    pub(crate) async fn brings<T>(mut self, mut brought: oneshot::Receiver<T>) -> Result<T, oneshot::error::RecvError> {
        std::future::poll_fn(|context| {
            if self.0.as_ref().is_some_and(|begun| begun.is_awaited(context.waker())) {
                return Poll::Pending;
            }
            self.0 = None;
            Pin::new(&mut brought).poll(context)
        })
        .await
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        if let Some(begun) = self.0.take() {
            begun.is_left();
        }
    }
}

struct Begun {
    lender: Arc<Lender>,
    state: Mutex<State>,
}

enum State {
    /// It is polled in the caller's thread.
    Here,
    /// The same, and it was woken meanwhile.
    Woken,
    /// It waits to be woken, and perhaps the caller with it.
    Parked(Boxed<()>, Option<Waker>),
    /// It was woken, and the caller with it: he goes on with it.
    Lent(Boxed<()>),
    /// It is a task of the client's runtime, or done.
    There,
}

impl Begun {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Polls it in the caller's thread. From its next wake on it is not the caller's, unless he waits for that.
    fn poll_here(self: &Arc<Self>, mut task: Boxed<()>) {
        // A thread that is just ending has no place for a runtime any more.
        if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
            return self.goes_on_there(self.state(), task);
        }
        let waker = Waker::from(Arc::clone(self));
        // Whatever it starts or sleeps by belongs to the client's runtime.
        let inside = self.lender.runtime.enter();
        // As in any task, a panic ends this one only. It may run in a drop while another panic unwinds.
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut Context::from_waker(&waker))));
        drop(inside);
        let mut state = self.state();
        match (polled, &*state) {
            (Ok(Poll::Pending), State::Here) => *state = State::Parked(task, None),
            (Ok(Poll::Pending), _) => self.goes_on_there(state, task),
            (Ok(Poll::Ready(())) | Err(_), _) => *state = State::There,
        }
    }

    /// Without the lock: a runtime that has ended drops the task while it is given to it.
    fn goes_on_there(&self, mut state: MutexGuard<'_, State>, task: Boxed<()>) {
        *state = State::There;
        drop(state);
        drop(self.lender.runtime.spawn(task));
    }

    /// The caller waits; `false` when he has no part in it any more.
    fn is_awaited(self: &Arc<Self>, caller: &Waker) -> bool {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Here) {
            State::Parked(task, known) => {
                let known = known.filter(|known| known.will_wake(caller)).unwrap_or_else(|| caller.clone());
                *state = State::Parked(task, Some(known));
                true
            }
            State::Lent(task) => {
                drop(state);
                self.poll_here(task);
                false
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// The caller does not wait any more.
    fn is_left(&self) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::There) {
            State::Parked(task, _) => *state = State::Parked(task, None),
            State::Lent(task) => self.goes_on_there(state, task),
            other => *state = other,
        }
    }

    /// The caller has not looked after it.
    fn take_back(&self) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::There) {
            State::Lent(task) => self.goes_on_there(state, task),
            other => *state = other,
        }
    }
}

impl Wake for Begun {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Woken) {
            State::Here | State::Woken => {}
            State::Parked(task, Some(caller)) => {
                *state = State::Lent(task);
                drop(state);
                self.lender.notes(self);
                // In the thread that brings the answers to many.
                wake(|| caller.wake());
            }
            State::Parked(task, None) => self.goes_on_there(state, task),
            other => *state = other,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
