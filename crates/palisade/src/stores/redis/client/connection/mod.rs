//! One connection to one server.
//!
//! A caller writes its request to the socket by itself, as far as the socket takes it. One task per
//! connection, in the client's runtime, writes the rest, reads all replies and completes the
//! requests: no request depends on another caller being polled.
//!
//! ```text
//! caller ── write ──► socket ──► server ──► socket ── read ──► connection task ── oneshot ──► caller
//!    └─ the rest ──► connection task ─┘                              └── message ──► PushHandler
//! ```

mod connect;
mod reader;
mod resp;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

pub(super) use connect::connect;
use redis::{RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::PushHandler;

/// The half of a socket that is written to.
type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;
/// The half that is read from.
type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;

/// With so many requests in flight, callers leave the writing to the connection task: it writes all
/// that has come together in one system call.
const WRITE_TOGETHER: usize = 4;

pub(super) struct Connection(Arc<Shared>);

struct Shared {
    outgoing: Mutex<Outgoing>,
    /// Wakes the connection task: callers left bytes to write.
    unwritten: Notify,
    /// How many requests were answered.
    answered: AtomicU64,
    /// Fires when the connection is over.
    closed: CancellationToken,
    /// Whether the server or the network ended it.
    ended_by_server: AtomicBool,
}

/// How far the server has come with the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// How many requests were answered.
    pub(crate) answered: u64,
    /// Whether any request is in flight.
    pub(crate) in_flight: bool,
}

struct Outgoing {
    /// `None` once the connection is closed.
    socket: Option<WriteHalf>,
    unwritten: Vec<u8>,
    /// Whether the connection task has to write or to flush. Then callers leave the socket alone:
    /// it remembers one waker, and that must be the task's.
    rest: bool,
    /// The requests in flight, in the order of their replies.
    in_flight: VecDeque<Pending>,
}

/// Requests in flight that one caller sent together: one, or several.
struct Pending {
    /// How many replies are to come.
    left: usize,
    values: Vec<Value>,
    caller: oneshot::Sender<Vec<Value>>,
    /// Whether the reply is that a subscription to a shard has ended. A server says the same without
    /// being asked when the shard moves.
    leaves_shard: bool,
}

impl Connection {
    /// Starts the task of a connection, in the runtime that this runs in.
    fn start(
        reader: ReadHalf,
        writer: WriteHalf,
        handler: Option<Arc<dyn PushHandler>>,
    ) -> Connection {
        let outgoing = Outgoing {
            socket: Some(writer),
            unwritten: Vec::new(),
            rest: false,
            in_flight: VecDeque::new(),
        };
        let shared = Arc::new(Shared {
            outgoing: Mutex::new(outgoing),
            unwritten: Notify::new(),
            answered: AtomicU64::new(0),
            closed: CancellationToken::new(),
            ended_by_server: AtomicBool::new(false),
        });
        let closes = ClosesOnDrop(Arc::clone(&shared));
        tokio::spawn(async move {
            let shared = &closes.0;
            let error = tokio::select! {
                biased;
                error = reader::read(reader, shared, handler.as_deref()) => error,
                error = write_rest(shared) => error.into(),
                () = shared.closed.cancelled() => return,
            };
            tracing::debug!(%error, "a connection has ended");
            shared.ended_by_server.store(true, Ordering::Release);
        });
        Connection(shared)
    }

    /// Sends a request when this is first polled, and waits for its reply: it may be an error, or
    /// have errors in it. Nothing is sent on a closed connection.
    pub(super) async fn request(&self, request: &[u8]) -> RedisResult<Value> {
        let mut replies = self.requests(request, 1).await?;
        replies.pop().ok_or_else(unanswered)
    }

    /// Ends a subscription to a shard: the same for `SUNSUBSCRIBE`.
    pub(super) async fn leave_shard(&self, request: &[u8]) -> RedisResult<Value> {
        let mut replies = self.send_and_wait(request, 1, true).await?;
        replies.pop().ok_or_else(unanswered)
    }

