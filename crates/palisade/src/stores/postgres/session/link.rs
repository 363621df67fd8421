//! One session of PostgreSQL.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};
use tokio_util::sync::CancellationToken;

use super::keys::Key;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::Mode;
use crate::stores::postgres::client::{Client, Connection, Failed};
use crate::stores::postgres::failure::unexpected;
use crate::stores::sql::session as kit;

/// The server's time in µs. It is read after the function before it has returned.
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// What is asked about a key: an index of [`FUNCTIONS`].
#[derive(Clone, Copy)]
enum Verb {
    Try,
    Lock,
    Unlock,
}

/// The functions of the verbs: for a writer, and for a reader.
const FUNCTIONS: [[&str; 2]; 3] = [
    ["pg_try_advisory_lock", "pg_try_advisory_lock_shared"],
    ["pg_advisory_lock", "pg_advisory_lock_shared"],
    ["pg_advisory_unlock", "pg_advisory_unlock_shared"],
];

pub(super) struct Session {
    connection: Connection,
    number: i32,
    /// By verb and mode, for keys of one number.
    statements: [[Statement; 2]; 3],
}

impl Session {
    /// Opens a session that the server ends when it has been silent for so long.
    pub(super) async fn open(client: &Client, length: Duration) -> Result<Session> {
        let limit = client.settings().request_timeout;
        let connection = client.alone().await?;
        let ready = tokio::time::timeout(limit, set_up(&connection, length)).await;
        let (number, statements) =
            ready.map_err(|_| Failed::silent(&connection.address, limit).error)??;
        Ok(Session {
            connection,
            number,
            statements,
        })
    }

    async fn ask(&self, verb: Verb, key: &Key, mode: Mode) -> Result<Row> {
        let reader = usize::from(mode == Mode::Shared);
        let client = &self.connection.client;
        let asked = match key {
            Key::Whole(key) => {
                let statement = &self.statements[verb as usize][reader];
                client.query_one(statement, &[key]).await
            }
            Key::Pair(high, low) => {
                let function = FUNCTIONS[verb as usize][reader];
                let statement = format!("SELECT {function}($1, $2), {NOW}");
                let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                    [(high, Type::INT4), (low, Type::INT4)];
                let rows = client.query_typed(&statement, &parameters).await;
                match rows.map(|mut rows| rows.pop()) {
                    Ok(row) => return row.ok_or_else(unexpected),
                    Err(error) => Err(error),
                }
            }
        };
        asked.map_err(|error| self.failed(&error))
    }

