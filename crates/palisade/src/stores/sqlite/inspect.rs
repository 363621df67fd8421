//! What the tables show of a line, and of all lines.

use rusqlite::{Connection, params};

use super::lines::Loaded;
use super::{PAGE, Shared};
use crate::error::Result;
use crate::line::StoreTime;
use crate::name::Name;
use crate::store::{LineView, Page};

impl Shared {
    pub(super) fn view(
        &self,
        connection: &Connection,
        now: StoreTime,
        name: &Name,
    ) -> Result<Option<LineView>> {
        let client = self.client()?;
        let mut loaded = self.sql(Loaded::load(connection, now, name))?;
        // Dead clients are not shown. The next claim removes their entries.
        loaded.reap(&client.folder, &client.id, &mut Vec::new());
        let view = loaded.line.view(now, name);
        Ok((!view.is_free()).then_some(view))
    }

    pub(super) fn page(
        &self,
        connection: &Connection,
        now: StoreTime,
        prefix: &str,
        after: &str,
    ) -> Result<Page> {
        let names = connection
            .prepare_cached(
                "SELECT name FROM entries WHERE name > ?1 AND substr(name, 1, length(?2)) = ?2 \
                 UNION SELECT name FROM notes WHERE what IN ('mark', 'seal') AND name > ?1 AND substr(name, 1, length(?2)) = ?2 \
                 ORDER BY name LIMIT ?3",
            )
            .and_then(|mut select| select.query_map(params![after, prefix, PAGE], |row| row.get(0))?.collect());
        let names: Vec<String> = self.sql(names)?;
        let next = names.last().filter(|_| names.len() as i64 == PAGE).cloned();
        let mut lines = Vec::with_capacity(names.len());
        for name in &names {
            lines.extend(self.view(connection, now, &Name::new(name)?)?);
        }
        Ok(Page { lines, next })
    }
}
