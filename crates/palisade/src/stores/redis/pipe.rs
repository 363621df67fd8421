//! One connection as a pipe: whoever asks writes the request himself, and one task, the porter, reads what the server says.
//!
//! The client library's own connection hands every request to its task, which writes it. Here that task is not woken for it, nor is
//! another thread: of the switches that a request costs, half are gone. Only where many are on their way the porter writes what has
//! come together, in one go.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use redis::{RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::resp::{self, Said};

/// The end of a connection that is written to.
type Writer = Box<dyn AsyncWrite + Send + Unpin>;
/// The end that is read from.
type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// Who hears what a server says by itself. Called by the porter: must not block.
pub(super) trait Listens: Send + 'static {
    /// A message came on a channel.
    fn message(&self, channel: &[u8], payload: &[u8]);
    /// The connection has ended: by the server or the network, or else with the runtime it lived in. Not when it was closed here.
    fn ended(&self, by_server: bool);
    /// It is over, for whatever reason.
    fn over(&self);
}

/// Of a connection that nothing but answers comes on.
pub(super) struct Deaf;

impl Listens for Deaf {
    fn message(&self, _: &[u8], _: &[u8]) {}
    fn ended(&self, _: bool) {}
    fn over(&self) {}
}

/// How many may be on their way before the porter writes: more of them cost less in one go.
const BY_HAND: usize = 4;
/// How much is read at once, at first. A longer answer makes room for itself.
const ROOM: usize = 4 << 10;
/// Room that is given back when an answer has been read.
const TOO_MUCH_ROOM: usize = 256 << 10;

pub(super) struct Pipe(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    // What the porter looks at without the lock, which somebody who writes has for a while.
    is_closed: AtomicBool,
    /// Whether something is left for the porter to write.
    is_left: AtomicBool,
}

struct State {
    /// `None` once the pipe is closed.
    writer: Option<Writer>,
    /// What could not be written at once.
    unwritten: Vec<u8>,
    /// Who waits for an answer, in the order in which they come.
    waiting: VecDeque<Waiting>,
    porter: Option<Waker>,
}

enum Waiting {
    One(oneshot::Sender<Value>),
    /// For so many more.
    Many(usize, Vec<Value>, oneshot::Sender<Vec<Value>>),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let (waiting, porter) = {
            let mut state = self.lock();
            state.writer = None;
            (std::mem::take(&mut state.waiting), state.porter.take())
        };
        // They hear that nobody answers.
        drop(waiting);
        if let Some(porter) = porter {
            porter.wake();
        }
    }
}

impl Pipe {
    /// A pipe over a connection. Its porter is a task of the runtime that this runs in.
    pub(super) fn open(reader: Reader, writer: Writer, listens: impl Listens) -> Pipe {
        let state = State { writer: Some(writer), unwritten: Vec::new(), waiting: VecDeque::new(), porter: None };
        let shared = Shared { state: Mutex::new(state), is_closed: AtomicBool::new(false), is_left: AtomicBool::new(false) };
        let shared = Arc::new(shared);
        let mut porter = Porter {
            shared: Arc::clone(&shared),
            reader,
            listens,
            woken_by: None,
            read: vec![0; ROOM],
            filled: 0,
            said: Vec::new(),
            ended_by_server: false,
        };
        tokio::spawn(async move { poll_fn(|context| porter.work(context)).await });
        Pipe(shared)
    }

    /// Sends a request when this is first polled, and waits for its answer: it may be an error, or have errors in it. Nothing is sent
    /// on a pipe that is closed.
    pub(super) async fn answer(&self, request: &[u8]) -> RedisResult<Value> {
        let (reply, answer) = oneshot::channel();
        self.send(request, Waiting::One(reply))?;
        answer.await.map_err(|_| unanswered())
    }

    /// The same for several requests, as one text.
    pub(super) async fn answers(&self, requests: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        let (reply, answers) = oneshot::channel();
        self.send(requests, Waiting::Many(count, Vec::with_capacity(count), reply))?;
        answers.await.map_err(|_| unanswered())
    }

