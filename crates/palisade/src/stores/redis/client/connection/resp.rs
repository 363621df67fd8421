//! RESP3, as far as the replies to our requests need it.
//!
//! The redis crate's parser is made for every reply there is, and costs several times as much.
//! Errors are still left to it: it knows their codes.

use redis::{ErrorKind, RedisError, RedisResult, Value};

/// One message of a server.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    /// The reply to a request.
    Reply(Value),
    /// A push, or the reply to a subscription: its kind, and the parts of that kind.
    Push(Vec<Value>),
}

/// The longest line that a server may send: a number, a word or an error.
const LONGEST_LINE: usize = 64 << 10;
/// The longest message. No script of ours answers so much: the longest is the view of a line with a
/// hundred thousand waiters.
const LONGEST: usize = 64 << 20;
/// The most values in one message: each takes more memory than it takes bytes on the wire.
const MOST_VALUES: usize = 1 << 20;
/// How deep lists may be nested.
const DEEPEST: usize = 16;

/// Reads the messages of one connection, one after the other.
#[derive(Default)]
pub(super) struct Parser {
    /// The search for the end of a message that has come in part.
    search: Option<Search>,
}

impl Parser {
    /// The first message in these bytes, and how many of them it takes. `None`: not all of it has
    /// come yet; then the next call must have the same bytes, and more.
    pub(super) fn read(&mut self, bytes: &[u8]) -> RedisResult<Option<(Message, usize)>> {
        // A message that has come whole is read at once. Of any other, each byte is looked at once
        // until all of them are there.
        if self.search.is_none()
            && let Some(read) = read(bytes)?
        {
            return Ok(Some(read));
        }
        if bytes.is_empty() || !self.search.get_or_insert_default().has_found_end(bytes)? {
            return Ok(None);
        }
        self.search = None;
        read(bytes)
    }
}

/// Searches for the end of a message without making its values.
struct Search {
    /// The bytes before this belong to values that are complete.
    at: usize,
    /// The bytes before this are not the end of the line that begins at `at`.
    searched: usize,
    /// How many values are to come.
    left: usize,
    /// How many values the message has so far.
    values: usize,
}

impl Default for Search {
    fn default() -> Search {
        Search {
            at: 0,
            searched: 0,
            left: 1,
            values: 1,
        }
    }
}

impl Search {
    fn has_found_end(&mut self, bytes: &[u8]) -> RedisResult<bool> {
        match self.search(bytes) {
            Ok(()) => Ok(true),
            Err(Stop::More) => Ok(false),
            Err(stop) => Err(stop.into_error()),
        }
    }

    fn search(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        while self.left > 0 {
            let mut reader = Reader { bytes, at: self.at };
            let line = match reader.line_from(self.searched.max(self.at)) {
                Ok(line) => line,
                Err(stop) => {
                    // The last byte may be the first half of the line's end.
                    self.searched = bytes.len().saturating_sub(1);
                    return Err(stop);
                }
            };
            let (kind, rest) = line.split_first().ok_or(Stop::Garbled)?;
            let more = match kind {
                b'$' | b'*' if rest == b"-1" => 0,
                b'$' | b'=' => {
                    let length = size(rest)?;
                    // The line is read again when the text has come: it is short.
                    reader.bulk(length)?;
                    0
                }
                b'*' | b'~' | b'>' => size(rest)?,
                b'%' => 2 * size(rest)?,
                b'+' | b'-' | b':' | b'_' | b'#' | b',' => 0,
                _ => return Err(Stop::Garbled),
            };
            self.values += more;
            if self.values > MOST_VALUES || reader.at > LONGEST {
                return Err(Stop::TooLong);
            }
            (self.at, self.left) = (reader.at, self.left - 1 + more);
        }
        Ok(())
    }
}

