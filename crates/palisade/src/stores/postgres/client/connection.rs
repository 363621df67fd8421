//! One connection: opened, logged in, and driven by a task of the client's runtime.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Config, NoTls, SimpleQueryMessage};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::ClientSettings;
use super::failure::Failed;
use super::tls::Encryption;
use crate::error::{Error, Result};
use crate::url::Host;

/// The parameters of a statement, with their types: the server need not be asked for them.
pub(crate) type Parameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// A notification, as it came.
pub(crate) struct Heard(pub(crate) String);

pub(crate) struct Connection {
    pub(crate) client: tokio_postgres::Client,
    /// The host, for messages.
    pub(crate) address: Arc<str>,
    /// Whether a pooler is between, as far as the login shows it.
    pub(crate) pooled: bool,
    peer: SocketAddr,
    encryption: Option<(TlsConnector, String)>,
    closed: CancellationToken,
    driver: AbortHandle,
}

impl Connection {
    /// Connects to a host, and checks that it takes writes. `on_closed` is called when the
    /// connection ends, unless it was dropped, or the server has ended it for being idle.
    pub(super) async fn open(
        settings: &ClientSettings,
        host: &Host,
        heard: Option<mpsc::UnboundedSender<Heard>>,
        on_closed: impl FnOnce() + Send + 'static,
    ) -> Result<Connection> {
        let address: Arc<str> = host.to_string().into();
        let refused = |cause: std::io::Error| {
            Error::unavailable(format!("{address} cannot be reached: {cause}")).with_source(cause)
        };
        let port = host.port.unwrap_or_default();
        let stream = TcpStream::connect((host.name.as_str(), port))
            .await
            .map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let peer = stream.peer_addr().map_err(refused)?;
        keep_alive(&stream, settings.request_timeout).map_err(refused)?;
        let mut config = Config::new();
        config
            .user(settings.user.reveal())
            .dbname(&settings.database)
            .application_name("palisade");
        if let Some(password) = &settings.password {
            config.password(password.reveal());
        }
        if settings.own_sessions {
            // Any server takes a setting with a dot in its name, and a pooler no such word.
            config.options("-c palisade.format=session");
        }
        let failed = |error: tokio_postgres::Error| {
            let said = error.as_db_error().map_or("", |said| said.message());
            if settings.own_sessions && said.contains("startup parameter") {
                return pooler(&address);
            }
            Failed::of(&error, &address).error
        };
        let closed = CancellationToken::new();
        let (client, driver) = match &settings.tls {
            Some(connector) => {
                config.ssl_mode(SslMode::Require);
                let encryption = Encryption {
                    connector: connector.clone(),
                    host: host.name.clone(),
                };
                let (client, connection) = config
                    .connect_raw(stream, encryption)
                    .await
                    .map_err(failed)?;
                let driven = drive(connection, heard, closed.clone(), on_closed);
                (client, tokio::spawn(driven).abort_handle())
            }
            None => {
                config.ssl_mode(SslMode::Disable);
                let (client, connection) =
                    config.connect_raw(stream, NoTls).await.map_err(failed)?;
                let driven = drive(connection, heard, closed.clone(), on_closed);
                (client, tokio::spawn(driven).abort_handle())
            }
        };
        let mut connection = Connection {
            client,
            address: Arc::clone(&address),
            pooled: false,
            peer,
            encryption: settings.tls.clone().map(|tls| (tls, host.name.clone())),
            closed,
            driver,
        };
        let said = connection
            .client
            .simple_query(
                "SELECT current_setting('transaction_read_only'), pg_backend_pid(), \
                 current_setting('palisade.format', true)",
            )
            .await
            .map_err(failed)?;
        let row = said.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        if row.is_some_and(|row| row.get(0) == Some("on")) {
            return Err(Error::unavailable(format!(
                "{address} is read-only: a standby, or a server that was made so; name the primary"
            )));
        }
        // A pooler may have been told to drop settings without a word.
        if settings.own_sessions && row.and_then(|row| row.get(2)) != Some("session") {
            return Err(pooler(&address));
        }
        let serving = row.and_then(|row| row.get(1)?.parse().ok());
        let named = match &settings.tls {
            None => named_process(&connection.client).await,
            // The driver would wait for an answer to its request for TLS.
            Some(_) => None,
        };
        connection.pooled = named.is_some() && named != serving;
        if connection.pooled && settings.own_sessions {
            return Err(pooler(&address));
        }
        Ok(connection)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled() || self.client.is_closed()
    }

    /// Cancelled when it has ended. Cancelling it ends it.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Interrupts the statement that it runs. When this returns, the server has sent the signal, so
    /// that no later statement is hit.
    pub(crate) async fn interrupt(&self) -> std::io::Result<()> {
        let request = TcpStream::connect(self.peer).await?.into_std()?;
        let mut answer = TcpStream::from_std(request.try_clone()?)?;
        let (request, cancel) = (TcpStream::from_std(request)?, self.client.cancel_token());
        let sent = match &self.encryption {
            None => cancel.cancel_query_raw(request, NoTls).await,
            Some((connector, host)) => {
                let (connector, host) = (connector.clone(), host.clone());
                let encryption = Encryption { connector, host };
                cancel.cancel_query_raw(request, encryption).await
            }
        };
        sent.map_err(std::io::Error::other)?;
        // It says nothing: it closes the stream when it is done.
        let mut rest = [0; 64];
        while answer.read(&mut rest).await? > 0 {}
        Ok(())
    }

    /// Ends it: requests in flight fail, and none is sent any more.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Completes when it has ended.
    pub(crate) async fn ended(&self) {
        self.closed.cancelled().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn pooler(address: &str) -> Error {
    Error::config(format!(
        "{address} is a pooler, which lends one session of the server to many clients, so that two \
         of them would hold one session lock; name the server itself, or use format=table"
    ))
}

/// The process of the server, as it named it at the login, without TLS. A pooler names one that
/// does not exist. The driver tells the number in a request to cancel only, which goes nowhere here.
async fn named_process(client: &tokio_postgres::Client) -> Option<i32> {
    // Its length, its code, the process and the secret.
    const REQUEST: usize = 16;
    let (writer, mut reader) = tokio::io::duplex(REQUEST);
    let cancel = client.cancel_token();
    cancel.cancel_query_raw(writer, NoTls).await.ok()?;
    let mut request = [0; REQUEST];
    reader.read_exact(&mut request).await.ok()?;
    Some(i32::from_be_bytes(request[8..12].try_into().ok()?))
}

/// A server that is cut off is noticed, also while nothing is sent.
fn keep_alive(stream: &TcpStream, request_timeout: Duration) -> std::io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(request_timeout))?;
    Ok(())
}

async fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    heard: Option<mpsc::UnboundedSender<Heard>>,
    closed: CancellationToken,
    on_closed: impl FnOnce() + Send,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    // Nothing is lost with a connection that was idle: the next request opens another one.
    let was_idle =
        |error: &tokio_postgres::Error| error.code() == Some(&SqlState::IDLE_SESSION_TIMEOUT);
    let messages = async {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(news))) => {
                    if let Some(heard) = &heard {
                        // Without a receiver the connection is dropped soon.
                        drop(heard.send(Heard(news.payload().to_owned())));
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "a connection to PostgreSQL ends");
                    return was_idle(&error);
                }
                None => return false,
            }
        }
    };
    let was_idle = tokio::select! {
        was_idle = messages => was_idle,
        () = closed.cancelled() => false,
    };
    closed.cancel();
    if !was_idle {
        on_closed();
    }
}