    /// The same for several requests, as one text.
    pub(super) async fn requests(&self, requests: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        self.send_and_wait(requests, count, false).await
    }

    async fn send_and_wait(
        &self,
        requests: &[u8],
        count: usize,
        leaves_shard: bool,
    ) -> RedisResult<Vec<Value>> {
        let (caller, replies) = oneshot::channel();
        self.send(
            requests,
            Pending {
                left: count,
                values: Vec::with_capacity(count),
                caller,
                leaves_shard,
            },
        )?;
        replies.await.map_err(|_| unanswered())
    }

    fn send(&self, request: &[u8], pending: Pending) -> RedisResult<()> {
        let mut outgoing = self.0.lock();
        let at_once = !outgoing.rest && outgoing.in_flight.len() < WRITE_TOGETHER;
        let Some(socket) = &mut outgoing.socket else {
            return Err(unanswered());
        };
        let written = if at_once {
            write_now(socket, request)
        } else {
            Written::Part(0)
        };
        outgoing.in_flight.push_back(pending);
        match written {
            Written::All => return Ok(()),
            Written::Part(length) => outgoing.unwritten.extend_from_slice(&request[length..]),
            Written::NotFlushed => {}
        }
        outgoing.rest = true;
        drop(outgoing);
        self.0.unwritten.notify_one();
        Ok(())
    }

    /// Fails all requests in flight, and sends nothing any more.
    pub(super) fn close(&self) {
        self.0.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.closed.is_cancelled()
    }

    /// Completes when the connection is over; `true` when the server or the network ended it.
    pub(super) async fn ended(&self) -> bool {
        self.0.closed.cancelled().await;
        self.0.ended_by_server.load(Ordering::Acquire)
    }

    pub(super) fn progress(&self) -> Progress {
        Progress {
            in_flight: !self.0.lock().in_flight.is_empty(),
            answered: self.0.answered.load(Ordering::Acquire),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let in_flight = {
            let mut outgoing = self.lock();
            outgoing.socket = None;
            std::mem::take(&mut outgoing.in_flight)
        };
        self.closed.cancel();
        // Outside of the lock: this wakes the callers.
        drop(in_flight);
    }
}

/// Closes the connection when its task ends, also when it is dropped with its runtime.
struct ClosesOnDrop(Arc<Shared>);

impl Drop for ClosesOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Writes the rest of the requests that callers could not write whole. Returns when the connection
/// has failed.
async fn write_rest(shared: &Shared) -> io::Error {
    loop {
        shared.unwritten.notified().await;
        if let Err(error) = poll_fn(|context| shared.lock().poll_write_rest(context)).await {
            return error;
        }
    }
}

impl Outgoing {
    fn poll_write_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(socket) = &mut self.socket else {
            return Poll::Ready(Ok(()));
        };
        let mut written = 0;
        let ended = loop {
            if written == self.unwritten.len() {
                break Pin::new(socket).poll_flush(context);
            }
            match Pin::new(&mut *socket).poll_write(context, &self.unwritten[written..]) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(more)) => written += more,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.unwritten.drain(..written);
        self.rest = ended.is_pending();
        ended
    }
}

/// How much of a request the socket took at once.
enum Written {
    All,
    Part(usize),
    /// TLS took all of it and has not sent all of it.
    NotFlushed,
}

/// Writes as much of a request as the socket takes at once. An error is left to the connection
/// task, which meets it too.
fn write_now(socket: &mut WriteHalf, request: &[u8]) -> Written {
    let mut context = Context::from_waker(Waker::noop());
    let mut written = 0;
    while written < request.len() {
        match Pin::new(&mut *socket).poll_write(&mut context, &request[written..]) {
            Poll::Ready(Ok(more)) if more > 0 => written += more,
            _ => return Written::Part(written),
        }
    }
    match Pin::new(socket).poll_flush(&mut context) {
        Poll::Ready(Ok(())) => Written::All,
        _ => Written::NotFlushed,
    }
}

/// The error of a request that has no reply.
pub(super) fn unanswered() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionAborted, "no reply in time").into()
}
