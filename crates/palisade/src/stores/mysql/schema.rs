//! The tables and routines: their text, and how they are created.

use std::sync::Arc;
use std::time::Duration;

use super::client::{Connection, Failure, SQL_MODE};
use super::settings::Settings;
use crate::line::StoreTime;
use crate::stores::sql::token::Layout;

/// The version of the tables and of the routines, which is a part of the routines' names.
pub(super) const VERSION: i64 = 1;
/// How long to wait for another client that creates the same.
const PATIENCE: u32 = 10;

/// The clock of the server in microseconds since 1970, by no time zone. It stands still within a
/// statement: a statement of its own reads it, after the row was locked.
pub(in crate::stores) const NOW: &str =
    "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

const TABLES: [&str; 2] = [
    include_str!("table/line.sql"),
    include_str!("table/claim_rows.sql"),
];
/// Each with the word of its name, in an order in which each calls only those before it.
const ROUTINES: [(&str, &str); 8] = [
    ("place", include_str!("table/place.sql")),
    ("step", include_str!("table/step.sql")),
    ("do_claim", include_str!("table/claim.sql")),
    ("renew", include_str!("table/renew.sql")),
    ("release", include_str!("table/release.sql")),
    ("change", include_str!("table/change.sql")),
    ("wait", include_str!("table/wait.sql")),
    ("sweep", include_str!("table/sweep.sql")),
];

/// The names of the tables and routines in one database.
pub(super) struct Schema {
    schema: Option<String>,
    table: String,
    /// The table that is shared with other programs; `None` for the lines.
    layout: Option<&'static Layout>,
}

/// The character set and the collation of names in a table that is shared, unless it was made by
/// another program.
const OF_NAMES: (&str, &str) = ("utf8mb4", "utf8mb4_bin");

/// Why the tables cannot be used.
#[derive(Debug)]
pub(super) enum Unusable {
    Failed(Failure),
    /// They are of this newer version.
    Newer(i64),
    /// Another client did not finish creating them.
    Busy,
}

impl From<Failure> for Unusable {
    fn from(failure: Failure) -> Unusable {
        Unusable::Failed(failure)
    }
}

impl Schema {
    pub(super) fn of(settings: &Settings) -> Schema {
        Schema {
            schema: settings.schema.as_ref().map(ToString::to_string),
            table: settings.table.to_string(),
            layout: settings.layout,
        }
    }

    fn name(&self, suffix: &str) -> String {
        self.qualified(&format!("{}_{suffix}", self.table))
    }

    fn qualified(&self, name: &str) -> String {
        let table = format!("`{name}`");
        match &self.schema {
            Some(schema) => format!("`{schema}`.{table}"),
            None => table,
        }
    }

    fn routine(&self, word: &str) -> String {
        self.name(&format!("{VERSION}_{word}"))
    }

    /// Puts names and expressions into the text of a statement.
    pub(super) fn text(&self, template: &str) -> Arc<str> {
        if let Some(layout) = self.layout {
            let (fence, step) = (format!("fence_{VERSION}"), format!("step_{VERSION}"));
            let text = template.replace("{now}", NOW);
            let table = self.qualified(&self.table);
            let filled = layout.fill(&text, &table, &self.name(&fence), &self.name(&step));
            return filled.into();
        }
        let mut text = template
            .replace("{line}", &self.name("line"))
            .replace("{claim}", &self.name("claim"))
            .replace("{version}", &self.name("version"))
            .replace("{now}", NOW)
            .replace("{max_fence}", &crate::fence::Fence::MAX.to_string())
            .replace("{longest_wait}", &longest_wait().to_string());
        for (word, _) in ROUTINES {
            text = text.replace(&format!("{{{word}}}"), &self.routine(word));
        }
        // A name that no other program uses, and that does not reveal the claim.
        for claim in ["p_claim", "v_claim", "p_bell", "?"] {
            let bell = format!("CONCAT('palisade:', SHA1({claim}))");
            text = text.replace(&format!("{{bell}}({claim})"), &bell);
        }
        text.into()
    }

    /// The database, as a value.
    fn database(&self) -> String {
        let schema = self.schema.as_ref();
        schema.map_or_else(|| "DATABASE()".to_owned(), |name| format!("'{name}'"))
    }

    /// Reads the columns of the table that is shared.
    pub(super) fn columns(&self) -> Arc<str> {
        let (database, table) = (self.database(), &self.table);
        format!(
            "SELECT c.column_name, c.data_type, c.character_maximum_length, c.datetime_precision, \
             EXISTS (SELECT 1 FROM information_schema.statistics AS s WHERE s.table_schema = {database} \
               AND s.table_name = '{table}' AND s.column_name = c.column_name AND s.non_unique = 0 \
               AND (SELECT COUNT(*) FROM information_schema.statistics AS k WHERE k.table_schema = {database} \
                 AND k.table_name = '{table}' AND k.index_name = s.index_name) = 1) \
             FROM information_schema.columns AS c WHERE c.table_schema = {database} AND c.table_name = '{table}'"
        )
        .into()
    }

    /// All statements, in their order. They change nothing that is already there.
    fn statements(&self, of_names: (&str, &str)) -> Vec<Arc<str>> {
        if let Some(layout) = self.layout {
            let fill = |text: &str| {
                let text = text.replace("{charset}", of_names.0);
                self.text(&text.replace("{collation}", of_names.1))
            };
            return super::token::tables(layout).map(fill).into();
        }
        let mut statements: Vec<Arc<str>> = TABLES.map(|table| self.text(table)).into();
        for (word, routine) in ROUTINES {
            statements.push(self.text(&format!("DROP PROCEDURE IF EXISTS {{{word}}}")));
            statements.push(self.text(routine));
        }
        statements.push(self.text(
            "CREATE TABLE IF NOT EXISTS {version} (version BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB",
        ));
        statements.push(self.text(&format!(
            "INSERT IGNORE INTO {{version}} VALUES ({VERSION})"
        )));
        statements
    }

