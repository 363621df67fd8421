//! The plain lock table: what a program does without us.

use std::sync::Arc;
use std::time::Duration;

use palisade::fence::mysql::mysql_async::prelude::Queryable;
use palisade::fence::mysql::mysql_async::{self, Conn};
use palisade::fence::postgres::tokio_postgres::{self, NoTls, Statement};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::compare::Result;

/// How often a name that is taken is tried again.
const AGAIN: Duration = Duration::from_millis(1);

/// As long as those of other clients.
const OWNER: &str = "0123456789abcdef0123456789abcdef";

const DEADLOCK: u16 = 1213;

const TABLE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS raw_lock (lock_name varchar(255) PRIMARY KEY, owner_id varchar(64) NOT NULL, \
     expire_time timestamptz NOT NULL)",
    "CREATE TABLE IF NOT EXISTS raw_lock (lock_name VARCHAR(255) PRIMARY KEY, owner_id VARCHAR(64) NOT NULL, \
     expire_time DATETIME(6) NOT NULL)",
];

const INSERT: [&str; 2] = [
    "INSERT INTO raw_lock (lock_name, owner_id, expire_time) VALUES ($1, $2, now() + interval '30 seconds') \
     ON CONFLICT DO NOTHING",
    "INSERT IGNORE INTO raw_lock (lock_name, owner_id, expire_time) VALUES (?, ?, NOW(6) + INTERVAL 30 SECOND)",
];

const DELETE: [&str; 2] = [
    "DELETE FROM raw_lock WHERE lock_name = $1 AND owner_id = $2",
    "DELETE FROM raw_lock WHERE lock_name = ? AND owner_id = ?",
];

/// Session locks: the engine's own queue is the poller's counterpart.
const LOCK: [&str; 2] = [
    "SELECT pg_advisory_lock(hashtextextended($1, 0))",
    "SELECT GET_LOCK(?, 3600)",
];

const UNLOCK: [&str; 2] = [
    "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
    "SELECT RELEASE_LOCK(?)",
];

/// One connection, on the runtime that it was opened on.
#[derive(Clone)]
pub(super) enum Raw {
    Postgres(Arc<Postgres>),
    Mysql(Arc<Mutex<Mysql>>),
}

pub(super) struct Postgres {
    client: tokio_postgres::Client,
    is_session: bool,
    insert: Statement,
    delete: Statement,
}

pub(super) struct Mysql {
    conn: Conn,
    is_session: bool,
    insert: mysql_async::Statement,
    delete: mysql_async::Statement,
}

/// Creates the table. Before any process of a contest does anything.
pub(super) async fn create_table(url: &str) -> Result<()> {
    let (url, _) = parts(url);
    if url.starts_with("postgres") {
        connect_postgres(url).await?.batch_execute(TABLE[0]).await?;
    } else {
        Conn::from_url(url).await?.query_drop(TABLE[1]).await?;
    }
    Ok(())
}

/// The URL as the drivers take it, and whether session locks are meant.
fn parts(url: &str) -> (&str, bool) {
    let (url, words) = url.split_once('?').unwrap_or((url, ""));
    (url, words.contains(super::SESSION))
}

async fn connect_postgres(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

impl Raw {
    pub(super) async fn connect(url: &str) -> Result<Raw> {
        let (url, is_session) = parts(url);
        let [take, give] = if is_session {
            [LOCK, UNLOCK]
        } else {
            [INSERT, DELETE]
        };
        if url.starts_with("postgres") {
            let client = connect_postgres(url).await?;
            let (insert, delete) = (
                client.prepare(take[0]).await?,
                client.prepare(give[0]).await?,
            );
            return Ok(Raw::Postgres(Arc::new(Postgres {
                client,
                is_session,
                insert,
                delete,
            })));
        }
        let mut conn = Conn::from_url(url).await?;
        let (insert, delete) = (conn.prep(take[1]).await?, conn.prep(give[1]).await?);
        Ok(Raw::Mysql(Arc::new(Mutex::new(Mysql {
            conn,
            is_session,
            insert,
            delete,
        }))))
    }

    /// Polls until it has the name; a session lock waits by itself.
    pub(super) async fn take(&self, name: &str) -> Result<()> {
        if let Some(done) = self.in_session(name, true).await? {
            return done.then_some(()).ok_or_else(|| "raw: not locked".into());
        }
        while !self.try_take(name).await? {
            sleep(AGAIN).await;
        }
        Ok(())
    }

    /// Locks or unlocks in the session; whether that was done. `None` where there is a table.
    async fn in_session(&self, name: &str, takes: bool) -> Result<Option<bool>> {
        match self {
            Raw::Postgres(raw) if raw.is_session => {
                let statement = if takes { &raw.insert } else { &raw.delete };
                let row = raw.client.query_one(statement, &[&name]).await?;
                // The function that waits says nothing.
                Ok(Some(takes || row.try_get(0)?))
            }
            Raw::Mysql(raw) => {
                let Mysql {
                    conn,
                    insert,
                    delete,
                    is_session,
                } = &mut *raw.lock().await;
                if !*is_session {
                    return Ok(None);
                }
                let statement = if takes { &*insert } else { &*delete };
                let done: Option<Option<i64>> = conn.exec_first(statement, (name,)).await?;
                Ok(Some(done.flatten() == Some(1)))
            }
            Raw::Postgres(_) => Ok(None),
        }
    }

    async fn try_take(&self, name: &str) -> Result<bool> {
        let inserted = match self {
            Raw::Postgres(raw) => raw.client.execute(&raw.insert, &[&name, &OWNER]).await?,
            Raw::Mysql(raw) => {
                let Mysql { conn, insert, .. } = &mut *raw.lock().await;
                match conn.exec_drop(&*insert, (name, OWNER)).await {
                    // Pollers of one name run into each other.
                    Err(error) if is_deadlock(&error) => return Ok(false),
                    done => done?,
                }
                conn.affected_rows()
            }
        };
        Ok(inserted == 1)
    }

    pub(super) async fn give_back(&self, name: &str) -> Result<()> {
        if let Some(done) = self.in_session(name, false).await? {
            return done.then_some(()).ok_or_else(|| "raw: lost".into());
        }
        let deleted = match self {
            Raw::Postgres(raw) => raw.client.execute(&raw.delete, &[&name, &OWNER]).await?,
            Raw::Mysql(raw) => {
                let Mysql { conn, delete, .. } = &mut *raw.lock().await;
                loop {
                    match conn.exec_drop(&*delete, (name, OWNER)).await {
                        Err(error) if is_deadlock(&error) => {}
                        done => break done?,
                    }
                }
                conn.affected_rows()
            }
        };
        if deleted == 1 {
            Ok(())
        } else {
            Err("raw: lost before it was given back".into())
        }
    }
}

fn is_deadlock(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(error) if error.code == DEADLOCK)
}
