//! Shows one line, or lists lines page by page: one statement each, which takes no lock.

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::backend::Backend;
use super::client::Purpose;
use super::failure::unexpected;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Holder, LineView, Page, Ping, Query, ServerInfo, Waiter};
use crate::stores::sql::{kind, mode, span};

/// How many names one page has.
const PAGE: i64 = 256;

pub(super) async fn inspect(backend: &Backend, query: &Query) -> Result<Page> {
    let (one, key, after, limit) = match query {
        Query::Show(name) | Query::Leader(name) => {
            (true, backend.settings.key(name)?, String::new(), 1)
        }
        Query::List { prefix, after } => {
            if prefix.contains('\0') && backend.settings.key_prefix(prefix).contains('\0') {
                return Ok(Page::default());
            }
            let after = after.clone().unwrap_or_default();
            (false, backend.settings.key_prefix(prefix), after, PAGE)
        }
    };
    let rows = backend
        .query(
            Purpose::Verbs,
            &backend.text.inspect,
            &[
                (&one, Type::BOOL),
                (&key, Type::TEXT),
                (&after, Type::TEXT),
                (&limit, Type::INT8),
            ],
        )
        .await?;
    let mut lines: Vec<LineView> = Vec::new();
    let (mut keys, mut last) = (0, None);
    let mut known = false;
    for row in &rows {
        if row.get::<_, i32>(1) == 0 {
            let key: String = row.get(0);
            let name = backend.settings.name(&key);
            known = name.is_some();
            if let Some(name) = name {
                lines.push(line(row, &name)?);
            }
            keys += 1;
            last = Some(key);
        } else if let Some(line) = lines.last_mut().filter(|_| known) {
            add(row, line)?;
        }
    }
    for line in &mut lines {
        if line.holders.is_empty() && line.waiters.is_empty() {
            line.kind = crate::store::Kind::Mutex;
        }
    }
    lines.retain(|line| !line.is_free());
    Ok(Page {
        lines,
        next: last.filter(|_| !one && keys == PAGE),
    })
}

fn line(row: &Row, name: &Name) -> Result<LineView> {
    let mut line = LineView::free(name.as_str());
    line.kind = kind(row.get(2), row.get(3)).ok_or_else(unexpected)?;
    line.marks.ran_ago = span(row.get(7));
    line.marks.due_in = span(row.get(8));
    line.marks.done_for = span(row.get(9));
    Ok(line)
}

fn add(row: &Row, line: &mut LineView) -> Result<()> {
    let mode = mode(row.get(2), row.get(3)).ok_or_else(unexpected)?;
    let (owner, reason) = (row.get(4), row.get(5));
    if row.get::<_, i32>(1) == 1 {
        line.marks.closed_for = line.marks.closed_for.max(span(row.get(9)));
        line.holders.push(Holder {
            owner,
            reason,
            fence: fence(row.get(6))?,
            mode,
            held: span(row.get(7)),
            lease_left: span(row.get(8)),
        });
    } else {
        line.waiters.push(Waiter {
            owner,
            reason,
            mode,
            waited: span(row.get(7)),
        });
    }
    Ok(())
}

/// A fence as the tables hold it.
pub(super) fn fence(number: i64) -> Result<Fence> {
    u64::try_from(number)
        .ok()
        .and_then(Fence::new)
        .filter(|fence| !fence.is_none())
        .ok_or_else(unexpected)
}

#[async_trait]
impl Ping for Backend {
    async fn ping(&self) -> Result<ServerInfo> {
        inspect(self, &Query::Show(Name::of_ping())).await?;
        self.server_info().await
    }
}

impl Backend {
    /// The server that answers.
    pub(super) async fn server_info(&self) -> Result<ServerInfo> {
        let rows = self
            .query(
                Purpose::Verbs,
                "SELECT current_setting('server_version'), pg_is_in_recovery()",
                &[],
            )
            .await?;
        let row = rows.first().ok_or_else(unexpected)?;
        let connection = self.client.connection(Purpose::Verbs).await?;
        let role = match (row.get(1), connection.pooled) {
            (true, _) => "standby",
            (false, true) => "primary, behind a pooler",
            (false, false) => "primary",
        };
        Ok(ServerInfo {
            product: "postgres".to_owned(),
            version: row.get(0),
            role: Some(role.to_owned()),
            address: Some(connection.address.to_string()),
        })
    }
}
