//! Just enough of Redis' protocol to query a server without a client library.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply of Redis. Bytes that are no UTF-8 are replaced: this is for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// There is nothing.
    Nil,
    /// A number.
    Int(i64),
    /// A string, or a status such as `OK`.
    Text(String),
    /// An error, with its code in front.
    Error(String),
    /// Several.
    List(Vec<Reply>),
}

impl Reply {
    /// The text, a number as text, or nothing.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Nil => String::new(),
            Self::List(all) => all.iter().map(Self::text).collect::<Vec<_>>().join(" "),
        }
    }

    /// The number, also one that is sent as text.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// Its parts, if it has any.
    #[must_use]
    pub fn list(&self) -> &[Reply] {
        if let Self::List(all) = self { all } else { &[] }
    }
}

/// A connection to a Redis server without TLS.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects. Everything on this connection, this included, fails when it takes longer than
    /// `limit`.
    pub fn open(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        let connection = Self {
            stream: BufReader::new(stream),
        };
        connection.set_limit(limit)?;
        Ok(connection)
    }

    /// Sets another limit for what follows: a short one where silence is expected, and a long one
    /// where an answer is.
    pub fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(limit))?;
        self.stream.get_ref().set_write_timeout(Some(limit))
    }

    /// Sends a command and reads its answer. An error of the server is an answer too.
    pub fn call(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.send(words)?;
        self.read()
    }

    /// Sends a command, and leaves its answer for [`Connection::read`].
    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Reads one answer, or one message that the server pushes.
    pub fn read(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line
            .split_at_checked(1)
            .ok_or_else(|| broken("an empty line"))?;
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number(rest)?),
            "$" => match usize::try_from(number(rest)?) {
                Ok(length) => self.bulk(length)?,
                Err(_) => Reply::Nil,
            },
            "*" | ">" => match usize::try_from(number(rest)?) {
                Ok(length) => Reply::List(
                    (0..length)
                        .map(|_| self.read())
                        .collect::<io::Result<_>>()?,
                ),
                Err(_) => Reply::Nil,
            },
            _ => return Err(broken(&line)),
        })
    }

    fn bulk(&mut self, length: usize) -> io::Result<Reply> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| broken(text))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not Redis' protocol: {what}"),
    )
}
