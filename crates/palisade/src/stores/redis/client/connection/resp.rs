//! RESP3, as far as the replies to our requests need it.
//!
//! The redis crate's parser is made for every reply there is, and costs several times as much. Errors are still left to it: it
//! knows their codes.

use redis::{ErrorKind, RedisError, RedisResult, Value};

/// One message of a server.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    /// The reply to a request.
    Reply(Value),
    /// A push, or the reply to a subscription: its kind, and the parts of that kind.
    Push(Vec<Value>),
}

/// The longest text, and the longest list, that a server may send.
const LONGEST: usize = 512 << 20;
/// How deep lists may stand in lists.
const DEEPEST: usize = 16;

/// The first message, and how many bytes it takes. `None`: not all of it has come yet.
pub(super) fn read(bytes: &[u8]) -> RedisResult<Option<(Message, usize)>> {
    let mut reader = Reader { bytes, at: 0 };
    let message = match bytes.first() {
        None => return Ok(None),
        Some(b'>') => reader.line().and_then(|line| reader.list(&line[1..], DEEPEST)).map(Message::Push),
        Some(_) => reader.value(DEEPEST).map(Message::Reply),
    };
    match message {
        Ok(message) => Ok(Some((message, reader.at))),
        Err(Stop::More) => Ok(None),
        Err(Stop::Garbled) => Err((ErrorKind::Parse, "the server's reply cannot be read").into()),
        Err(Stop::Unread(error)) => Err(error),
    }
}

/// Why there is no value.
enum Stop {
    /// Not all has come yet.
    More,
    Garbled,
    Unread(RedisError),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        let begin = self.at;
        let line = self.line()?;
        let (kind, rest) = line.split_first().ok_or(Stop::Garbled)?;
        let value = match kind {
            b'+' if rest == b"OK" => Value::Okay,
            b'+' => Value::SimpleString(text(rest)?.to_owned()),
            b'-' => redis::parse_redis_value(&self.bytes[begin..self.at]).map_err(Stop::Unread)?,
            b':' => Value::Int(number(rest)?),
            b'$' if rest == b"-1" => Value::Nil,
            b'$' => Value::BulkString(self.bulk(size(rest)?)?.to_vec()),
            b'*' if rest == b"-1" => Value::Nil,
            b'*' => Value::Array(self.list(rest, depth)?),
            b'~' => Value::Set(self.list(rest, depth)?),
            b'%' => Value::Map(self.map(rest, depth)?),
            b'_' => Value::Nil,
            b'#' => Value::Boolean(rest == b"t"),
            b',' => Value::Double(text(rest)?.parse().map_err(|_| Stop::Garbled)?),
            _ => return Err(Stop::Garbled),
        };
        Ok(value)
    }

    /// A line, without its end.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\r').ok_or(Stop::More)?;
        match rest.get(length + 1) {
            Some(b'\n') => {}
            Some(_) => return Err(Stop::Garbled),
            None => return Err(Stop::More),
        }
        self.at += length + 2;
        Ok(&rest[..length])
    }

    fn bulk(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let bytes = self.bytes.get(self.at..self.at + length + 2).ok_or(Stop::More)?;
        let text = bytes.strip_suffix(b"\r\n").ok_or(Stop::Garbled)?;
        self.at += length + 2;
        Ok(text)
    }

    fn list(&mut self, count: &[u8], depth: usize) -> Result<Vec<Value>, Stop> {
        let (count, depth) = (size(count)?, depth.checked_sub(1).ok_or(Stop::Garbled)?);
        // Each part takes three bytes at least: no memory is taken for parts that have not come yet.
        let mut parts = Vec::with_capacity(count.min((self.bytes.len() - self.at) / 3));
        for _ in 0..count {
            parts.push(self.value(depth)?);
        }
        Ok(parts)
    }

    fn map(&mut self, count: &[u8], depth: usize) -> Result<Vec<(Value, Value)>, Stop> {
        let (count, depth) = (size(count)?, depth.checked_sub(1).ok_or(Stop::Garbled)?);
        (0..count).map(|_| Ok((self.value(depth)?, self.value(depth)?))).collect()
    }
}

fn text(bytes: &[u8]) -> Result<&str, Stop> {
    str::from_utf8(bytes).map_err(|_| Stop::Garbled)
}

fn number(digits: &[u8]) -> Result<i64, Stop> {
    text(digits)?.parse().map_err(|_| Stop::Garbled)
}

fn size(digits: &[u8]) -> Result<usize, Stop> {
    usize::try_from(number(digits)?).ok().filter(|size| *size <= LONGEST).ok_or(Stop::Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of every kind.
    const SAMPLES: [&str; 14] = [
        "+OK\r\n",
        "+PONG\r\n",
        ":-7\r\n",
        "$0\r\n\r\n",
        "$5\r\na\r\nbc\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "_\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n-ERR in a list\r\n",
        "%1\r\n$1\r\nk\r\n*1\r\n+v\r\n",
        "-MOVED 3999 127.0.0.1:6381\r\n",
    ];

    #[test]
    fn replies_are_read_as_the_redis_crate_reads_them() {
        for sample in SAMPLES {
            let read = read(sample.as_bytes()).unwrap();
            assert_eq!(
                read,
                Some((Message::Reply(redis::parse_redis_value(sample.as_bytes()).unwrap()), sample.len())),
                "{sample:?}"
            );
        }
    }

    #[test]
    fn a_part_is_no_message_yet_and_what_follows_is_not_touched() {
        for sample in SAMPLES.into_iter().chain([">3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n"]) {
            for cut in 0..sample.len() {
                assert_eq!(read(&sample.as_bytes()[..cut]).unwrap(), None, "{:?}", &sample[..cut]);
            }
            let (_, length) = read([sample, ":1\r\n"].concat().as_bytes()).unwrap().unwrap();
            assert_eq!(length, sample.len());
        }
    }

    #[test]
    fn a_push_is_told_from_a_reply() {
        let (said, _) = read(b">2\r\n+message\r\n$2\r\nhi\r\n").unwrap().unwrap();
        assert_eq!(said, Message::Push(vec![Value::SimpleString("message".into()), Value::BulkString(b"hi".into())]));
    }

    #[test]
    fn garbled_replies_are_errors() {
        let deep = "*1\r\n".repeat(100);
        for garbled in
            ["\r\n", "?\r\n", ":x\r\n", "$-2\r\n", "$3\r\nabcd\r\n", "*x\r\n", "$99999999999999999999\r\n", "a\rb", &deep]
        {
            assert!(read(garbled.as_bytes()).is_err(), "{garbled:?}");
        }
        // A length alone takes no memory.
        assert_eq!(read(b"*500000000\r\n").unwrap(), None);
    }
}