/// The first message, and how many bytes it takes. `None`: not all of it has come yet.
fn read(bytes: &[u8]) -> RedisResult<Option<(Message, usize)>> {
    let mut reader = Reader { bytes, at: 0 };
    let message = match bytes.first() {
        None => return Ok(None),
        Some(b'>') => reader
            .line()
            .and_then(|line| reader.list(&line[1..], DEEPEST))
            .map(Message::Push),
        Some(_) => reader.value(DEEPEST).map(Message::Reply),
    };
    match message {
        Ok(message) => Ok(Some((message, reader.at))),
        Err(Stop::More) => Ok(None),
        Err(stop) => Err(stop.into_error()),
    }
}

/// Why there is no value.
enum Stop {
    /// Not all has come yet.
    More,
    Garbled,
    TooLong,
    Unread(RedisError),
}

impl Stop {
    fn into_error(self) -> RedisError {
        match self {
            Stop::More | Stop::Garbled => {
                (ErrorKind::Parse, "the server's reply cannot be read").into()
            }
            Stop::TooLong => (
                ErrorKind::Parse,
                "the server's reply is longer than any to a request of ours",
            )
                .into(),
            Stop::Unread(error) => error,
        }
    }
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
            b'=' => {
                let _ = self.bulk(size(rest)?)?;
                redis::parse_redis_value(&self.bytes[begin..self.at]).map_err(Stop::Unread)?
            }
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
        self.line_from(self.at)
    }

    /// The same where the bytes before `searched` are not its end.
    fn line_from(&mut self, searched: usize) -> Result<&'a [u8], Stop> {
        let (begin, to_search) = (self.at, &self.bytes[searched..]);
        let found = to_search
            .iter()
            .position(|byte| *byte == b'\r')
            .map(|at| searched + at);
        if found.unwrap_or(self.bytes.len()) - begin > LONGEST_LINE {
            return Err(Stop::TooLong);
        }
        let end = found.ok_or(Stop::More)?;
        match self.bytes.get(end + 1) {
            Some(b'\n') => {}
            Some(_) => return Err(Stop::Garbled),
            None => return Err(Stop::More),
        }
        self.at = end + 2;
        Ok(&self.bytes[begin..end])
    }

    fn bulk(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let bytes = self
            .bytes
            .get(self.at..self.at + length + 2)
            .ok_or(Stop::More)?;
        let text = bytes.strip_suffix(b"\r\n").ok_or(Stop::Garbled)?;
        self.at += length + 2;
        Ok(text)
    }

    fn list(&mut self, count: &[u8], depth: usize) -> Result<Vec<Value>, Stop> {
        let (count, depth) = (size(count)?, depth.checked_sub(1).ok_or(Stop::Garbled)?);
        // Each part takes three bytes at least: no memory is taken for parts that have not come
        // yet.
        let mut parts = Vec::with_capacity(count.min((self.bytes.len() - self.at) / 3));
        for _ in 0..count {
            parts.push(self.value(depth)?);
        }
        Ok(parts)
    }

    fn map(&mut self, count: &[u8], depth: usize) -> Result<Vec<(Value, Value)>, Stop> {
        let (count, depth) = (size(count)?, depth.checked_sub(1).ok_or(Stop::Garbled)?);
        (0..count)
            .map(|_| Ok((self.value(depth)?, self.value(depth)?)))
            .collect()
    }
}

fn text(bytes: &[u8]) -> Result<&str, Stop> {
    str::from_utf8(bytes).map_err(|_| Stop::Garbled)
}

fn number(digits: &[u8]) -> Result<i64, Stop> {
    text(digits)?.parse().map_err(|_| Stop::Garbled)
}

