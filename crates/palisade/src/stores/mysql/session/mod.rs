//! `format=session`: the user locks of MySQL and MariaDB, `GET_LOCK`.

mod keys;
mod link;

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::FromRow;

use self::keys::Keys;
use self::link::{NOW, Texts};
use super::client::{Client, ClientSettings, Contact, How, Statement};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Capability, Mode, ServerInfo, Store};
use crate::stores::sql::session::{self as kit, Engine, Seen};
use crate::url::StoreUrl;

/// The capability of the format `session`.
pub const SESSION: Capability = Capability {
    store: "mysql",
    // The server counts in whole seconds.
    min_lease: Duration::from_secs(1),
    rwlock: false,
    ..kit::CAPABILITY
};

/// Opens a URL with `format=session`. Nothing is connected.
pub(super) fn open(mut url: StoreUrl) -> Result<Arc<dyn Store>> {
    let client = ClientSettings::read(&mut url)?;
    let word = url.take("keys");
    let waits = url.take_parsed("waits", "a number of connections, from 1")?;
    url.finish(&["keys", "tls", "waits"])?;
    let common = url.common();
    let engine = UserLocks {
        client: Client::new(client, Arc::new(NoContact)),
        texts: Texts::new(),
        keys: Keys::read(word.as_deref(), common.exact_names())?,
        prefix: common.prefix.clone().unwrap_or_default(),
    };
    let waits = waits.unwrap_or(kit::WAITS).max(1);
    Ok(kit::store(engine, waits, &SESSION))
}

/// The connections for questions are of no use to a lock.
struct NoContact;

impl Contact for NoContact {
    fn lost(&self) {}
    fn regained(&self) {}
}

struct UserLocks {
    client: Client,
    texts: Arc<Texts>,
    keys: Keys,
    prefix: String,
}

impl UserLocks {
    async fn query<T: FromRow>(
        &self,
        sql: &str,
        values: Vec<mysql_async::Value>,
    ) -> Result<Vec<T>> {
        let statement = Statement {
            sql: sql.into(),
            values,
        };
        let done = self.client.run(&statement, How::URGENT).await?;
        let rows = done.rows.into_iter().map(T::from_row_opt);
        rows.collect::<std::result::Result<_, _>>()
            .map_err(|_| Error::protocol("the server's answer about its sessions cannot be read"))
    }
}

impl Engine for UserLocks {
    type Key = String;
    type Link = link::Session;

    fn key(&self, name: &Name) -> Result<String> {
        self.keys
            .key(&[self.prefix.as_str(), name.as_str()].concat())
    }

    fn shown(&self, key: &String) -> String {
        key.clone()
    }

    fn length(lease: Duration) -> Duration {
        Duration::from_secs(u64::try_from(lease.as_millis().div_ceil(1000)).unwrap_or(u64::MAX))
    }

    fn request_timeout(&self) -> Duration {
        self.client.settings().request_timeout
    }

    async fn open(&self, length: Duration) -> Result<link::Session> {
        link::Session::open(&self.client, &self.texts, length).await
    }

    /// The list of sessions, which knows user and address, is not joined: MariaDB 10.11 has crashed
    /// when a prepared statement read it in a subquery.
    async fn holders(&self, key: &String) -> Result<Vec<Seen>> {
        let rows = self.query("SELECT IS_USED_LOCK(?)", vec![key.as_str().into()]);
        let rows: Vec<(Option<i64>,)> = rows.await?;
        let seen = |(session,): (Option<i64>,)| {
            session.map(|session| Seen {
                session,
                mode: Mode::Exclusive,
                owner: format!("session {session}"),
            })
        };
        Ok(rows.into_iter().filter_map(seen).collect())
    }

    async fn now(&self) -> Result<Fence> {
        let rows: Vec<(i64,)> = self.query(&format!("SELECT {NOW}"), Vec::new()).await?;
        let now = rows.first().map(|(micros,)| kit::fence_at(*micros));
        now.ok_or_else(|| Error::protocol("the server does not say what time it is"))
    }

    async fn server(&self) -> Result<ServerInfo> {
        super::server_info(&self.client).await
    }
}
