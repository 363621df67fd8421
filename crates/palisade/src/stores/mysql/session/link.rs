//! One session of MySQL or MariaDB. It runs one statement at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mysql_async::{FromRowError, Row, Value};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::Mode;
use crate::stores::in_task::in_task;
use crate::stores::mysql::client::{Client, ClientSettings, Connection, Statement};
use crate::stores::sql::session as kit;

/// The server's time in µs. It is read after the function before it has returned, unlike that of
/// `UTC_TIMESTAMP`. The session is in UTC.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";
/// As long as every server can wait.
const FOR_EVER: u32 = u32::MAX;

pub(super) struct Session {
    /// `None` when it has failed.
    connection: Arc<Mutex<Option<Connection>>>,
    settings: Arc<ClientSettings>,
    number: u32,
    /// How many sessions this process had opened before.
    opened: u64,
    address: String,
    /// A statement that is not answered for so long will not be: the lease has ended.
    longest: Duration,
    closed: CancellationToken,
    texts: Arc<Texts>,
}

/// The statements.
pub(super) struct Texts {
    lock: Arc<str>,
    unlock: Arc<str>,
    unlock_all: Arc<str>,
    beat: Arc<str>,
}

impl Texts {
    pub(super) fn new() -> Arc<Texts> {
        Arc::new(Texts {
            lock: format!("SELECT GET_LOCK(?, ?), {NOW}").into(),
            unlock: "SELECT RELEASE_LOCK(?)".into(),
            unlock_all: "DO RELEASE_ALL_LOCKS()".into(),
            // A server that is no primary any more would let the session live, and hold its locks.
            beat: "SELECT @@global.read_only + 0".into(),
        })
    }
}

impl Session {
    /// Opens a session that the server ends when it has been silent for so long, in whole seconds.
    pub(super) async fn open(
        client: &Client,
        texts: &Arc<Texts>,
        length: Duration,
    ) -> Result<Session> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let settings = Arc::clone(client.settings());
        let mut connection = client.connect().await?;
        let opened = OPENED.fetch_add(1, Ordering::Relaxed);
        if connection.server.galera {
            connection.close().await;
            return Err(Error::config(
                "this server is a node of a Galera cluster (wsrep_on), where GET_LOCK is refused or \
                 locks on one node only; use a server outside of a cluster, or another store",
            ));
        }
        if settings.is_proxied() {
            connection.close().await;
            return Err(Error::config(
                "a proxy is between this client and the server, which may lend one session to many \
                 clients, so that two of them would hold one session lock; name the server itself, \
                 or use format=table",
            ));
        }
        let limit = settings.request_timeout;
        let set = format!("SET SESSION wait_timeout = {}", length.as_secs());
        let ready = async {
            connection.run_text(&set, limit).await?;
            // The one is MariaDB's, the other MySQL's.
            for unlimited in ["max_statement_time", "max_execution_time"] {
                let set = format!("SET SESSION {unlimited} = 0");
                drop(connection.run_text(&set, limit).await);
            }
            let clock = "SELECT SYSDATE(6), SLEEP(0.001), SYSDATE(6)";
            connection.run_text(clock, limit).await
        };
        let clock = match ready.await {
            Ok(rows) => rows,
            Err(failure) => {
                connection.abandon();
                return Err(failure.into_error(&settings, false));
            }
        };
        let read = |at| clock.first().and_then(|row| row.as_ref(at)).cloned();
        if read(0) == read(2) {
            connection.close().await;
            return Err(Error::config(
                "the server runs with --sysdate-is-now, so that the time of a grant cannot be read \
                 after it, and fences would not rise; start it without, or use format=table",
            ));
        }
        Ok(Session {
            number: connection.number(),
            opened,
            address: connection.server.address.clone(),
            connection: Arc::new(Mutex::new(Some(connection))),
            settings,
            longest: length + limit,
            closed: CancellationToken::new(),
            texts: Arc::clone(texts),
        })
    }

    /// Runs a statement, in a task of its own: others wait for the connection. One without values is
    /// not prepared.
    async fn run(
        &self,
        sql: &Arc<str>,
        values: Vec<Value>,
        limit: Duration,
    ) -> Result<Option<Row>> {
        let statement = Statement {
            sql: Arc::clone(sql),
            values,
        };
        let (slot, closed) = (Arc::clone(&self.connection), self.closed.clone());
        let settings = Arc::clone(&self.settings);
        in_task(async move {
            let mut slot = slot.lock().await;
            let Some(connection) = slot.as_mut().filter(|_| !closed.is_cancelled()) else {
                return Err(ended());
            };
            let done = tokio::select! {
                biased;
                done = async {
                    if statement.values.is_empty() {
                        connection.run_text(&statement.sql, limit).await
                    } else {
                        connection.run(&statement, limit).await
                    }
                } => Some(done),
                () = closed.cancelled() => None,
            };
            let failure = match done {
                Some(Ok(rows)) => return Ok(rows.into_iter().next()),
                Some(Err(failure)) if !failure.is_end_of_connection() => {
                    return Err(failure.into_error(&settings, true));
                }
                Some(Err(failure)) => failure.into_error(&settings, true),
                None => ended(),
            };
            slot.take().into_iter().for_each(Connection::abandon);
            closed.cancel();
            Err(failure)
        })
        .await
    }

    async fn ask(&self, sql: &Arc<str>, values: Vec<Value>) -> Result<Option<Row>> {
        self.run(sql, values, self.longest).await
    }

    async fn lock(&self, key: &str, seconds: u32, limit: Duration) -> Result<Option<Fence>> {
        let values = vec![key.into(), seconds.into()];
        let row = self.run(&self.texts.lock, values, limit).await?;
        let row = row.ok_or_else(unexpected)?;
        let (granted, micros): (Option<i64>, i64) = read(row)?;
        Ok((granted == Some(1)).then(|| kit::fence_at(micros)))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closed.cancel();
        // A statement that runs ends by that, and with it the connection.
        if let Ok(mut slot) = self.connection.try_lock()
            && let Some(connection) = slot.take()
        {
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(connection.close())),
                Err(_) => connection.abandon(),
            }
        }
    }
}

