//! The formats `simple` and `shedlock`: a table that other programs use as well.

use std::sync::Arc;

use async_trait::async_trait;
use mysql_async::Row;
use mysql_async::prelude::FromValue;
use tokio::sync::OnceCell;

use super::backend::Backend;
use super::client::{How, Statement};
use crate::error::Result;
use crate::name::Name;
use crate::store::{Capability, ClientHandle, Extensions, Ping, ServerInfo};
use crate::stores::kit::token::TokenBackend;
use crate::stores::sql::token::{
    self as shared, Call, Column, Layout, LockTable, Reply, Tokens, unexpected,
};

/// The capability of the format `simple`.
pub const SIMPLE: Capability = shared::SIMPLE.capability("mysql");

/// The capability of the format `shedlock`.
pub const SHEDLOCK: Capability = shared::SHEDLOCK.capability("mysql");

/// What creates the table of a layout, and then what is ours.
pub(super) fn tables(layout: &Layout) -> [&'static str; 4] {
    [
        if layout.format == shared::SIMPLE.format {
            include_str!("simple.sql")
        } else {
            include_str!("shedlock.sql")
        },
        include_str!("fence.sql"),
        "DROP PROCEDURE IF EXISTS {step}",
        include_str!("step.sql"),
    ]
}

/// The locks of a table, for one client.
pub(super) fn tokens(backend: Arc<Backend>, layout: &'static Layout) -> impl TokenBackend {
    let call = "CALL {step}(?,?,?,?,?,?,?,?)";
    Tokens {
        layout,
        zone: backend.settings.zone,
        capability: if layout.format == shared::SIMPLE.format {
            &SIMPLE
        } else {
            &SHEDLOCK
        },
        facts: Arc::new(OnceCell::new()),
        table: Arc::new(Table {
            call: backend.schema.text(call),
            columns: backend.schema.columns(),
            backend,
        }),
    }
}

struct Table {
    backend: Arc<Backend>,
    call: Arc<str>,
    columns: Arc<str>,
}

impl Table {
    async fn rows(&self, sql: &Arc<str>) -> Result<Vec<Row>> {
        let statement = Statement {
            sql: Arc::clone(sql),
            values: Vec::new(),
        };
        Ok(self.backend.run(&statement, How::URGENT).await?.rows)
    }
}

fn value<T: FromValue>(row: &Row, at: usize) -> Result<T> {
    match row.get_opt(at) {
        Some(Ok(value)) => Ok(value),
        _ => Err(unexpected()),
    }
}

#[async_trait]
impl LockTable for Table {
    fn attach(&self, client: ClientHandle) {
        self.backend.attach(client);
    }

    fn key(&self, name: &Name) -> Result<String> {
        Ok(self.backend.settings.key(name))
    }

    async fn columns(&self) -> Result<Vec<Column>> {
        let column = |row: &Row| {
            Ok(Column {
                name: value(row, 0)?,
                kind: value(row, 1)?,
                characters: value(row, 2)?,
                precision: value(row, 3)?,
                is_unique: value(row, 4)?,
            })
        };
        self.rows(&self.columns).await?.iter().map(column).collect()
    }

    async fn server_zone(&self) -> Result<String> {
        let zone =
            "SELECT IF(@@session.time_zone = 'SYSTEM', @@system_time_zone, @@session.time_zone)";
        let rows = self.rows(&zone.into()).await?;
        value(rows.first().ok_or_else(unexpected)?, 0)
    }

    async fn call(&self, call: Call) -> Result<Reply> {
        let core = self.backend.core().cloned();
        let wanted = call.wanted.zip(core).map(|(claim, core)| {
            let wanted: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(move || core.wants(claim));
            wanted
        });
        let most = self.backend.client.settings().request_timeout;
        let how = How {
            urgent: wanted.is_none(),
            wanted,
            limit: Some(call.limit.unwrap_or(most).min(most)),
            ..How::URGENT
        };
        let statement = Statement {
            sql: Arc::clone(&self.call),
            values: vec![
                call.verb.into(),
                call.name.into(),
                call.claim.into(),
                call.fence.into(),
                call.label.into(),
                call.lease.into(),
                call.unit.into(),
                call.zone.into(),
            ],
        };
        let done = self.backend.run(&statement, how).await?;
        let row = done.rows.first().ok_or_else(unexpected)?;
        Ok(Reply {
            done: value(row, 0)?,
            holder: value(row, 1)?,
            held: value(row, 2)?,
            left: value(row, 3)?,
            sent_again: done.sent_again,
        })
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(self),
            name_keys: Some(&*self.backend),
            schema: Some(&*self.backend),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Table {
    async fn ping(&self) -> Result<ServerInfo> {
        self.columns().await?;
        super::server_info(&self.backend.client).await
    }
}
