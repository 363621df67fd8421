//! Batches the requests of many callers: while enough requests are in flight, further ones queue,
//! and one request to the server carries all of them.
//!
//! A request that finds a free slot goes at once, polled by its own caller. Batches run as tasks of
//! the client's runtime. The number of requests in flight is bounded; the queue is in order, urgent
//! requests first.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Sends batches to the server.
pub(super) trait BatchExecutor: Send + Sync + 'static {
    type Request: Send + 'static;
    type Reply: Send + 'static;

    /// Whether a request may join this batch. The effect of one must not depend on that of another.
    fn can_join(&self, batch: &[Self::Request], request: &Self::Request) -> bool;

    /// Whether a request goes before others that wait, because it ends a claim.
    fn is_urgent(&self, request: &Self::Request) -> bool {
        let _ = request;
        false
    }

    /// Sends a batch: one reply for each request, in their order.
    fn execute(&self, batch: Vec<Self::Request>) -> impl Future<Output = Vec<Self::Reply>> + Send;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How many requests may be in flight before others queue.
    pub(super) in_flight: usize,
    /// The size of the largest batch.
    pub(super) largest: usize,
    /// The same while the queued requests cannot join each other: waiting would save no request.
    /// At least `in_flight`.
    pub(super) apart: usize,
    /// After how long a request in flight holds up others no more: its server may hang, and
    /// another may not.
    pub(super) patience: Option<Duration>,
    /// Whether only its reply wakes the future of a single request. Then the wake-up frees its
    /// slot, also if its caller is not polled; where not, `patience` bounds that.
    pub(super) reply_wakes: bool,
}

pub(super) struct Batcher<E: BatchExecutor> {
    executor: E,
    /// The client's runtime.
    runtime: Handle,
    limits: Limits,
    state: Mutex<State<E>>,
    /// Locked by the batch whose replies are handed out.
    handing_out: tokio::sync::Mutex<()>,
}

struct State<E: BatchExecutor> {
    /// The requests in flight that others wait for.
    in_flight: Vec<InFlight>,
    last_number: u64,
    urgent: VecDeque<Queued<E>>,
    queued: VecDeque<Queued<E>>,
    /// Whether batches are being sent just now.
    sending: bool,
}

struct InFlight {
    number: u64,
    since: Instant,
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

/// Requests that are sent as one.
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
            in_flight: Vec::new(),
            last_number: 0,
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

    /// Sends a request, alone or in a batch, and waits for its reply; `None` when the client has
    /// ended.
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
        if state.in_flight.len() < self.limits.in_flight && state.is_empty() {
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

    /// Sends a request in the caller's task. Where the reply wakes it, the wake-up frees its slot,
    /// whether or not the caller is polled.
    async fn ask_alone(&self, request: E::Request, slot: Slot<E>) -> Option<E::Reply> {
        let mut executed = pin!(self.executor.execute(vec![request]));
        let alone = Arc::new(Alone {
            slot: Mutex::new(Some(slot)),
            caller: AtomicWaker::new(),
            reply_wakes: self.limits.reply_wakes,
        });
        let _frees = FreesOnDrop(&alone);
        let waker = Waker::from(Arc::clone(&alone));
        let replies = poll_fn(|context| {
            alone.caller.register(context.waker());
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
        // No recursion: a runtime that has ended drops a batch at once, and the batch's slot calls
        // this.
        if std::mem::replace(&mut state.sending, true) {
            return true;
        }
        let (mut any, mut limit) = (false, self.limits.in_flight);
        while state.in_flight.len() < limit
            && let Some(batch) = state.next(&self.executor, self.limits.largest)
        {
            any = true;
            limit = if batch.left_some {
                self.limits.apart
            } else {
                self.limits.in_flight
            };
            drop(state);
            self.send(batch);
            state = self.lock();
        }
        state.sending = false;
        any
    }

    fn send(self: &Arc<Self>, batch: Batch<E>) {
        // Here, not in the task: a runtime that has ended drops the task without running it.
        let slot = Slot {
            batcher: Arc::clone(self),
            number: batch.slot,
        };
        self.runtime.spawn(async move {
            let batcher = Arc::clone(&slot.batcher);
            let answers = batcher.executor.execute(batch.requests).await;
            // Replies to several batches may come at the same moment. They are handed out one batch
            // after the other, and the next requests of their callers leave in between: else all
            // callers would work while the server waits, and all wait while it works.
            let _handing_out = batcher.handing_out.lock().await;
            if slot.pass_on() {
                tokio::task::yield_now().await;
            }
            for (reply, answer) in batch.replies.into_iter().zip(answers) {
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
        self.last_number += 1;
        self.in_flight.push(InFlight {
            number: self.last_number,
            since: Instant::now(),
        });
        self.last_number
    }

    /// `false` when it was free already.
    fn free_slot(&mut self, number: u64) -> bool {
        let at = self.in_flight.iter().position(|one| one.number == number);
        at.map(|at| self.in_flight.swap_remove(at)).is_some()
    }

    /// Frees the slots of requests that have been in flight for so long.
    fn forget_slow(&mut self, patience: Duration) {
        self.in_flight.retain(|one| one.since.elapsed() < patience);
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

/// The slot of a request in flight. When it is freed, the next batch is sent.
struct Slot<E: BatchExecutor> {
    batcher: Arc<Batcher<E>>,
    number: u64,
}

impl<E: BatchExecutor> Slot<E> {
    /// Frees the slot; `true` when others go instead.
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
    caller: AtomicWaker,
    reply_wakes: bool,
}

impl<E: BatchExecutor> Alone<E> {
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
        self.caller.wake();
    }
}

/// Frees the slot of a caller that leaves, answered or not.
struct FreesOnDrop<'a, E: BatchExecutor>(&'a Alone<E>);

impl<E: BatchExecutor> Drop for FreesOnDrop<'_, E> {
    fn drop(&mut self) {
        self.0.free_slot();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
