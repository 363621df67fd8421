//! One connection: login, session settings, one statement at a time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row};

use super::Statement;
use super::settings::ClientSettings;
use crate::error::{Error, ErrorKind};
use crate::url::Host;

/// Larger than any statement of ours. Given, so that it is not asked for.
const LARGEST_PACKET: usize = 16 << 20;
/// The same: how long the server keeps an idle connection. It is set in the session.
const IDLE_FOR: usize = 28_800;
/// What every session has: a verb that finds a row locked gives up soon and is sent again.
const SETTINGS: &str = "SET SESSION autocommit=1, innodb_lock_wait_timeout=1, wait_timeout=28800, ";
/// What a routine keeps of the session that has created it.
pub(crate) const SQL_MODE: &str = "sql_mode='STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'";
/// What is added, unless the session keeps the zone of the server.
const UTC: &str = ", time_zone='+00:00'";
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
const FACTS: &str = "SHOW VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only', 'wsrep_on', 'version', \
     'pseudo_thread_id')";

pub(crate) struct Connection {
    conn: Conn,
    pub(crate) server: Server,
}

/// The server of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) version: String,
    pub(crate) product: String,
    pub(crate) read_only: bool,
    /// Whether it is a node of a Galera cluster.
    pub(crate) galera: bool,
}

/// Why a statement was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller has left, and nothing was sent.
    Unwanted,
    /// Its time was over before it could be sent.
    TooLate,
    /// No connection could be made, and nothing was sent.
    Unreachable(mysql_async::Error),
    NoAnswerToLogin,
    /// Every server is read-only.
    ReadOnly,
    /// The connection ended; the statement may have been done.
    Broken(mysql_async::Error),
    /// No answer came in time; the statement may have been done.
    NoAnswer,
    /// The server refused it, and it was not done.
    Refused(mysql_async::ServerError),
}