fn size(digits: &[u8]) -> Result<usize, Stop> {
    let size = usize::try_from(number(digits)?).map_err(|_| Stop::Garbled)?;
    if size <= LONGEST {
        Ok(size)
    } else {
        Err(Stop::TooLong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of every kind.
    const SAMPLES: [&str; 15] = [
        "+OK\r\n",
        "+PONG\r\n",
        ":-7\r\n",
        "$0\r\n\r\n",
        "$5\r\na\r\nbc\r\n",
        "$-1\r\n",
        "=9\r\ntxt:a\r\nbc\r\n",
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
                Some((
                    Message::Reply(redis::parse_redis_value(sample.as_bytes()).unwrap()),
                    sample.len()
                )),
                "{sample:?}"
            );
        }
    }

    #[test]
    fn a_part_is_no_message_yet_and_what_follows_is_not_touched() {
        for sample in SAMPLES
            .into_iter()
            .chain([">3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n"])
        {
            let mut parser = Parser::default();
            for cut in 0..sample.len() {
                assert_eq!(
                    read(&sample.as_bytes()[..cut]).unwrap(),
                    None,
                    "{:?}",
                    &sample[..cut]
                );
                assert_eq!(
                    parser.read(&sample.as_bytes()[..cut]).unwrap(),
                    None,
                    "{:?}",
                    &sample[..cut]
                );
            }
            assert_eq!(
                parser.read(sample.as_bytes()).unwrap(),
                read(sample.as_bytes()).unwrap()
            );
            let (_, length) = read([sample, ":1\r\n"].concat().as_bytes())
                .unwrap()
                .unwrap();
            assert_eq!(length, sample.len());
        }
    }

    /// Byte by byte, as on a slow network. If each byte started the search again, this would take
    /// minutes.
    #[test]
    fn a_long_reply_in_many_parts_is_looked_through_once() {
        let long = ["*40000\r\n", &"$2\r\nhi\r\n".repeat(40_000)].concat();
        let (begun, mut parser) = (std::time::Instant::now(), Parser::default());
        for length in 1..long.len() {
            assert_eq!(parser.read(&long.as_bytes()[..length]).unwrap(), None);
        }
        let (message, length) = parser
            .read(long.as_bytes())
            .unwrap()
            .expect("all of it has come");
        let hi = Value::BulkString(b"hi".into());
        assert_eq!(
            (message, length),
            (Message::Reply(Value::Array(vec![hi; 40_000])), long.len())
        );
        assert!(
            begun.elapsed() < std::time::Duration::from_secs(10),
            "{:?}",
            begun.elapsed()
        );
    }

    #[test]
    fn a_push_is_told_from_a_reply() {
        let (said, _) = read(b">2\r\n+message\r\n$2\r\nhi\r\n").unwrap().unwrap();
        assert_eq!(
            said,
            Message::Push(vec![
                Value::SimpleString("message".into()),
                Value::BulkString(b"hi".into())
            ])
        );
    }

    #[test]
    fn garbled_replies_are_errors() {
        let deep = "*1\r\n".repeat(100);
        for garbled in [
            "\r\n",
            "?\r\n",
            ":x\r\n",
            "$-2\r\n",
            "$3\r\nabcd\r\n",
            "*x\r\n",
            "$99999999999999999999\r\n",
            "a\rb",
            &deep,
        ] {
            assert!(read(garbled.as_bytes()).is_err(), "{garbled:?}");
        }
        // A length alone takes no memory.
        assert_eq!(read(b"*60000000\r\n").unwrap(), None);
    }

    #[test]
    fn messages_that_are_too_long_are_errors_before_all_of_them_has_come() {
        let line = ["+", &"x".repeat(LONGEST_LINE + 1)].concat();
        let lists = "*1000\r\n".repeat(1100);
        let text = format!("${}\r\n", LONGEST + 1);
        for long in [&line, &lists, &text, "*500000000\r\n", "*2\r\n*1000000\r\n"] {
            let mut parser = Parser::default();
            let all_at_once = parser.read(long.as_bytes());
            if long == "*2\r\n*1000000\r\n" {
                assert_eq!(all_at_once.unwrap(), None, "not too long");
                continue;
            }
            assert!(all_at_once.is_err(), "{:?}", &long[..long.len().min(20)]);
            let mut parser = Parser::default();
            assert!(
                (1..=long.len()).any(|length| parser.read(&long.as_bytes()[..length]).is_err())
            );
        }
    }
}
