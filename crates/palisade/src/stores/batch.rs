//! Requests that find others in flight wait for them, and go together: one request to the server for many callers.
//!
//! A single request goes at once, polled by its own caller. Batches run as tasks of the client's runtime. The number of requests in
//! flight is bounded; further ones queue, in order, urgent ones first.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Sends batches to the server.
pub(super) trait BatchExecutor: Send + Sync + 'static {
    type Request: Send + 'static;
    type Reply: Send + 'static;

    /// Whether a request may go with these. The effect of one must not depend on that of another.
    fn can_join(&self, batch: &[Self::Request], request: &Self::Request) -> bool;

    /// Whether a request goes before others that wait: it ends something.
    fn is_urgent(&self, request: &Self::Request) -> bool {
        let _ = request;
        false
    }

    /// Sends a batch: one reply for each request, in their order.
    fn execute(&self, batch: Vec<Self::Request>) -> impl Future<Output = Vec<Self::Reply>> + Send;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How many requests may be in flight before others wait to go together.
    pub(super) in_flight: usize,
    /// How many requests go together at most.
    pub(super) largest: usize,
    /// How many may be in flight where they cannot join each other, and so waiting would spare no request. At least `in_flight`.
    pub(super) apart: usize,
    /// After how long a request in flight does not hold up others any more: its server may hang, and another may not.
    pub(super) patience: Option<Duration>,
    /// Whether the future of a single request is woken by nothing but its reply. Then its slot is free with the wake-up, also if its
    /// caller is not polled; where not, `patience` bounds that.
    pub(super) reply_wakes: bool,
}

pub(super) struct Batcher<E: BatchExecutor> {
    executor: E,
    /// The client's runtime.
    runtime: Handle,
    limits: Limits,
    state: Mutex<State<E>>,
    /// Held by the batch whose replies are handed out.
    handing_out: tokio::sync::Mutex<()>,
}

struct State<E: BatchExecutor> {
    /// The requests in flight that others wait for, by number, and since when.
    slots: Vec<(u64, Instant)>,
    last_slot: u64,
    urgent: VecDeque<Queued<E>>,
    queued: VecDeque<Queued<E>>,
    /// Whether batches are being sent just now.
    sending: bool,
}

struct Queued<E: BatchExecutor> {
    request: E::Request,
    reply: oneshot::Sender<E::Reply>,
}

/// How a request goes.
enum Admitted<E: BatchExecutor> {
    Alone(E::Request, Slot<E>),
    Queued(oneshot::Receiver<E::Reply>),
}

/// Requests that go together.
struct Batch<E: BatchExecutor> {
    slot: u64,
    requests: Vec<E::Request>,
    replies: Vec<oneshot::Sender<E::Reply>>,
    /// Whether requests were left that could not join.
    left_some: bool,
}