impl Connection {
    /// Connects to the first of the servers that can be written to, beginning with the last one that
    /// could.
    pub(super) async fn open(settings: &ClientSettings) -> Result<Connection, Failure> {
        let mut failure = Failure::ReadOnly;
        let (hosts, first) = (
            settings.hosts.len(),
            settings.last_host.load(Ordering::Relaxed),
        );
        for at in (0..hosts).map(|step| (first + step) % hosts) {
            match Connection::to(settings, &settings.hosts[at]).await {
                Ok(connection) if connection.server.read_only => connection.close().await,
                Ok(connection) => {
                    settings.last_host.store(at, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(other) => failure = other,
            }
        }
        Err(failure)
    }

    async fn to(settings: &ClientSettings, host: &Host) -> Result<Connection, Failure> {
        let opts: Opts = OptsBuilder::default()
            .ip_or_hostname(host.name.as_str())
            .tcp_port(host.port.unwrap_or_default())
            .user(Some(settings.user.reveal()))
            .pass(settings.password.as_ref().map(|word| word.reveal()))
            .db_name(settings.database.as_deref())
            .ssl_opts(settings.tls.clone())
            .prefer_socket(false)
            .tcp_keepalive(Some(Duration::from_secs(10)))
            .max_allowed_packet(Some(LARGEST_PACKET))
            .wait_timeout(Some(IDLE_FOR))
            .into();
        let keeps_zone = settings.keeps_zone;
        let mut opening = Box::pin(async move {
            let mut conn = Conn::new(opts).await?;
            let zone = if keeps_zone { "" } else { UTC };
            conn.query_drop([SETTINGS, SQL_MODE, zone].concat()).await?;
            conn.query_drop(ISOLATION).await?;
            let facts: Vec<(String, String)> = conn.query(FACTS).await?;
            Ok((conn, facts))
        });
        let opened = tokio::time::timeout(settings.connect_timeout, &mut opening).await;
        let (conn, facts) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(mysql_async::Error::Server(refused))) => return Err(Failure::Refused(refused)),
            Ok(Err(error)) => return Err(Failure::Unreachable(error)),
            Err(_) => {
                drop_outside(opening);
                return Err(Failure::NoAnswerToLogin);
            }
        };
        let fact = |name: &str| {
            let found = facts.iter().find(|(word, _)| word == name);
            found.map_or("", |(_, value)| value)
        };
        let is_on = |name: &str| matches!(fact(name), "ON" | "1");
        let product = if fact("version").contains("MariaDB") {
            "mariadb"
        } else {
            "mysql"
        };
        let served_by = fact("pseudo_thread_id").parse().ok();
        if served_by.is_some_and(|session: u32| session != conn.id())
            && !settings.proxied.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "a proxy is between this client and {host}, which may lend a session for each \
                 statement: waiters ask again and again instead of waiting for a bell"
            );
        }
        let server = Server {
            address: host.to_string(),
            version: fact("version").to_owned(),
            product: product.to_owned(),
            read_only: is_on("read_only") || is_on("super_read_only") || is_on("innodb_read_only"),
            galera: is_on("wsrep_on"),
        };
        Ok(Connection { conn, server })
    }

    /// The number that the server gave it.
    pub(crate) fn number(&self) -> u32 {
        self.conn.id()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.conn.is_disconnected()
    }

    /// Runs a statement, and returns the rows of its first result.
    pub(crate) async fn run(
        &mut self,
        statement: &Statement,
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        let running = async {
            let mut result = self
                .conn
                .exec_iter(&*statement.sql, statement.values.clone())
                .await?;
            let rows = result.collect().await?;
            result.drop_result().await?;
            Ok(rows)
        };
        match tokio::time::timeout(limit, running).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(mysql_async::Error::Server(refused))) => Err(Failure::Refused(refused)),
            Ok(Err(error)) => Err(Failure::Broken(error)),
            Err(_) => Err(Failure::NoAnswer),
        }
    }

    /// Runs statements as text, one after another.
    pub(crate) async fn run_text(
        &mut self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        match tokio::time::timeout(limit, self.conn.query(sql)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(mysql_async::Error::Server(refused))) => Err(Failure::Refused(refused)),
            Ok(Err(error)) => Err(Failure::Broken(error)),
            Err(_) => Err(Failure::NoAnswer),
        }
    }

    pub(crate) async fn close(self) {
        // The server notices the end of the stream in any case.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.conn.disconnect()).await;
    }

    /// Closes a connection whose statement may still run.
    pub(crate) fn abandon(self) {
        drop_outside(self.conn);
    }
}

/// Drops something that holds a connection outside of any runtime. Inside of one the driver would
/// wait for the answer that does not come, in a task of its own, before it closes the stream.
fn drop_outside(connection: impl Send + 'static) {
    let dropped = std::thread::Builder::new()
        .name("palisade-close".to_owned())
        .spawn(move || drop(connection));
    if let Err(error) = dropped {
        tracing::debug!(%error, "a connection could not be closed at once");
    }
}

impl Failure {
    /// Whether the connection cannot be used any more.
    pub(crate) fn is_end_of_connection(&self) -> bool {
        match self {
            Failure::Unwanted | Failure::TooLate => false,
            // One that has become read-only: another server may be the primary now.
            Failure::Refused(refused) => is_goodbye(refused.code) || is_read_only(refused.code),
            Failure::Unreachable(_)
            | Failure::NoAnswerToLogin
            | Failure::ReadOnly
            | Failure::Broken(_)
            | Failure::NoAnswer => true,
        }
    }

    /// Whether the statement may have been done.
    pub(super) fn may_be_done(&self) -> bool {
        match self {
            Failure::Broken(_) | Failure::NoAnswer => true,
            Failure::Refused(refused) => is_goodbye(refused.code),
            _ => false,
        }
    }

    /// Whether the server has begun with the statement, and undone what it had not committed: it lost a
    /// deadlock, waited too long for a row, was killed, or a row changed meanwhile.
    pub(super) fn is_rolled_back(&self) -> bool {
        matches!(self.code(), Some(code) if is_rolled_back(code))
    }