    async fn run(&self, statement: &str) -> Result<()> {
        let done = self.connection.client.batch_execute(statement).await;
        done.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Error {
        Failed::of(error, &self.connection.address).error
    }
}

/// Sets what the server does about a silent session, and prepares the statements.
async fn set_up(connection: &Connection, length: Duration) -> Result<(i32, [[Statement; 2]; 3])> {
    let client = &connection.client;
    let failed = |error: tokio_postgres::Error| Failed::of(&error, &connection.address).error;
    let millis = length.as_millis();
    // A wait must not end by a time-out that the role or the database has.
    let ours = format!(
        "SET idle_session_timeout = {millis}; SET statement_timeout = 0; SET lock_timeout = 0; \
         SELECT set_config(name, '0', false) FROM pg_catalog.pg_settings \
         WHERE name = 'transaction_timeout'"
    );
    let number = client.query_one(
        "SELECT pg_backend_pid(), current_setting('server_version_num')::int",
        &[],
    );
    let number = number.await.map_err(failed)?;
    if number.get::<_, i32>(1) < 140_000 {
        return Err(Error::unsupported(format!(
            "{} is older than PostgreSQL 14 and cannot end a session that is silent, so a holder \
             that hangs would keep its lock for ever; upgrade it, or use format=table",
            connection.address
        )));
    }
    client.batch_execute(&ours).await.map_err(failed)?;
    // A client that is cut off while it waits is noticed, too. Not every system has these.
    let seconds = (length.as_secs() / 3).clamp(1, 60);
    let of_the_network = format!(
        "SET tcp_keepalives_idle = {seconds}; SET tcp_keepalives_interval = {seconds}; \
         SET tcp_keepalives_count = 3; SET tcp_user_timeout = {}",
        millis.max(1000)
    );
    for set in [
        &*of_the_network,
        "SET client_connection_check_interval = 500",
    ] {
        if let Err(error) = client.batch_execute(set).await {
            tracing::debug!(%error, "the server does not watch the network");
        }
    }
    let text = |verb: Verb, reader: usize| {
        format!("SELECT {}($1), {NOW}", FUNCTIONS[verb as usize][reader])
    };
    let prepare = async |verb: Verb, reader| {
        let text = text(verb, reader);
        client.prepare_typed(&text, &[Type::INT8]).await
    };
    let prepared = tokio::try_join!(
        prepare(Verb::Try, 0),
        prepare(Verb::Try, 1),
        prepare(Verb::Lock, 0),
        prepare(Verb::Lock, 1),
        prepare(Verb::Unlock, 0),
        prepare(Verb::Unlock, 1),
    );
    let (a, b, c, d, e, f) = prepared.map_err(failed)?;
    Ok((number.get(0), [[a, b], [c, d], [e, f]]))
}

fn fence(row: &Row) -> Result<Fence> {
    let micros = row.try_get(1).map_err(|_| unexpected())?;
    Ok(kit::fence_at(micros))
}

fn is_yes(row: &Row) -> Result<bool> {
    row.try_get(0).map_err(|_| unexpected())
}

impl kit::Link for Session {
    type Key = Key;

    fn number(&self) -> i64 {
        self.number.into()
    }

    fn closed(&self) -> &CancellationToken {
        self.connection.closed()
    }

    async fn attempt(&self, key: &Key, mode: Mode) -> Result<Option<Fence>> {
        let row = self.ask(Verb::Try, key, mode).await?;
        if is_yes(&row)? {
            fence(&row).map(Some)
        } else {
            Ok(None)
        }
    }

    async fn wait(&self, key: &Key, mode: Mode) -> Result<Option<Fence>> {
        let row = self.ask(Verb::Lock, key, mode).await?;
        fence(&row).map(Some)
    }

    async fn unlock(&self, key: &Key, mode: Mode) -> Result<bool> {
        is_yes(&self.ask(Verb::Unlock, key, mode).await?)
    }

    async fn unlock_all(&self) -> Result<()> {
        self.run("SELECT pg_advisory_unlock_all()").await
    }

    /// The reader's lock of its own session does not wait behind others. A second request, after a
    /// lost answer, changes nothing.
    async fn downgrade(&self, key: &Key) -> Result<bool> {
        let key = key.to_string();
        self.run(&format!(
            "SELECT pg_advisory_lock_shared({key}), CASE WHEN pg_advisory_unlock({key}) THEN true \
             ELSE NOT pg_advisory_unlock_shared({key}) END"
        ))
        .await?;
        Ok(true)
    }

    async fn beat(&self) -> Result<()> {
        self.run("SELECT 1").await
    }

    async fn interrupt(&self, other: &Session) -> Result<()> {
        other.connection.interrupt().await.map_err(|cause| {
            let address = &other.connection.address;
            Error::unavailable(format!("{address} cannot be reached: {cause}")).with_source(cause)
        })
    }

    async fn is_waiting(&self, other: &Session) -> Result<bool> {
        let asked = self
            .connection
            .client
            .query_typed(
                "SELECT 1 FROM pg_catalog.pg_locks WHERE pid = $1 AND locktype = 'advisory' AND NOT granted",
                &[(&other.number, Type::INT4)],
            )
            .await;
        asked
            .map(|rows| !rows.is_empty())
            .map_err(|error| self.failed(&error))
    }
}