fn ended() -> Error {
    Error::unavailable("the session with the server has ended")
}

fn unexpected() -> Error {
    Error::protocol("the server's answer about a user lock cannot be read")
}

fn read<T: mysql_async::prelude::FromRow>(row: Row) -> Result<T> {
    T::from_row_opt(row).map_err(|FromRowError(_)| unexpected())
}

impl kit::Link for Session {
    type Key = String;

    fn number(&self) -> i64 {
        self.number.into()
    }

    fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    async fn attempt(&self, key: &String, _: Mode) -> Result<Option<Fence>> {
        self.lock(key, 0, self.longest).await
    }

    async fn wait(&self, key: &String, _: Mode) -> Result<Option<Fence>> {
        self.lock(key, FOR_EVER, Duration::MAX).await
    }

    async fn unlock(&self, key: &String, _: Mode) -> Result<bool> {
        let row = self
            .ask(&self.texts.unlock, vec![key.as_str().into()])
            .await?;
        let (unlocked,): (Option<i64>,) = read(row.ok_or_else(unexpected)?)?;
        Ok(unlocked == Some(1))
    }

    async fn unlock_all(&self) -> Result<()> {
        self.ask(&self.texts.unlock_all, Vec::new()).await.map(drop)
    }

    async fn downgrade(&self, _: &String) -> Result<bool> {
        Err(Error::unsupported("a user lock has no readers"))
    }

    async fn beat(&self) -> Result<()> {
        let row = self.ask(&self.texts.beat, Vec::new()).await?;
        let (read_only,): (i64,) = read(row.ok_or_else(unexpected)?)?;
        if read_only != 0 {
            self.closed.cancel();
            return Err(Error::unavailable(format!(
                "{} is read-only now: it has become a replica, and its locks exclude no one",
                self.address
            )));
        }
        Ok(())
    }

    /// Only if the number is certainly that session's still: this one is older, by its own number
    /// and by ours, and so the server has not been restarted since.
    async fn interrupt(&self, other: &Session) -> Result<()> {
        let is_older = self.number < other.number && self.opened < other.opened;
        if self.address != other.address || !is_older {
            return Err(Error::unavailable("there is no session to interrupt it by"));
        }
        let kill: Arc<str> = format!("KILL QUERY {}", other.number).into();
        self.ask(&kill, Vec::new()).await.map(drop)
    }

    async fn is_waiting(&self, other: &Session) -> Result<bool> {
        // As text: MariaDB does not always survive a list of sessions that is prepared.
        let state = format!(
            "SELECT STATE FROM information_schema.PROCESSLIST WHERE ID = {}",
            other.number
        );
        let row = self.ask(&state.into(), Vec::new()).await?;
        let Some(row) = row else { return Ok(false) };
        let (state,): (Option<String>,) = read(row)?;
        Ok(state.as_deref() == Some("User lock"))
    }
}
