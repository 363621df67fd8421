//! One connection as a connection: whoever asks writes the request himself, and if he is the only one who waits for an answer, he reads it
//! himself. For all others one task, the porter, reads what the server says.
//!
//! The client library's own connection hands every request to its task, which writes it, reads the answer and hands that back. Here
//! no task is woken for one who asks alone, nor is another thread. Only where many are on their way the porter writes what has come
//! together, in one go, and reads for all.
//!
//! ```text
//! something can be read ─► bell ─┬─► whoever asks alone
//!                                └─► else the porter
//! ```
//!
//! Nobody depends on whether another looks for his answer: whoever asks second calls the porter, and whoever watches over the
//! connection reminds him, so that what is pushed to others is not kept for long by one who was woken and does not look.

mod caller;
mod halves;
mod reader;
#[cfg(test)]
mod tests;
mod wakeups;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};

use redis::{RedisError, RedisResult, Value};
use tokio::sync::oneshot;

use self::caller::Asker;
use self::halves::{Inward, Outward, Reader, Waiting, Writer, write_now};
use self::reader::Porter;
use self::wakeups::{Bell, Turn};

/// Who hears what a server says by itself. Called by whoever reads: must not block.
pub(crate) trait Listens: Send + Sync + 'static {
    /// A message came on a channel.
    fn message(&self, channel: &[u8], payload: &[u8]);
    /// The connection has ended: by the server or the network, or else with the runtime it lived in. Not when it was closed here.
    fn ended(&self, by_server: bool);
    /// It is over, for whatever reason.
    fn over(&self);
}

/// Of a connection that nothing but answers comes on.
pub(crate) struct Deaf;

impl Listens for Deaf {
    fn message(&self, _: &[u8], _: &[u8]) {}
    fn ended(&self, _: bool) {}
    fn over(&self) {}
}

/// How many may be on their way before the porter writes: more of them cost less in one go.
const BY_HAND: usize = 4;

pub(crate) struct Connection(Arc<Shared>);

struct Shared {
    outward: Mutex<Outward>,
    inward: Mutex<Inward>,
    /// What is woken when something can be read: a [`Bell`].
    rings: Waker,
    bell: Arc<Bell>,
    listens: Box<dyn Listens>,
    // What the porter looks at without the lock, which somebody who writes has for a while.
    is_closed: AtomicBool,
    /// Whether something is left for the porter to write.
    is_left: AtomicBool,
}

impl Shared {
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let waiting = {
            let mut outward = locked(&self.outward);
            outward.writer = None;
            std::mem::take(&mut outward.waiting)
        };
        // They hear that nobody answers.
        drop(waiting);
        self.bell.wake_asker(None);
        self.bell.call_porter();
    }

    /// Reads what there is, and passes it on. `Pending`: nothing more has come yet, and the bell rings when it does.
    fn read(&self, inward: &mut Inward) -> Poll<Result<(), RedisError>> {
        let mut context = Context::from_waker(&self.rings);
        let read = inward.read_once(&mut context, &self.outward);
        inward.pass_on(&*self.listens);
        read
    }

    /// Reads for one who asks, until nothing more is there: only then the bell rings for what comes next. `false` when nothing was
    /// there at all. Where somebody else reads just now, and may have looked too early, the porter looks again. What is wrong with
    /// the connection the porter sees to as well.
    fn read_for_asker(&self, turn: Turn) -> bool {
        let mut inward = match self.inward.try_lock() {
            Ok(inward) => inward,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.bell.call_porter();
                return false;
            }
        };
        let mut has_read = false;
        loop {
            match self.read(&mut inward) {
                Poll::Ready(Ok(())) => has_read = true,
                Poll::Pending => break,
                Poll::Ready(Err(_)) => {
                    inward.has_ended = true;
                    self.bell.call_porter();
                    break;
                }
            }
        }
        drop(inward);
        if has_read {
            self.bell.wake_asker(Some(turn));
        }
        has_read
    }
}

impl Connection {
    /// A connection over a connection. Its porter is a task of the runtime that this runs in.
    pub(crate) fn open(reader: Reader, writer: Writer, listens: impl Listens) -> Connection {
        let bell = Arc::new(Bell::default());
        let shared = Arc::new(Shared {
            outward: Mutex::new(Outward { writer: Some(writer), unwritten: Vec::new(), waiting: VecDeque::new() }),
            inward: Mutex::new(Inward::of(reader)),
            rings: Waker::from(Arc::clone(&bell)),
            bell,
            listens: Box::new(listens),
            is_closed: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
        });
        let mut porter = Porter::of(&shared);
        tokio::spawn(async move { poll_fn(|context| porter.work(context)).await });
        Connection(shared)
    }

    /// Sends a request when this is first polled, and waits for its answer: it may be an error, or have errors in it. Nothing is sent
    /// on a connection that is closed.
    pub(crate) async fn answer(&self, request: &[u8]) -> RedisResult<Value> {
        let (reply, answer) = oneshot::channel();
        let turn = self.send(request, Waiting::One(reply))?;
        let mut asker = Asker::of(&self.0, turn, answer);
        poll_fn(|context| asker.poll(context)).await.map_err(|_| unanswered())
    }

    /// The same for several requests, as one text.
    pub(crate) async fn answers(&self, requests: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        let (reply, answers) = oneshot::channel();
        self.send(requests, Waiting::Many(count, Vec::with_capacity(count), reply))?;
        answers.await.map_err(|_| unanswered())
    }

    fn send(&self, request: &[u8], waiting: Waiting) -> RedisResult<Turn> {
        let mut outward = locked(&self.0.outward);
        // What others have left, or many will write, goes in one go.
        let by_hand = outward.unwritten.is_empty() && outward.waiting.len() < BY_HAND;
        let Some(writer) = &mut outward.writer else { return Err(unanswered()) };
        let one = matches!(waiting, Waiting::One(_));
        let written = if by_hand { write_now(writer, request) } else { Some(0) };
        outward.waiting.push_back(waiting);
        let turn = self.0.bell.wait(one && outward.waiting.len() == 1);
        if written == Some(request.len()) {
            return Ok(turn);
        }
        outward.unwritten.extend_from_slice(&request[written.unwrap_or(request.len())..]);
        self.0.is_left.store(true, Ordering::Release);
        drop(outward);
        self.0.bell.call_porter();
        Ok(turn)
    }

    /// Whoever waits for an answer has none, and nothing is sent any more.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Has the porter look at what somebody was woken for and has not looked at. To be called from time to time.
    pub(crate) fn remind(&self) {
        self.0.bell.remind();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }
}

/// What there is to say when no answer comes.
pub(crate) fn unanswered() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionAborted, "no answer in time").into()
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
