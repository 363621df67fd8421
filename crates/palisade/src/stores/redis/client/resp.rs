//! What servers say, read from bytes: RESP3, as far as anything that we ask is answered in it.
//!
//! The client library has a reader too. It is made for every answer there is, and costs a lock several times what this one does.
//! Errors are still read by it: it knows their codes.

use redis::{ErrorKind, RedisError, RedisResult, Value};

/// One thing that a server says.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    /// The answer to a request.
    Answer(Value),
    /// What nobody asked for, or the answer to a subscription: its kind, and what belongs to it.
    Push(Vec<Value>),
}

/// No text is longer, and no list has more parts, than a server may send.
const LONGEST: usize = 512 << 20;
/// How deep lists may stand in lists.
const DEEPEST: usize = 16;

/// The first thing that was said, and how many bytes it takes. `None`: not all of it has come yet.
pub(crate) fn read(bytes: &[u8]) -> RedisResult<Option<(Said, usize)>> {
    let mut reader = Reader { bytes, at: 0 };
    let said = match bytes.first() {
        None => return Ok(None),
        Some(b'>') => reader.line().and_then(|line| reader.list(&line[1..], DEEPEST)).map(Said::Push),
        Some(_) => reader.value(DEEPEST).map(Said::Answer),
    };
    match said {
        Ok(said) => Ok(Some((said, reader.at))),
        Err(Stop::More) => Ok(None),
        Err(Stop::Garbled) => Err((ErrorKind::Parse, "the server's answer cannot be read").into()),
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
        // Each part takes three bytes at the least: what is not here yet needs no room yet.
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

    /// One of everything that we ask for or are told.
    const SAID: [&str; 14] = [
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
    fn what_is_said_is_read_as_others_read_it() {
        for said in SAID {
            let read = read(said.as_bytes()).unwrap();
            assert_eq!(read, Some((Said::Answer(redis::parse_redis_value(said.as_bytes()).unwrap()), said.len())), "{said:?}");
        }
    }

    #[test]
    fn a_part_of_it_is_nothing_yet_and_what_follows_is_not_touched() {
        for said in SAID.into_iter().chain([">3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n"]) {
            for cut in 0..said.len() {
                assert_eq!(read(&said.as_bytes()[..cut]).unwrap(), None, "{:?}", &said[..cut]);
            }
            let (_, length) = read([said, ":1\r\n"].concat().as_bytes()).unwrap().unwrap();
            assert_eq!(length, said.len());
        }
    }

    #[test]
    fn a_push_is_told_from_an_answer() {
        let (said, _) = read(b">2\r\n+message\r\n$2\r\nhi\r\n").unwrap().unwrap();
        assert_eq!(said, Said::Push(vec![Value::SimpleString("message".into()), Value::BulkString(b"hi".into())]));
    }

    #[test]
    fn what_no_server_says_is_an_error() {
        let deep = "*1\r\n".repeat(100);
        for garbled in
            ["\r\n", "?\r\n", ":x\r\n", "$-2\r\n", "$3\r\nabcd\r\n", "*x\r\n", "$99999999999999999999\r\n", "a\rb", &deep]
        {
            assert!(read(garbled.as_bytes()).is_err(), "{garbled:?}");
        }
        // A length that is not here is no reason to take the memory for it.
        assert_eq!(read(b"*500000000\r\n").unwrap(), None);
    }
}