impl<E: BatchExecutor> Batcher<E> {
    pub(super) fn new(executor: E, runtime: Handle, limits: Limits) -> Arc<Batcher<E>> {
        let state = State {
            slots: Vec::new(),
            last_slot: 0,
            urgent: VecDeque::new(),
            queued: VecDeque::new(),
            sending: false,
        };
        Arc::new(Batcher {
            executor,
            runtime,
            limits,
            state: Mutex::new(state),
            handing_out: tokio::sync::Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        locked(&self.state)
    }

    /// Sends a request, alone or with others, and waits for its reply; `None` when the client has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it is queued, the request is never sent. Dropped later, it may have arrived.
    pub(super) async fn ask(self: &Arc<Self>, request: E::Request) -> Option<E::Reply> {
        match self.admit(request) {
            Admitted::Alone(request, slot) => self.ask_alone(request, slot).await,
            // Boxed: the future of a single request needs no room for it.
            Admitted::Queued(reply) => Box::pin(self.wait_in_queue(reply)).await,
        }
    }

    fn admit(self: &Arc<Self>, request: E::Request) -> Admitted<E> {
        let mut state = self.lock();
        if state.slots.len() < self.limits.in_flight && state.is_empty() {
            return Admitted::Alone(
                request,
                Slot {
                    batcher: Arc::clone(self),
                    number: state.take_slot(),
                },
            );
        }
        let (sender, reply) = oneshot::channel();
        let queue = if self.executor.is_urgent(&request) {
            &mut state.urgent
        } else {
            &mut state.queued
        };
        queue.push_back(Queued {
            request,
            reply: sender,
        });
        Admitted::Queued(reply)
    }

    /// Sends a request in the caller's task. Where the reply wakes it, its slot is free as soon as the caller is woken, not only when the
    /// caller is polled: no other request depends on that.
    async fn ask_alone(&self, request: E::Request, slot: Slot<E>) -> Option<E::Reply> {
        let mut executed = pin!(self.executor.execute(vec![request]));
        let alone = Arc::new(Alone {
            slot: Mutex::new(Some(slot)),
            caller: Mutex::default(),
            reply_wakes: self.limits.reply_wakes,
        });
        let _frees = FreesOnDrop(&alone);
        let waker = Waker::from(Arc::clone(&alone));
        let replies = poll_fn(|context| {
            alone.set_caller(context.waker());
            executed.as_mut().poll(&mut Context::from_waker(&waker))
        });
        replies.await.pop()
    }

    async fn wait_in_queue(
        self: &Arc<Self>,
        mut reply: oneshot::Receiver<E::Reply>,
    ) -> Option<E::Reply> {
        let Some(patience) = self.limits.patience else {
            return reply.await.ok();
        };
        loop {
            tokio::select! {
                biased;
                reply = &mut reply => return reply.ok(),
                () = tokio::time::sleep(patience) => {
                    self.lock().forget_slow(patience);
                    self.send_next();
                }
            }
        }
    }

    /// Sends the next batches, as many as the limits allow; `false` when there is none.
    fn send_next(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        // Not one within the other: a runtime that has ended drops a batch at once, and the batch's slot calls this.
        if std::mem::replace(&mut state.sending, true) {
            return true;
        }
        let (mut any, mut limit) = (false, self.limits.in_flight);
        while state.slots.len() < limit
            && let Some(batch) = state.next(&self.executor, self.limits.largest)
        {
            (any, limit) = (
                true,
                if batch.left_some {
                    self.limits.apart
                } else {
                    self.limits.in_flight
                },
            );
            drop(state);
            self.send(batch);
            state = self.lock();
        }
        state.sending = false;
        any
    }

    fn send(
        self: &Arc<Self>,
        Batch {
            slot,
            requests,
            replies,
            ..
        }: Batch<E>,
    ) {
        // Here, not in the task: a runtime that has ended drops the task unseen.
        let slot = Slot {
            batcher: Arc::clone(self),
            number: slot,
        };
        self.runtime.spawn(async move {
            let batcher = Arc::clone(&slot.batcher);
            let answers = batcher.executor.execute(requests).await;
            // Replies to several batches may come at the same moment. They are handed out one batch after the other, and the next requests
            // of their callers leave in between: else all callers would work while the server waits, and all wait while it works.
            let _handing_out = batcher.handing_out.lock().await;
            if slot.pass_on() {
                tokio::task::yield_now().await;
            }
            for (reply, answer) in replies.into_iter().zip(answers) {
                // The caller may have left.
                drop(reply.send(answer));
            }
            tokio::task::yield_now().await;
        });
    }
}

impl<E: BatchExecutor> State<E> {
    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.queued.is_empty()
    }

    fn take_slot(&mut self) -> u64 {
        self.last_slot += 1;
        self.slots.push((self.last_slot, Instant::now()));
        self.last_slot
    }

    /// `false` when it was free already.
    fn free_slot(&mut self, number: u64) -> bool {
        let at = self.slots.iter().position(|(slot, _)| *slot == number);
        at.map(|at| self.slots.swap_remove(at)).is_some()
    }

    /// Requests that were in flight for so long do not hold up others.
    fn forget_slow(&mut self, patience: Duration) {
        self.slots.retain(|(_, since)| since.elapsed() < patience);
    }

    /// Takes the next batch. Requests that cannot join it keep their places.
    fn next(&mut self, executor: &E, largest: usize) -> Option<Batch<E>> {
        let (mut requests, mut replies, mut left_some) = (Vec::new(), Vec::new(), false);
        for queue in [&mut self.urgent, &mut self.queued] {
            let mut stay = VecDeque::new();
            // Not the whole queue for each batch.
            while requests.len() < largest && stay.len() < largest {
                let Some(queued) = queue.pop_front() else {
                    break;
                };
                if queued.reply.is_closed() {
                    continue;
                }
                if requests.is_empty() || executor.can_join(&requests, &queued.request) {
                    requests.push(queued.request);
                    replies.push(queued.reply);
                } else {
                    stay.push_back(queued);
                }
            }
            left_some |= !stay.is_empty();
            while let Some(queued) = stay.pop_back() {
                queue.push_front(queued);
            }
        }
        let slot = (!requests.is_empty()).then(|| self.take_slot())?;
        Some(Batch {
            slot,
            requests,
            replies,
            left_some,
        })
    }
}

/// A place among the requests in flight. When it is left, the next batch is sent.
struct Slot<E: BatchExecutor> {
    batcher: Arc<Batcher<E>>,
    number: u64,
}

impl<E: BatchExecutor> Slot<E> {
    /// Leaves the place; `true` when others go in its place.
    fn pass_on(&self) -> bool {
        let was_there = self.batcher.lock().free_slot(self.number);
        was_there && self.batcher.send_next()
    }
}

impl<E: BatchExecutor> Drop for Slot<E> {
    fn drop(&mut self) {
        self.pass_on();
    }
}

/// A single request in flight. Wakes its caller, and frees its slot.
struct Alone<E: BatchExecutor> {
    slot: Mutex<Option<Slot<E>>>,
    caller: Mutex<Option<Waker>>,
    reply_wakes: bool,
}

impl<E: BatchExecutor> Alone<E> {
    fn set_caller(&self, waker: &Waker) {
        let mut caller = locked(&self.caller);
        if !caller.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *caller = Some(waker.clone());
        }
    }

    fn free_slot(&self) {
        let slot = locked(&self.slot).take();
        drop(slot);
    }
}

impl<E: BatchExecutor> Wake for Alone<E> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.reply_wakes {
            self.free_slot();
        }
        let caller = locked(&self.caller).clone();
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

/// A caller that leaves, answered or not, does not keep its slot.
struct FreesOnDrop<'a, E: BatchExecutor>(&'a Alone<E>);

impl<E: BatchExecutor> Drop for FreesOnDrop<'_, E> {
    fn drop(&mut self) {
        self.0.free_slot();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
