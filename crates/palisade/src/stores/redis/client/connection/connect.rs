//! Connects and logs in.

use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Connection;
use crate::stores::redis::client::PushHandler;
use crate::stores::redis::client::address::Address;
use crate::stores::redis::client::settings::Login;
use crate::url::Secret;

/// Connects and logs in. The connection lives in the runtime that this runs in.
pub(in super::super) async fn connect(
    address: &Address,
    tls: Option<&TlsConnector>,
    login: &Login,
    handler: Option<Arc<dyn PushHandler>>,
) -> RedisResult<Connection> {
    let stream = TcpStream::connect((&*address.host, address.port)).await?;
    // Otherwise a request that is sent before the reply to the last one waits for up to 40 ms.
    stream.set_nodelay(true)?;
    // Detects a dead peer also while nothing is in flight.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let connection = match tls {
        None => {
            let (reader, writer) = stream.into_split();
            Connection::start(Box::new(reader), Box::new(writer), handler)
        }
        Some(tls) => {
            let name =
                ServerName::try_from(address.host.to_string()).map_err(std::io::Error::other)?;
            let (reader, writer) = tokio::io::split(tls.connect(name, stream).await?);
            Connection::start(Box::new(reader), Box::new(writer), handler)
        }
    };
    log_in(&connection, login).await?;
    Ok(connection)
}

/// Logs in, in one round trip.
async fn log_in(connection: &Connection, login: &Login) -> RedisResult<()> {
    let mut hello = redis::cmd("HELLO");
    // RESP3: replies and pushes on one connection.
    hello.arg(3);
    if let Some(password) = &login.password {
        hello
            .arg("AUTH")
            .arg(login.user.as_ref().map_or("default", Secret::reveal))
            .arg(password.reveal());
    }
    let mut commands = vec![hello];
    // For the server's list of clients. Older servers do not know it, and a user may lack the
    // right: its reply is ignored.
    for (what, ours) in [
        ("LIB-NAME", "palisade"),
        ("LIB-VER", env!("CARGO_PKG_VERSION")),
    ] {
        commands.push(
            redis::cmd("CLIENT")
                .arg("SETINFO")
                .arg(what)
                .arg(ours)
                .to_owned(),
        );
    }
    if login.db != 0 {
        commands.push(redis::cmd("SELECT").arg(login.db).to_owned());
    }
    let request: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
    let replies = connection
        .requests(&request, commands.len())
        .await
        .map_err(|_| cut_off())?;
    let mut replies = replies.into_iter();
    replies
        .next()
        .unwrap_or_default()
        .extract_error()
        .map_err(hello_error)?;
    match replies.nth(2).map(Value::extract_error) {
        Some(Err(error)) => Err(error),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// The error for a server that refuses HELLO.
fn hello_error(error: RedisError) -> RedisError {
    match error.code() {
        Some("NOPROTO") => too_old(),
        _ if error
            .detail()
            .is_some_and(|detail| detail.starts_with("unknown command")) =>
        {
            too_old()
        }
        _ => error,
    }
}

fn too_old() -> RedisError {
    (
        ErrorKind::RESP3NotSupported,
        "the server does not know HELLO 3",
    )
        .into()
}

fn cut_off() -> RedisError {
    std::io::Error::new(
        std::io::ErrorKind::ConnectionAborted,
        "the server has closed the connection",
    )
    .into()
}