    fn send(&self, request: &[u8], waiting: Waiting) -> RedisResult<()> {
        let mut state = self.0.lock();
        // What others have left, or many will write, goes in one go.
        let by_hand = state.unwritten.is_empty() && state.waiting.len() < BY_HAND;
        let Some(writer) = &mut state.writer else { return Err(unanswered()) };
        let written = if by_hand { write_now(writer, request) } else { Some(0) };
        state.waiting.push_back(waiting);
        if written == Some(request.len()) {
            return Ok(());
        }
        state.unwritten.extend_from_slice(&request[written.unwrap_or(request.len())..]);
        self.0.is_left.store(true, Ordering::Release);
        let porter = state.porter.clone();
        drop(state);
        if let Some(porter) = porter {
            porter.wake();
        }
        Ok(())
    }

    /// Whoever waits for an answer has none, and nothing is sent any more.
    pub(super) fn close(&self) {
        self.0.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }
}

/// What there is to say when no answer comes.
pub(super) fn unanswered() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionAborted, "no answer in time").into()
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Writes a request at once, as far as that goes: how much of it. `None` when all of it was written, and some is not sent. What is
/// wrong with the connection the porter finds out.
fn write_now(writer: &mut Writer, request: &[u8]) -> Option<usize> {
    let mut context = Context::from_waker(Waker::noop());
    let mut written = 0;
    while written < request.len() {
        match Pin::new(&mut *writer).poll_write(&mut context, &request[written..]) {
            Poll::Ready(Ok(more)) if more > 0 => written += more,
            _ => return Some(written),
        }
    }
    match Pin::new(writer).poll_flush(&mut context) {
        Poll::Ready(Ok(())) => Some(written),
        _ => None,
    }
}

impl State {
    /// Writes what was left.
    fn write_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(writer) = &mut self.writer else { return Poll::Ready(Ok(())) };
        let mut written = 0;
        let ended = loop {
            if written == self.unwritten.len() {
                break Pin::new(writer).poll_flush(context);
            }
            match Pin::new(&mut *writer).poll_write(context, &self.unwritten[written..]) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(more)) => written += more,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.unwritten.drain(..written);
        ended
    }

    /// Whose answer this is.
    fn answered(&mut self, value: Value) -> Option<Answered> {
        match self.waiting.pop_front()? {
            Waiting::One(reply) => Some(Answered::One(reply, value)),
            Waiting::Many(left, mut values, reply) => {
                values.push(value);
                if left > 1 {
                    self.waiting.push_front(Waiting::Many(left - 1, values, reply));
                    return Some(Answered::NotYet);
                }
                Some(Answered::Many(reply, values))
            }
        }
    }
}

/// What is passed on once nobody is held up by it.
enum Answered {
    One(oneshot::Sender<Value>, Value),
    Many(oneshot::Sender<Vec<Value>>, Vec<Value>),
    NotYet,
    Message(Value, Value),
}

/// Reads what the server says, and writes what others could not.
struct Porter<L: Listens> {
    shared: Arc<Shared>,
    reader: Reader,
    listens: L,
    /// What it is woken by, as the state has it.
    woken_by: Option<Waker>,
    read: Vec<u8>,
    /// How much of it was read and not understood yet.
    filled: usize,
    said: Vec<Answered>,
    ended_by_server: bool,
}

