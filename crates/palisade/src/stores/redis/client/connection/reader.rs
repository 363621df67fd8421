//! Reads replies and pushes.

use std::io;
use std::sync::atomic::Ordering;

use redis::{RedisError, RedisResult, Value};
use tokio::io::AsyncReadExt;

use super::resp::{Message, Parser};
use super::{Outgoing, Pending, ReadHalf, Shared};
use crate::stores::redis::client::{PushHandler, SHARD_MOVED};

/// How much is read at once, at first. A longer reply makes the buffer larger.
const BUFFER: usize = 4 << 10;
/// A larger buffer is given back once it is empty.
const LARGE_BUFFER: usize = 256 << 10;

/// Reads until the connection fails.
pub(super) async fn read(
    mut socket: ReadHalf,
    shared: &Shared,
    handler: Option<&dyn PushHandler>,
) -> RedisError {
    let mut buffer = vec![0; BUFFER];
    let mut filled = 0;
    let (mut parser, mut complete) = (Parser::default(), Vec::new());
    loop {
        if filled == buffer.len() {
            buffer.resize(2 * filled, 0);
        }
        match socket.read(&mut buffer[filled..]).await {
            Ok(0) => return io::Error::from(io::ErrorKind::UnexpectedEof).into(),
            Ok(more) => filled += more,
            Err(error) => return error.into(),
        }
        let parsed = match parse(
            &mut parser,
            &buffer[..filled],
            &mut shared.lock(),
            &mut complete,
        ) {
            Ok(parsed) => parsed,
            Err(error) => return error,
        };
        // Outside of the lock: this wakes callers, and calls the handler.
        for complete in complete.drain(..) {
            shared
                .answered
                .fetch_add(complete.requests(), Ordering::Release);
            complete.deliver(handler);
        }
        buffer.copy_within(parsed..filled, 0);
        filled -= parsed;
        if filled == 0 && buffer.len() > LARGE_BUFFER {
            buffer = vec![0; BUFFER];
        }
    }
}

/// A message that was read whole.
enum Complete {
    /// The last reply that a caller waits for.
    Replies(Pending),
    /// A reply before the last.
    Part,
    Push(Value, Value),
    /// A push of a kind that is not needed.
    Ignored,
}

impl Complete {
    /// How many requests it answers.
    fn requests(&self) -> u64 {
        match self {
            Complete::Replies(_) | Complete::Part => 1,
            Complete::Push(..) | Complete::Ignored => 0,
        }
    }

    fn deliver(self, handler: Option<&dyn PushHandler>) {
        match self {
            // The caller may have left.
            Complete::Replies(Pending { values, caller, .. }) => drop(caller.send(values)),
            Complete::Push(Value::BulkString(channel), Value::BulkString(payload)) => {
                if let Some(handler) = handler {
                    handler.message(&channel, &payload);
                }
            }
            Complete::Part | Complete::Push(..) | Complete::Ignored => {}
        }
    }
}

/// Parses all whole messages; returns how many bytes they take.
fn parse(
    parser: &mut Parser,
    bytes: &[u8],
    outgoing: &mut Outgoing,
    complete: &mut Vec<Complete>,
) -> RedisResult<usize> {
    let mut at = 0;
    while let Some((message, length)) = parser.read(&bytes[at..])? {
        at += length;
        let found = match message {
            Message::Reply(value) => outgoing.complete(value),
            Message::Push(parts) => pushed(parts, outgoing),
        };
        complete.push(found.ok_or_else(|| io::Error::other("a reply came to no request"))?);
    }
    Ok(at)
}

impl Outgoing {
    /// Whether the oldest request is one to leave a shard.
    fn leaves_shard(&self) -> bool {
        self.in_flight
            .front()
            .is_some_and(|oldest| oldest.leaves_shard)
    }

    /// Takes the reply to the oldest request; `None` when no request is in flight.
    fn complete(&mut self, value: Value) -> Option<Complete> {
        let oldest = self.in_flight.front_mut()?;
        oldest.values.push(value);
        oldest.left = oldest.left.saturating_sub(1);
        if oldest.left > 0 {
            return Some(Complete::Part);
        }
        self.in_flight.pop_front().map(Complete::Replies)
    }
}

/// A subscription, plain or sharded, is answered by a push.
fn pushed(parts: Vec<Value>, outgoing: &mut Outgoing) -> Option<Complete> {
    let mut parts = parts.into_iter();
    match parts.next() {
        Some(Value::BulkString(kind)) => match kind.as_slice() {
            b"message" | b"smessage" => Some(Complete::Push(
                parts.next().unwrap_or_default(),
                parts.next().unwrap_or_default(),
            )),
            b"subscribe" | b"unsubscribe" | b"ssubscribe" => outgoing.complete(Value::Okay),
            b"sunsubscribe" if outgoing.leaves_shard() => outgoing.complete(Value::Okay),
            // Not asked for: the shard of the channel has moved.
            b"sunsubscribe" => Some(Complete::Push(
                parts.next().unwrap_or_default(),
                Value::BulkString(SHARD_MOVED.to_vec()),
            )),
            _ => Some(Complete::Ignored),
        },
        _ => Some(Complete::Ignored),
    }
}
