//! `format=session`: the advisory locks of PostgreSQL.

mod keys;
mod link;

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use self::keys::{Key, Keys};
use self::link::NOW;
use super::client::{Client, ClientSettings, ContactHandler, Parameters, Purpose, Remedy};
use super::failure::unexpected;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Capability, Mode, ServerInfo, Store};
use crate::stores::sql::session::{self as kit, Engine, Seen};
use crate::url::StoreUrl;

/// The capability of the format `session`.
pub const SESSION: Capability = Capability {
    store: "postgres",
    downgrade: true,
    ..kit::CAPABILITY
};

/// Opens a URL with `format=session`. Nothing is connected.
pub(super) fn open(mut url: StoreUrl) -> Result<Arc<dyn Store>> {
    let client = ClientSettings::read(&mut url)?.with_own_sessions();
    let keys = Keys::read(url.take("keys").as_deref())?;
    let waits = url.take_parsed("waits", "a number of connections, from 1")?;
    url.finish(&["keys", "sslmode", "waits"])?;
    let engine = Advisory {
        client: Client::new(client, Arc::new(NoContact)),
        keys,
        prefix: url.common().prefix.clone().unwrap_or_default(),
    };
    let waits = waits.unwrap_or(kit::WAITS).max(1);
    Ok(kit::store(engine, waits, &SESSION))
}

/// The connection for questions is of no use to a lock.
struct NoContact;

impl ContactHandler for NoContact {
    fn contact_lost(&self) {}
    fn contact_regained(&self) {}
}

struct Advisory {
    /// Its one connection is for questions about other sessions.
    client: Arc<Client>,
    keys: Keys,
    prefix: String,
}

impl Advisory {
    async fn query(&self, statement: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>> {
        let limit = self.request_timeout();
        let ask = || {
            self.client
                .query(Purpose::Patience, limit, statement, parameters)
        };
        let answer = match ask().await {
            // It may have ended long ago.
            Err(failed) if failed.remedy == Remedy::Reconnect => ask().await,
            answer => answer,
        };
        answer.map_err(|failed| failed.error)
    }
}

/// The sessions that hold the key of these two halves.
const HOLDERS: &str = "\
SELECT l.pid, l.mode = 'ShareLock', a.application_name, host(a.client_addr) \
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = $3 \
AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
AND l.classid::bigint = $1 AND l.objid::bigint = $2 ORDER BY l.pid";

impl Engine for Advisory {
    type Key = Key;
    type Link = link::Session;

    fn key(&self, name: &Name) -> Result<Key> {
        self.keys
            .key(&[self.prefix.as_str(), name.as_str()].concat())
    }

    fn shown(&self, key: &Key) -> String {
        key.to_string()
    }

    fn length(lease: Duration) -> Duration {
        // The server counts in whole milliseconds.
        Duration::from_millis(u64::try_from(lease.as_micros().div_ceil(1000)).unwrap_or(u64::MAX))
    }

    fn request_timeout(&self) -> Duration {
        self.client.settings().request_timeout
    }

    async fn open(&self, length: Duration) -> Result<link::Session> {
        link::Session::open(&self.client, length).await
    }

    async fn holders(&self, key: &Key) -> Result<Vec<Seen>> {
        let (high, low, form) = match *key {
            Key::Whole(key) => {
                let bits = key.cast_unsigned();
                (
                    (bits >> 32).cast_signed(),
                    (bits & 0xffff_ffff).cast_signed(),
                    1_i16,
                )
            }
            Key::Pair(high, low) => (high.cast_unsigned().into(), low.cast_unsigned().into(), 2),
        };
        let parameters: &Parameters<'_> =
            &[(&high, Type::INT8), (&low, Type::INT8), (&form, Type::INT2)];
        let rows = self.query(HOLDERS, parameters).await?;
        rows.iter().map(seen).collect()
    }

    async fn now(&self) -> Result<Fence> {
        let rows = self.query(&format!("SELECT {NOW}"), &[]).await?;
        let row = rows.first().ok_or_else(unexpected)?;
        Ok(kit::fence_at(row.try_get(0).map_err(|_| unexpected())?))
    }

    async fn server(&self) -> Result<ServerInfo> {
        let rows = self
            .query("SELECT current_setting('server_version')", &[])
            .await?;
        let row = rows.first().ok_or_else(unexpected)?;
        let connection = self.client.connection(Purpose::Patience).await?;
        Ok(ServerInfo {
            product: "postgres".to_owned(),
            version: row.try_get(0).map_err(|_| unexpected())?,
            role: Some("primary".to_owned()),
            address: Some(connection.address.to_string()),
        })
    }
}

fn seen(row: &Row) -> Result<Seen> {
    let read = || {
        let (session, is_shared): (i32, bool) = (row.try_get(0)?, row.try_get(1)?);
        let (program, address): (Option<String>, Option<String>) =
            (row.try_get(2)?, row.try_get(3)?);
        let program = program.filter(|program| !program.is_empty());
        let program = program.unwrap_or_else(|| "a program".to_owned());
        let address = address.map_or(String::new(), |address| format!(" from {address}"));
        Ok::<Seen, tokio_postgres::Error>(Seen {
            session: session.into(),
            mode: if is_shared {
                Mode::Shared
            } else {
                Mode::Exclusive
            },
            owner: format!("{program}{address} (session {session})"),
        })
    };
    read().map_err(|_| unexpected())
}