    /// The same as a script for the command line tool of the server.
    pub(super) fn script(&self) -> String {
        let mut script = format!("SET SESSION {SQL_MODE};\nDELIMITER $$\n");
        if self.layout.is_some() {
            script.push_str(
                "-- Where another program has made the table with another character set or collation of the names, write \
                 those below.\n",
            );
        }
        for statement in self.statements(OF_NAMES) {
            script.push_str(statement.trim_end());
            script.push_str("$$\n");
        }
        script.push_str("DELIMITER ;\n");
        script
    }

    /// The highest version that is there; `None` for none.
    async fn version(
        &self,
        connection: &mut Connection,
        limit: Duration,
    ) -> Result<Option<i64>, Unusable> {
        let select = match self.layout {
            None => self.text("SELECT MAX(version) FROM {version}"),
            Some(_) => self.version_of_shared(),
        };
        match connection.run_text(&select, limit).await {
            Ok(rows) => {
                let version: Option<i64> = rows.first().and_then(|row| row.get(0)).flatten();
                match version {
                    Some(VERSION)
                        if self.layout.is_none()
                            && !self.has_routines(connection, limit).await? =>
                    {
                        Ok(None)
                    }
                    version => Ok(version),
                }
            }
            // No such table.
            Err(failure) if failure.code() == Some(1146) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Whether all routines are there, as far as this user may see them.
    async fn has_routines(
        &self,
        connection: &mut Connection,
        limit: Duration,
    ) -> Result<bool, Unusable> {
        let schema = self.database();
        let names: Vec<String> = ROUTINES
            .iter()
            .map(|(word, _)| format!("'{}_{VERSION}_{word}'", self.table))
            .collect();
        let count = format!(
            "SELECT COUNT(*) FROM information_schema.routines \
             WHERE routine_schema = {schema} AND routine_name IN ({})",
            names.join(", ")
        );
        let rows = connection.run_text(&count, limit).await?;
        let found = rows.first().and_then(|row| row.get::<usize, _>(0));
        Ok(found == Some(ROUTINES.len()))
    }

    /// Creates what is missing, and says whether anything was. Each statement may take so long.
    pub(super) async fn create(
        &self,
        connection: &mut Connection,
        limit: Duration,
    ) -> Result<bool, Unusable> {
        match self.version(connection, limit).await? {
            Some(VERSION) => return Ok(false),
            Some(newer) if newer > VERSION => return Err(Unusable::Newer(newer)),
            _ => {}
        }
        // One client at a time: a routine cannot be replaced in one step everywhere.
        let lock = format!(
            "CONCAT('palisade:', SHA1(CONCAT(DATABASE(), '.', '{}')))",
            self.name("")
        );
        let take = format!("SELECT COALESCE(GET_LOCK({lock}, {PATIENCE}), 0)");
        let patience = limit + Duration::from_secs(PATIENCE.into());
        let taken = connection.run_text(&take, patience).await?;
        if taken.first().and_then(|row| row.get::<i64, _>(0)) != Some(1) {
            return Err(Unusable::Busy);
        }
        let created = self.create_alone(connection, limit).await?;
        // After a failure the connection is closed, which gives it back as well.
        connection
            .run_text(&format!("DO RELEASE_LOCK({lock})"), limit)
            .await?;
        Ok(created)
    }

    async fn create_alone(
        &self,
        connection: &mut Connection,
        limit: Duration,
    ) -> Result<bool, Unusable> {
        match self.version(connection, limit).await? {
            Some(VERSION) => return Ok(false),
            Some(newer) if newer > VERSION => return Err(Unusable::Newer(newer)),
            _ => {}
        }
        let mut of_names = OF_NAMES.0.to_owned();
        let mut collation = OF_NAMES.1.to_owned();
        let statements = self.statements(OF_NAMES);
        if let (Some(layout), Some(table)) = (self.layout, statements.first()) {
            connection.run_text(table, limit).await?;
            let found = connection.run_text(&self.collation(layout), limit).await?;
            if let Some(row) = found.first()
                && let (Some(set), Some(found)) = (row.get::<String, _>(0), row.get::<String, _>(1))
            {
                (of_names, collation) = (set, found);
            }
        }
        for statement in self.statements((&of_names, &collation)) {
            connection.run_text(&statement, limit).await?;
        }
        Ok(true)
    }

    /// Reads the character set and the collation of the names.
    fn collation(&self, layout: &Layout) -> String {
        format!(
            "SELECT character_set_name, collation_name FROM information_schema.columns \
             WHERE table_schema = {} AND table_name = '{}' AND column_name = '{}' AND character_set_name IS NOT NULL",
            self.database(),
            self.table,
            layout.name
        )
    }

    /// The version of what is ours beside a table that is shared: it is in the names.
    fn version_of_shared(&self) -> Arc<str> {
        let (database, table) = (self.database(), &self.table);
        format!(
            "SELECT IF((SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = {database} \
               AND table_name IN ('{table}', '{table}_fence_{VERSION}')) = 2 \
             AND (SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = {database} \
               AND routine_name = '{table}_step_{VERSION}') = 1, {VERSION}, NULL)"
        )
        .into()
    }
}

fn longest_wait() -> u128 {
    let wait = StoreTime::at(crate::store::Claim::LONGEST_WAIT_LEASE);
    wait.since_zero().as_micros()
}
