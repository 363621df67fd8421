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

/// One connection, on the runtime that it was opened on.
#[derive(Clone)]
pub(super) enum Raw {
    Postgres(Arc<Postgres>),
    Mysql(Arc<Mutex<Mysql>>),
}

pub(super) struct Postgres {
    client: tokio_postgres::Client,
    insert: Statement,
    delete: Statement,
}

pub(super) struct Mysql {
    conn: Conn,
    insert: mysql_async::Statement,
    delete: mysql_async::Statement,
}

/// Creates the table. Before any process of a contest does anything.
pub(super) async fn create_table(url: &str) -> Result<()> {
    if url.starts_with("postgres") {
        connect_postgres(url).await?.batch_execute(TABLE[0]).await?;
    } else {
        Conn::from_url(url).await?.query_drop(TABLE[1]).await?;
    }
    Ok(())
}

async fn connect_postgres(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

impl Raw {
    pub(super) async fn connect(url: &str) -> Result<Raw> {
        if url.starts_with("postgres") {
            let client = connect_postgres(url).await?;
            let (insert, delete) = (
                client.prepare(INSERT[0]).await?,
                client.prepare(DELETE[0]).await?,
            );
            return Ok(Raw::Postgres(Arc::new(Postgres {
                client,
                insert,
                delete,
            })));
        }
        let mut conn = Conn::from_url(url).await?;
        let (insert, delete) = (conn.prep(INSERT[1]).await?, conn.prep(DELETE[1]).await?);
        Ok(Raw::Mysql(Arc::new(Mutex::new(Mysql {
            conn,
            insert,
            delete,
        }))))
    }

    /// Polls until it has the name.
    pub(super) async fn take(&self, name: &str) -> Result<()> {
        while !self.try_take(name).await? {
            sleep(AGAIN).await;
        }
        Ok(())
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
