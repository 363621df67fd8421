//! A task that begins in the caller's thread, and goes on there or in the client's.
//!
//! What it asks first is on its way before any thread is woken. When it is woken, usually by the client's thread with the answer, it is
//! lent to the caller, if he waits for it: he is woken in any case, and goes on with it himself. Whatever is not done by then is a
//! task of the client's runtime like any other.
//!
//! Nothing depends on what becomes of the caller. If he leaves, it goes on in the client's runtime; and if he does not look after
//! it in time, because his thread is blocked or nobody polls him any more, it does so as well.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Boxed;

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
                // It runs in whoever brings the answer to many, and is the user's: if it panics, nobody else hears of it.
                if catch_unwind(AssertUnwindSafe(|| caller.wake())).is_err() {
                    tracing::error!("the waker of a task that waits for a lock has panicked");
                }
            }
            State::Parked(task, None) => self.goes_on_there(state, task),
            other => *state = other,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Begins something that its caller does not wait for.
    fn begin(client: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        drop(Lender::of(client).begin(task));
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

    /// One that takes nothing back while a test runs, however slow the machine is.
    fn patient(client: &Runtime) -> Arc<Lender> {
        Lender::with_patience(client.handle(), Duration::from_secs(600))
    }

    /// A task that waits for its first wake, and tells in which thread it goes on.
    fn waits(client: &Runtime) -> (Going, oneshot::Sender<()>, oneshot::Receiver<ThreadId>) {
        let (wake, woken) = oneshot::channel::<()>();
        let (reply, brought) = oneshot::channel();
        let going = patient(client).begin(async move {
            woken.await.expect("woken");
            // By the client's clock, wherever that is.
            drop(tokio::time::timeout(Duration::from_secs(60), std::future::ready(())).await);
            let _ = reply.send(this_thread());
        });
        (going, wake, brought)
    }

    fn polled<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn who_waits_goes_on_with_it_himself() {
        let client = client();
        let (going, wake, brought) = waits(&client);
        let mut brings = Box::pin(going.brings(brought));
        assert!(polled(&mut brings).is_pending());
        wake.send(()).expect("it waits");
        assert_eq!(polled(&mut brings), Poll::Ready(Ok(this_thread())));
    }

    /// It is the user's, and runs in the thread that others depend on.
    #[test]
    fn a_waker_that_panics_is_nobody_elses_trouble() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a waker of the user's");
            }
        }
        let client = client();
        let (going, wake, brought) = waits(&client);
        let mut brings = Box::pin(going.brings(brought));
        assert!(brings.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
        wake.send(()).expect("it waits");
        assert_eq!(polled(&mut brings), Poll::Ready(Ok(this_thread())), "it is his as before");
    }

    /// A client that ends while something is lent leaves nothing of it behind.
    #[test]
    fn what_was_lent_does_not_outlive_its_client() {
        let client = client();
        let (wake, woken) = oneshot::channel::<()>();
        let (reply, brought) = oneshot::channel();
        let lender = patient(&client);
        let ended = Arc::downgrade(&lender);
        let going = lender.begin(async move {
            woken.await.expect("woken");
            let _ = reply.send(());
        });
        let mut brings = Box::pin(going.brings(brought));
        assert!(polled(&mut brings).is_pending());
        wake.send(()).expect("it waits");
        assert_eq!(polled(&mut brings), Poll::Ready(Ok(())));
        drop((brings, lender));
        // At once: nobody looks any more for what was left lying.
        client.shutdown_timeout(Duration::from_secs(30));
        assert!(ended.upgrade().is_none());
    }

    /// What takes more than one answer is the client's from the second on.
    #[test]
    fn it_is_lent_once() {
        let client = client();
        let (wake, woken) = oneshot::channel::<()>();
        let (wake_again, woken_again) = oneshot::channel::<()>();
        let (reply, brought) = oneshot::channel();
        let going = patient(&client).begin(async move {
            woken.await.expect("woken");
            let first = this_thread();
            woken_again.await.expect("woken again");
            let _ = reply.send((first, this_thread()));
        });
        let mut brings = Box::pin(going.brings(brought));
        assert!(polled(&mut brings).is_pending());
        wake.send(()).expect("it waits");
        assert!(polled(&mut brings).is_pending());
        wake_again.send(()).expect("it waits");
        let (first, second) = client.block_on(brings).expect("it brings something");
        assert_eq!(first, this_thread());
        assert_ne!(second, this_thread());
    }

    #[test]
    fn what_the_caller_leaves_lying_goes_on_there() {
        let client = client();
        let (told, hears) = std::sync::mpsc::channel();
        for leaves in [false, true] {
            let (wake, woken) = oneshot::channel::<()>();
            let (reply, brought) = oneshot::channel();
            let tell = told.clone();
            let going = Lender::of(client.handle()).begin(async move {
                woken.await.expect("woken");
                tell.send(this_thread()).expect("somebody listens");
                let _ = reply.send(());
            });
            let mut brings = Box::pin(going.brings(brought));
            assert!(polled(&mut brings).is_pending());
            wake.send(()).expect("it waits");
            // He was woken, and does not look; or he leaves.
            let brings = if leaves { None } else { Some(brings) };
            let thread = hears.recv_timeout(Duration::from_secs(30)).expect("it goes on without him");
            assert_ne!(thread, this_thread());
            if let Some(brings) = brings {
                assert_eq!(client.block_on(brings), Ok(()), "he finds it when he looks");
            }
        }
    }
}
