//! A new connection to a server: reached, perhaps in secret, and logged in.

use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::super::settings::Settings;
use super::address::Address;
use super::connection::{Connection, Listens};
use crate::url::Secret;

/// Who we are to a server that has locks, and which of its databases has them.
pub(crate) struct Login {
    pub(crate) user: Option<Secret>,
    pub(crate) password: Option<Secret>,
    pub(crate) db: i64,
}

/// Connects and logs in. The connection lives in the runtime that this runs in.
pub(crate) async fn connect(settings: &Settings, address: &Address, listens: impl Listens) -> RedisResult<Connection> {
    let stream = TcpStream::connect((&*address.host, address.port)).await?;
    // Without it a request that waits for the answer to the one before it would cost 40 ms.
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
    let connection = match settings.tls() {
        None => {
            let (reader, writer) = stream.into_split();
            Connection::open(Box::new(reader), Box::new(writer), listens)
        }
        Some(tls) => {
            let name = ServerName::try_from(address.host.to_string()).map_err(std::io::Error::other)?;
            let (reader, writer) = tokio::io::split(tls.connect(name, stream).await?);
            Connection::open(Box::new(reader), Box::new(writer), listens)
        }
    };
    settings.login.log_in(&connection).await?;
    Ok(connection)
}

/// A peer that is gone without a word is found out even where nobody asks it anything.
pub(crate) fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)).with_retries(3)
}

impl Login {
    /// In one round trip.
    async fn log_in(&self, connection: &Connection) -> RedisResult<()> {
        let mut hello = redis::cmd("HELLO");
        // Answers and pushes on one connection.
        hello.arg(3);
        if let Some(password) = &self.password {
            hello.arg("AUTH").arg(self.user.as_ref().map_or("default", Secret::reveal)).arg(password.reveal());
        }
        let mut commands = vec![hello];
        // For whoever looks at the server's list of clients. Older servers do not know it, and a user may not be allowed to say it.
        for (what, ours) in [("LIB-NAME", "palisade"), ("LIB-VER", env!("CARGO_PKG_VERSION"))] {
            commands.push(redis::cmd("CLIENT").arg("SETINFO").arg(what).arg(ours).to_owned());
        }
        if self.db != 0 {
            commands.push(redis::cmd("SELECT").arg(self.db).to_owned());
        }
        let request: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
        let answers = connection.answers(&request, commands.len()).await.map_err(|_| cut_off())?;
        let mut answers = answers.into_iter();
        answers.next().unwrap_or_default().extract_error().map_err(why_not)?;
        match answers.nth(2).map(Value::extract_error) {
            Some(Err(error)) => Err(error),
            Some(Ok(_)) | None => Ok(()),
        }
    }
}

/// Why a server does not greet us.
fn why_not(error: RedisError) -> RedisError {
    match error.code() {
        Some("NOPROTO") => too_old(),
        _ if error.detail().is_some_and(|detail| detail.starts_with("unknown command")) => too_old(),
        _ => error,
    }
}

fn too_old() -> RedisError {
    (ErrorKind::RESP3NotSupported, "the server does not know HELLO 3").into()
}

fn cut_off() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the server has closed the connection").into()
}