    /// Whether the same statement may succeed at once on another attempt.
    pub(super) fn is_worth_another_try(&self, failures: u32) -> bool {
        match self {
            Failure::Broken(_) => failures < 3,
            Failure::Refused(refused) => {
                is_rolled_back(refused.code)
                    || (is_goodbye(refused.code) && failures < 3)
                    || (is_read_only(refused.code) && failures < 1)
            }
            // The lane pauses by itself.
            Failure::Unreachable(mysql_async::Error::Io(_)) => failures < 3,
            _ => false,
        }
    }

    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Failure::Refused(refused) => Some(refused.code),
            _ => None,
        }
    }

    /// The error for the caller. It holds neither the user nor the password.
    pub(crate) fn into_error(self, settings: &ClientSettings, sent: bool) -> Error {
        let servers = settings.servers();
        let error = match self {
            Failure::Unwanted => {
                Error::unavailable("the caller has left before the statement was sent")
            }
            Failure::Unreachable(cause) => {
                Error::unavailable(format!("{servers} cannot be reached: {cause}"))
                    .with_source(cause)
            }
            Failure::NoAnswerToLogin => Error::unavailable(format!(
                "{servers} does not answer within connect_timeout={:?}",
                settings.connect_timeout
            )),
            Failure::ReadOnly => Error::unavailable(format!(
                "{servers} is read-only; name the primary in the URL, or all servers, to take the one that can be written to"
            )),
            Failure::Broken(cause) => {
                Error::unavailable(format!("the connection to {servers} ended: {cause}"))
                    .with_source(cause)
            }
            Failure::NoAnswer | Failure::TooLate => {
                Error::unavailable(format!("{servers} does not answer in time"))
            }
            Failure::Refused(refused) => refused_error(settings, refused),
        };
        if sent {
            error
        } else {
            error.with_nothing_sent()
        }
    }
}

/// The server says goodbye: it shuts down, or the connection was killed.
fn is_goodbye(code: u16) -> bool {
    matches!(
        code,
        1053 | 1079 | 1080 | 1152..=1161 | 1184 | 1927 | 3169 | 3032 | 4031
    )
}

fn is_rolled_back(code: u16) -> bool {
    matches!(code, 1213 | 1205 | 1317 | 1020 | 3101)
}

fn is_read_only(code: u16) -> bool {
    matches!(code, 1290 | 1792 | 1836 | 3988)
}

fn refused_error(settings: &ClientSettings, refused: mysql_async::ServerError) -> Error {
    let servers = settings.servers();
    let (code, said) = (refused.code, &refused.message);
    let error = match code {
        1045 | 1698 | 1251 | 1524 | 3118 | 1862 => Error::new(
            ErrorKind::Denied,
            format!("{servers} refuses the user or the password ({code}); check both in the URL"),
        ),
        1044 | 1142 | 1143 | 1227 | 1370 | 1095 => Error::new(
            ErrorKind::Denied,
            format!(
                "{servers} refuses for missing rights ({code}: {said}); let an administrator run what \
                 `palisade schema --print` writes, and grant SELECT, INSERT, UPDATE, DELETE and EXECUTE"
            ),
        ),
        1049 => Error::bad_url(format!(
            "{servers} has no such database; create it, or name another behind the host"
        )),
        code if is_read_only(code) => Error::unavailable(format!(
            "{servers} is read-only ({code}: {said}); name the primary in the URL"
        )),
        1040 | 1203 | 1226 => Error::unavailable(format!(
            "{servers} has no connection left ({code}: {said}); raise max_connections, or lower waits= in the URL"
        )),
        1021 | 1030 | 1114 => Error::unavailable(format!(
            "{servers} cannot write ({code}: {said}); is its disk full?"
        )),
        code if is_rolled_back(code) => Error::unavailable(format!(
            "{servers} did not get a row in time ({code}: {said}); does a forgotten transaction hold it?"
        )),
        1665 => Error::config(format!(
            "{servers} replicates statements (binlog_format=STATEMENT), which READ COMMITTED does not allow; set it to ROW or MIXED"
        )),
        code if is_goodbye(code) => {
            Error::unavailable(format!("{servers} ended the connection ({code}: {said})"))
        }
        _ => Error::protocol(format!("{servers} refuses a statement ({code}: {said})")),
    };
    error.with_source(refused)
}
