//! One connection: opened, introduced and logged in, then read and written as whole messages.

use std::io::ErrorKind::WouldBlock;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use super::proto::{self, Connected};
use super::session::Credentials;
use super::settings::{Login, Scheme, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::url::Host;

/// A connection with TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// No server sends more at once; ZooKeeper's own limit is a megabyte.
const LONGEST: usize = 64 << 20;

/// At least so much is read at once.
const ROOM: usize = 8 << 10;

/// The first message of a connection.
pub(super) struct Hello<'a> {
    /// The newest transaction that the session has seen: a server that is behind it refuses the
    /// session.
    pub(super) seen: i64,
    pub(super) length: Duration,
    pub(super) credentials: &'a Credentials,
}

/// A connection, and the session that the server granted on it.
pub(super) struct Opened {
    pub(super) wire: Wire,
    /// With the id 0 when the session has ended.
    pub(super) credentials: Credentials,
    pub(super) length: Duration,
    /// When the session was asked for.
    pub(super) sent: Moment,
}

pub(super) struct Wire {
    pub(super) read: Incoming,
    pub(super) write: Outgoing,
}

/// The writing side.
pub(super) enum Outgoing {
    /// Of a plain socket, which any thread may write to.
    Bare(Arc<OwnedWriteHalf>),
    /// Of one with TLS, which reads and writes as one.
    Tls(WriteHalf<Box<dyn Stream>>),
}

impl Outgoing {
    pub(super) async fn write(&mut self, mut message: &[u8]) -> std::io::Result<()> {
        let socket = match self {
            Outgoing::Bare(socket) => socket,
            Outgoing::Tls(stream) => {
                stream.write_all(message).await?;
                return stream.flush().await;
            }
        };
        while !message.is_empty() {
            match socket.try_write(message) {
                Ok(taken) => message = message.get(taken..).unwrap_or_default(),
                Err(error) if error.kind() == WouldBlock => socket.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The socket, if callers may write to it as well.
    pub(super) fn socket(&self) -> Option<Arc<OwnedWriteHalf>> {
        match self {
            Outgoing::Bare(socket) => Some(Arc::clone(socket)),
            Outgoing::Tls(_) => None,
        }
    }
}

/// The reading side. Dropping a wait loses nothing.
pub(super) struct Incoming {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    buffer: Vec<u8>,
    /// How much of the buffer has been taken out.
    taken: usize,
}

impl Incoming {
    /// The next message; an error when there will be none.
    pub(super) async fn message(&mut self) -> std::io::Result<&[u8]> {
        while !self.has_message()? {
            // More than usually comes at once: a read that fills the buffer has to be followed by
            // another.
            self.buffer.reserve(ROOM);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffered()?.unwrap_or_default())
    }

    /// The next message, if it is here already.
    pub(super) fn buffered(&mut self) -> std::io::Result<Option<&[u8]>> {
        if !self.has_message()? {
            return Ok(None);
        }
        let begins = self.taken + 4;
        self.taken = begins + self.length().unwrap_or_default();
        Ok(self.buffer.get(begins..self.taken))
    }

    /// Whether a whole message is here. If not, what is here of it is moved to the front.
    fn has_message(&mut self) -> std::io::Result<bool> {
        let is_whole = match self.length() {
            Some(length) if length > LONGEST => return Err(std::io::ErrorKind::InvalidData.into()),
            Some(length) => self.buffer.len() - self.taken >= 4 + length,
            None => false,
        };
        if !is_whole {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        Ok(is_whole)
    }

    /// How long the next message is, if that is here.
    fn length(&self) -> Option<usize> {
        let length = self.buffer.get(self.taken..)?.first_chunk()?;
        Some(u32::from_be_bytes(*length) as usize)
    }
}

impl Wire {
    /// Connects to a server and introduces the session.
    pub(super) async fn open(
        settings: &Settings,
        host: &Host,
        hello: &Hello<'_>,
    ) -> Result<Opened> {
        let opened = Self::open_within(settings.connect_timeout, settings, host, hello).await;
        opened.unwrap_or_else(|| {
            Err(Error::unavailable(format!(
                "{host} has not answered in time"
            )))
        })
    }

    /// The same, in so much time; `None` when it is over. The server may have heard us then.
    pub(super) async fn open_within(
        limit: Duration,
        settings: &Settings,
        host: &Host,
        hello: &Hello<'_>,
    ) -> Option<Result<Opened>> {
        let opening = Self::open_unlimited(settings, host, hello);
        let opened = tokio::time::timeout(limit, opening).await.ok()?;
        Some(opened.map_err(|cause| {
            match cause
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<Error>())
            {
                // Our own error, with its own sentence.
                Some(error) => error.clone(),
                None => unreached(host, &cause).with_source(cause),
            }
        }))
    }

    async fn open_unlimited(
        settings: &Settings,
        host: &Host,
        hello: &Hello<'_>,
    ) -> std::io::Result<Opened> {
        let stream =
            TcpStream::connect((host.name.as_str(), host.port.unwrap_or_default())).await?;
        // Without this the second of two requests would wait for the answer to the first.
        stream.set_nodelay(true)?;
        let (read, mut write): (Box<dyn AsyncRead + Send + Unpin>, _) = match &settings.tls {
            Some(tls) => {
                let (read, write) = tokio::io::split(tls.wrap(stream, host).await?);
                (Box::new(read), Outgoing::Tls(write))
            }
            None => {
                let (read, write) = stream.into_split();
                (Box::new(read), Outgoing::Bare(Arc::new(write)))
            }
        };
        let mut read = Incoming {
            stream: read,
            buffer: Vec::new(),
            taken: 0,
        };
        let sent = BootClock.now();
        let millis = i32::try_from(hello.length.as_millis()).unwrap_or(i32::MAX);
        write
            .write(&proto::connect(hello.seen, millis, hello.credentials))
            .await?;
        let answer = read.message().await?;
        let Connected {
            timeout_ms,
            credentials,
        } = proto::connected(answer)
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidData))?;
        let mut wire = Wire { read, write };
        // On a session that has ended nothing more is sent.
        if let Some(login) = settings.login.as_ref().filter(|_| credentials.id != 0) {
            wire.log_in(login).await?;
        }
        let length = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        Ok(Opened {
            wire,
            credentials,
            length,
            sent,
        })
    }

    async fn log_in(&mut self, login: &Login) -> std::io::Result<()> {
        match login.scheme {
            // Its answer comes with the others, and is never a refusal of the password.
            Scheme::Digest => {
                self.write
                    .write(&proto::login(login.user.reveal(), login.password.reveal()))
                    .await
            }
            Scheme::Sasl => super::sasl::log_in(self, login).await,
        }
    }
}

fn unreached(host: &Host, cause: &std::io::Error) -> Error {
    match cause.kind() {
        // To retry does not help against a certificate that is refused.
        std::io::ErrorKind::InvalidData if cause.get_ref().is_some() => Error::new(
            ErrorKind::Denied,
            format!("{host} and this client do not agree on TLS: {cause}"),
        ),
        std::io::ErrorKind::InvalidData => Error::new(
            ErrorKind::Protocol,
            format!("{host} does not speak as ZooKeeper does; is it the port for clients?"),
        ),
        std::io::ErrorKind::UnexpectedEof => {
            Error::unavailable(format!("{host} closes the connection; has it a quorum?"))
        }
        _ => Error::unavailable(format!("{host} cannot be reached: {cause}")),
    }
}
