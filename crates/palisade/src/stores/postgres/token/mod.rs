//! The formats `simple` and `shedlock`: a table that other programs use as well.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::backend::{Backend, locked, long_patience, short_patience, unwanted};
use super::client::{Failed, Parameters, Purpose, Remedy};
use crate::error::Result;
use crate::name::Name;
use crate::store::{Capability, ClientHandle, Extensions, Ping, Schema, ServerInfo};
use crate::stores::kit::token::TokenBackend;
use crate::stores::sql::token::{
    self as shared, Call, Column, Layout, LockTable, Reply, Tokens, unexpected,
};

/// The capability of the format `simple`.
pub const SIMPLE: Capability = shared::SIMPLE.capability("postgres");

/// The capability of the format `shedlock`.
pub const SHEDLOCK: Capability = shared::SHEDLOCK.capability("postgres");

const COLUMNS: &str = "SELECT c.column_name::text, c.data_type::text, c.character_maximum_length::bigint, \
     c.datetime_precision::bigint, EXISTS (SELECT FROM pg_index i \
       WHERE i.indrelid = to_regclass(quote_ident($1) || '.' || quote_ident($2)) AND i.indisunique \
         AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = c.ordinal_position) \
     FROM information_schema.columns c WHERE c.table_schema = $1 AND c.table_name = $2";

/// What creates the table of a layout.
pub(super) fn tables(layout: &Layout) -> &'static str {
    if layout.format == shared::SIMPLE.format {
        concat!(include_str!("simple.sql"), "\n", include_str!("step.sql"))
    } else {
        concat!(include_str!("shedlock.sql"), "\n", include_str!("step.sql"))
    }
}

/// The locks of a table, for one client.
pub(super) fn tokens(backend: Arc<Backend>, layout: &'static Layout) -> impl TokenBackend {
    Tokens {
        layout,
        zone: backend.settings.zone,
        capability: if layout.format == shared::SIMPLE.format {
            &SIMPLE
        } else {
            &SHEDLOCK
        },
        facts: Arc::new(OnceCell::new()),
        table: Arc::new(Table(backend)),
    }
}

struct Table(Arc<Backend>);

impl Table {
    /// Sends a call. `patience` is how many milliseconds it waits for a row.
    async fn send(
        &self,
        call: &Call,
        purpose: Purpose,
        limit: Duration,
        patience: &str,
    ) -> std::result::Result<(Vec<Row>, bool), Failed> {
        let parameters: &Parameters<'_> = &[
            (&call.verb, Type::TEXT),
            (&call.name, Type::TEXT),
            (&call.claim, Type::TEXT),
            (&call.fence, Type::INT8),
            (&call.label, Type::TEXT),
            (&call.lease, Type::INT8),
            (&call.unit, Type::INT8),
            (&call.zone, Type::TEXT),
            (&patience, Type::TEXT),
        ];
        let step = &self.0.text.step;
        self.0.send(purpose, limit, step, parameters).await
    }
}

#[async_trait]
impl LockTable for Table {
    fn attach(&self, client: ClientHandle) {
        self.0.attach(client);
    }

    fn key(&self, name: &Name) -> Result<String> {
        self.0.settings.key(name)
    }

    async fn columns(&self) -> Result<Vec<Column>> {
        let settings = &self.0.settings;
        let (schema, table) = (settings.schema.as_str(), settings.table.as_str());
        let parameters: &Parameters<'_> = &[(&schema, Type::TEXT), (&table, Type::TEXT)];
        let mut rows = self.0.query(Purpose::Verbs, COLUMNS, parameters).await?;
        if rows.is_empty() {
            self.0.create().await?;
            rows = self.0.query(Purpose::Verbs, COLUMNS, parameters).await?;
        }
        let column = |row: &Row| Column {
            name: row.get(0),
            kind: row.get(1),
            characters: row.get(2),
            precision: row.get(3),
            is_unique: row.get(4),
        };
        Ok(rows.iter().map(column).collect())
    }

    async fn server_zone(&self) -> Result<String> {
        let zone = "SELECT current_setting('TimeZone')";
        let rows = self.0.query(Purpose::Verbs, zone, &[]).await?;
        Ok(rows.first().ok_or_else(unexpected)?.get(0))
    }

    async fn call(&self, call: Call) -> Result<Reply> {
        if call.wanted.is_some_and(|claim| !self.0.wants(claim)) {
            return Err(unwanted());
        }
        let most = self.0.client.settings().request_timeout;
        let (purpose, limit) = match call.limit {
            None => (Purpose::Verbs, most),
            Some(limit) => (Purpose::Renewals, limit.min(most)),
        };
        let mut sent = self
            .send(&call, purpose, limit, &short_patience(limit))
            .await;
        if matches!(&sent, Err(failed) if failed.remedy == Remedy::Locked) {
            // Another session has locked the row. It must not hold up the calls behind this one.
            let turn = tokio::time::timeout(most, self.0.waits_for_row.lock());
            let Ok(_turn) = turn.await else {
                return Err(locked());
            };
            let patience = long_patience(most);
            sent = self.send(&call, Purpose::Patience, most, &patience).await;
        }
        let (rows, sent_again) = sent.map_err(|failed| match failed.remedy {
            Remedy::Locked => locked(),
            _ => failed.error,
        })?;
        let row = rows.first().ok_or_else(unexpected)?;
        Ok(Reply {
            done: row.get(0),
            holder: row.get(1),
            held: row.get(2),
            left: row.get(3),
            sent_again,
        })
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(self),
            name_keys: Some(&*self.0),
            schema: Some(&*self.0),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Table {
    async fn ping(&self) -> Result<ServerInfo> {
        self.columns().await?;
        self.0.server_info().await
    }
}