impl<L: Listens> Porter<L> {
    /// Until the end of the connection.
    fn work(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.woken_by.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            self.woken_by = Some(context.waker().clone());
            self.shared.lock().porter = self.woken_by.clone();
        }
        while !self.shared.is_closed.load(Ordering::Acquire) {
            let carried = self.carry(context);
            self.pass_on();
            if let Err(error) = ready!(carried) {
                tracing::debug!(%error, "a connection has ended");
                self.ended_by_server = true;
                break;
            }
        }
        Poll::Ready(())
    }

    /// Writes what was left, reads once, and notes what was said.
    fn carry(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RedisError>> {
        if self.shared.is_left.load(Ordering::Acquire) {
            let mut state = self.shared.lock();
            if let Poll::Ready(written) = state.write_rest(context) {
                self.shared.is_left.store(false, Ordering::Release);
                written?;
            }
        }
        if self.filled == self.read.len() {
            self.read.resize(2 * self.filled, 0);
        }
        let mut room = ReadBuf::new(&mut self.read[self.filled..]);
        ready!(Pin::new(&mut self.reader).poll_read(context, &mut room))?;
        let came = room.filled().len();
        if came == 0 {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
        }
        self.filled += came;
        let mut begin = 0;
        let mut state = self.shared.lock();
        while let Some((said, length)) = resp::read(&self.read[begin..self.filled])? {
            begin += length;
            let answered = match said {
                Said::Answer(value) => state.answered(value),
                Said::Push(parts) => pushed(parts, &mut state),
            };
            match answered {
                Some(answered) => self.said.push(answered),
                None => return Poll::Ready(Err(io::Error::other("an answer came that nobody had asked for").into())),
            }
        }
        drop(state);
        self.read.copy_within(begin..self.filled, 0);
        self.filled -= begin;
        if self.filled == 0 && self.read.len() > TOO_MUCH_ROOM {
            self.read = vec![0; ROOM];
        }
        Poll::Ready(Ok(()))
    }

    fn pass_on(&mut self) {
        for answered in self.said.drain(..) {
            match answered {
                // Nobody may wait for it any more.
                Answered::One(reply, value) => drop(reply.send(value)),
                Answered::Many(reply, values) => drop(reply.send(values)),
                Answered::NotYet => {}
                Answered::Message(channel, payload) => {
                    if let (Value::BulkString(channel), Value::BulkString(payload)) = (channel, payload) {
                        self.listens.message(&channel, &payload);
                    }
                }
            }
        }
    }
}

/// A subscription is answered by a push. Of all that is pushed besides, only messages are for us.
fn pushed(parts: Vec<Value>, state: &mut State) -> Option<Answered> {
    let mut parts = parts.into_iter();
    match parts.next() {
        Some(Value::BulkString(kind)) if kind == b"message" => {
            Some(Answered::Message(parts.next().unwrap_or_default(), parts.next().unwrap_or_default()))
        }
        Some(Value::BulkString(kind)) if kind == b"subscribe" || kind == b"unsubscribe" => state.answered(Value::Okay),
        _ => Some(Answered::NotYet),
    }
}

