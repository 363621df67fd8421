//! The two halves of a connection, and what is known of each.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker, ready};

use redis::{RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::super::resp::{self, Said};
use super::{Listens, locked};

/// The end of a connection that is written to.
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;
/// The end that is read from.
pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// How much is read at once, at first. A longer answer makes room for itself.
const ROOM: usize = 4 << 10;
/// Room that is given back when an answer has been read.
const TOO_MUCH_ROOM: usize = 256 << 10;

/// The half that is written to. Where both are locked, the other one is first.
pub(super) struct Outward {
    /// `None` once the connection is closed.
    pub(super) writer: Option<Writer>,
    /// What could not be written at once.
    pub(super) unwritten: Vec<u8>,
    /// Who waits for an answer, in the order in which they come.
    pub(super) waiting: VecDeque<Waiting>,
}

pub(super) enum Waiting {
    One(oneshot::Sender<Value>),
    /// For so many more.
    Many(usize, Vec<Value>, oneshot::Sender<Vec<Value>>),
}

/// The half that is read from.
pub(super) struct Inward {
    /// `None` once the connection is closed.
    pub(super) reader: Option<Reader>,
    read: Vec<u8>,
    /// How much of it was read and not understood yet.
    filled: usize,
    said: Vec<Answered>,
    /// Set when nothing can be read any more, by the server's doing.
    pub(super) has_ended: bool,
}

/// What is passed on once nobody is held up by it.
enum Answered {
    One(oneshot::Sender<Value>, Value),
    Many(oneshot::Sender<Vec<Value>>, Vec<Value>),
    NotYet,
    Message(Value, Value),
}

impl Outward {
    /// Writes what was left.
    pub(super) fn write_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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

impl Inward {
    pub(super) fn of(reader: Reader) -> Inward {
        Inward { reader: Some(reader), read: vec![0; ROOM], filled: 0, said: Vec::new(), has_ended: false }
    }

    /// Reads once, and notes what was said.
    pub(super) fn read_once(&mut self, context: &mut Context<'_>, outward: &Mutex<Outward>) -> Poll<Result<(), RedisError>> {
        let ended = || Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
        if self.has_ended {
            return ended();
        }
        let Some(reader) = &mut self.reader else { return ended() };
        if self.filled == self.read.len() {
            self.read.resize(2 * self.filled, 0);
        }
        let mut room = ReadBuf::new(&mut self.read[self.filled..]);
        ready!(Pin::new(reader).poll_read(context, &mut room))?;
        let came = room.filled().len();
        if came == 0 {
            return ended();
        }
        self.filled += came;
        let mut begin = 0;
        let mut outward = locked(outward);
        while let Some((said, length)) = resp::read(&self.read[begin..self.filled])? {
            begin += length;
            let answered = match said {
                Said::Answer(value) => outward.answered(value),
                Said::Push(parts) => pushed(parts, &mut outward),
            };
            match answered {
                Some(answered) => self.said.push(answered),
                None => return Poll::Ready(Err(io::Error::other("an answer came that nobody had asked for").into())),
            }
        }
        drop(outward);
        self.read.copy_within(begin..self.filled, 0);
        self.filled -= begin;
        if self.filled == 0 && self.read.len() > TOO_MUCH_ROOM {
            self.read = vec![0; ROOM];
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn pass_on(&mut self, listens: &dyn Listens) {
        for answered in self.said.drain(..) {
            match answered {
                // Nobody may wait for it any more.
                Answered::One(reply, value) => drop(reply.send(value)),
                Answered::Many(reply, values) => drop(reply.send(values)),
                Answered::NotYet => {}
                Answered::Message(channel, payload) => {
                    if let (Value::BulkString(channel), Value::BulkString(payload)) = (channel, payload) {
                        listens.message(&channel, &payload);
                    }
                }
            }
        }
    }
}

/// A subscription is answered by a push. Of all that is pushed besides, only messages are for us.
fn pushed(parts: Vec<Value>, outward: &mut Outward) -> Option<Answered> {
    let mut parts = parts.into_iter();
    match parts.next() {
        Some(Value::BulkString(kind)) if kind == b"message" => {
            Some(Answered::Message(parts.next().unwrap_or_default(), parts.next().unwrap_or_default()))
        }
        Some(Value::BulkString(kind)) if kind == b"subscribe" || kind == b"unsubscribe" => outward.answered(Value::Okay),
        _ => Some(Answered::NotYet),
    }
}

/// Writes a request at once, as far as that goes: how much of it. `None` when all of it was written, and some is not sent. What is
/// wrong with the connection the porter finds out.
pub(super) fn write_now(writer: &mut Writer, request: &[u8]) -> Option<usize> {
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