impl<L: Listens> Drop for Porter<L> {
    fn drop(&mut self) {
        let closed_here = self.shared.is_closed.load(Ordering::Acquire);
        self.shared.close();
        self.listens.over();
        if !closed_here {
            self.listens.ended(self.ended_by_server);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use palisade_testkit::redis::Redis;
    use tokio::sync::mpsc;

    use super::super::address::Address;
    use super::super::dial::dial;
    use super::super::settings::Settings;
    use super::*;
    use crate::url::StoreUrl;

    const LONG: Duration = Duration::from_secs(30);

    /// Passes on what it hears; `None` at the end by the server, and nothing at any other.
    struct Ears(mpsc::UnboundedSender<Option<Vec<u8>>>);

    impl Listens for Ears {
        fn message(&self, _: &[u8], payload: &[u8]) {
            let _ = self.0.send(Some(payload.to_vec()));
        }

        fn ended(&self, by_server: bool) {
            if by_server {
                let _ = self.0.send(None);
            }
        }

        fn over(&self) {}
    }

    async fn pipe_to(server: &Redis) -> (Pipe, mpsc::UnboundedReceiver<Option<Vec<u8>>>) {
        let settings = Settings::read(StoreUrl::parse(&server.url()).unwrap()).unwrap();
        let (ears, heard) = mpsc::unbounded_channel();
        let address = Address::new("127.0.0.1", server.address().port());
        (dial(&settings, &address, Ears(ears)).await.unwrap(), heard)
    }

    fn echo(text: &[u8]) -> Vec<u8> {
        redis::cmd("ECHO").arg(text).get_packed_command()
    }

    async fn in_time<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(LONG, future).await.expect("it takes too long")
    }

    /// More than fits into the socket, so the porter writes the rest; and an answer that comes in many parts.
    #[tokio::test]
    async fn a_request_that_does_not_fit_at_once_arrives_whole_and_in_turn() {
        let server = Redis::start();
        let (pipe, _heard) = pipe_to(&server).await;
        let long: Vec<u8> = (0..16_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let (request, behind) = (echo(&long), echo(b"behind it"));
        let (first, second) = in_time(async { tokio::join!(pipe.answer(&request), pipe.answer(&behind)) }).await;
        assert!(first.unwrap() == Value::BulkString(long), "not what was sent");
        assert_eq!(second.unwrap(), Value::BulkString(b"behind it".into()));
    }

    #[tokio::test]
    async fn many_at_once_have_each_its_own_answer() {
        let server = Redis::start();
        let (pipe, _heard) = pipe_to(&server).await;
        let pipe = Arc::new(pipe);
        let ask = |number: u32| {
            let pipe = Arc::clone(&pipe);
            tokio::spawn(async move {
                let text = number.to_string().into_bytes();
                if number.is_multiple_of(3) {
                    let answers = pipe.answers(&[echo(&text), echo(b"and")].concat(), 2).await.unwrap();
                    assert_eq!(answers, [Value::BulkString(text), Value::BulkString(b"and".into())]);
                } else {
                    assert_eq!(pipe.answer(&echo(&text)).await.unwrap(), Value::BulkString(text));
                }
            })
        };
        let tasks: Vec<_> = (0..500).map(ask).collect();
        for task in tasks {
            in_time(task).await.unwrap();
        }
    }

    /// Whoever leaves takes his answer with him: nobody else gets it.
    #[tokio::test]
    async fn an_answer_that_nobody_waits_for_goes_to_nobody_else() {
        let server = Redis::start();
        let (pipe, _heard) = pipe_to(&server).await;
        server.pause();
        let left = echo(b"of one who left");
        assert!(tokio::time::timeout(Duration::from_millis(20), pipe.answer(&left)).await.is_err(), "the server stands still");
        server.resume();
        assert_eq!(in_time(pipe.answer(&echo(b"mine"))).await.unwrap(), Value::BulkString(b"mine".into()));
    }

    #[tokio::test]
    async fn what_is_pushed_is_no_answer_and_a_subscription_has_one() {
        let server = Redis::start();
        let (pipe, mut heard) = pipe_to(&server).await;
        let channel = |verb: &str| redis::cmd(verb).arg("c").get_packed_command();
        assert_eq!(in_time(pipe.answer(&channel("SUBSCRIBE"))).await.unwrap(), Value::Okay);
        server.call(&["PUBLISH", "c", "hello"]);
        assert_eq!(in_time(heard.recv()).await.unwrap(), Some(b"hello".to_vec()));
        assert_eq!(in_time(pipe.answer(&channel("UNSUBSCRIBE"))).await.unwrap(), Value::Okay);
        assert_eq!(in_time(pipe.answer(&echo(b"after"))).await.unwrap(), Value::BulkString(b"after".into()));
    }

    #[tokio::test]
    async fn who_waits_hears_of_the_end_whoever_makes_it() {
        let server = Redis::start();
        let (pipe, mut heard) = pipe_to(&server).await;
        let (other, mut heard_by_other) = pipe_to(&server).await;
        server.pause();
        let request = echo(b"never answered");
        let (answer, ()) = in_time(async { tokio::join!(pipe.answer(&request), async { pipe.close() }) }).await;
        assert!(answer.is_err() && pipe.is_closed(), "closed here");
        assert!(pipe.answer(&request).await.is_err(), "nothing is sent any more");
        assert_eq!(in_time(heard.recv()).await, None, "no news: whoever closed it knows");
        let (answer, ()) = in_time(async { tokio::join!(other.answer(&request), async { server.kill() }) }).await;
        assert!(answer.is_err(), "ended by the server");
        assert_eq!(in_time(heard_by_other.recv()).await, Some(None));
        assert!(other.is_closed());
    }

    /// The thread of the pipe's runtime does something else: a request from another thread is sent all the same.
    #[test]
    fn a_request_leaves_though_the_porter_is_kept_from_work() {
        let server = Redis::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (pipe, _heard) = runtime.block_on(pipe_to(&server));
        // Nobody drives that runtime now.
        let waker = Waker::noop();
        let set = redis::cmd("SET").arg("sent").arg("yes").get_packed_command();
        let mut answer = std::pin::pin!(pipe.answer(&set));
        assert!(answer.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        let begun = std::time::Instant::now();
        while server.call(&["GET", "sent"]).text().trim() != "yes" {
            assert!(begun.elapsed() < LONG, "it was not sent");
        }
        assert_eq!(runtime.block_on(in_time(answer)).unwrap(), Value::Okay);
    }
}
