//! The tables and routines: their text, and their creation by the first client of many.

use async_trait::async_trait;
use tokio_postgres::types::Type;

use super::backend::Backend;
use super::client::{Failed, Purpose, Remedy};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::store::Schema;
use crate::stores::in_task::in_task;
use crate::stores::sql::token::Layout;

/// The version of the format `table`.
const VERSION: i32 = 1;

/// Serialises the creation by many clients: `CREATE … IF NOT EXISTS` alone fails in a race. The
/// number is of no meaning, but must be the same everywhere.
const LOCK: i64 = 0x0070_616c_6973_6164;

/// In a stricter level, a client that waited for another one's creation would not see it.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// The names of the tables and routines, quoted.
pub(super) struct Text {
    pub(super) step: String,
    pub(super) sweep: String,
    pub(super) inspect: String,
    version: String,
    script: String,
}

impl Text {
    pub(super) fn of(settings: &Settings) -> Text {
        match settings.layout {
            None => Text::of_lines(settings),
            Some(layout) => Text::of_tokens(settings, layout),
        }
    }

    /// For a table that is shared with other programs, in a schema that is there.
    fn of_tokens(settings: &Settings, layout: &Layout) -> Text {
        let Settings { schema, table, .. } = settings;
        let name = |ending: &str| format!("\"{schema}\".\"{table}{ending}\"");
        let (locks, fence) = (name(""), name(&format!("_fence_{VERSION}")));
        let step = name(&format!("_step_{VERSION}"));
        let fill = |text: &str| layout.fill(text, &locks, &fence, &step);
        Text {
            step: fill("CALL {step}($1, $2, $3, $4, $5, $6, $7, $8, $9, NULL, NULL, NULL, NULL)"),
            sweep: String::new(),
            inspect: String::new(),
            version: format!(
                "SELECT CASE WHEN to_regclass('{locks}') IS NOT NULL \
                 AND to_regclass('{fence}') IS NOT NULL THEN {VERSION} END"
            ),
            script: format!(
                "{BEGIN};\nSELECT pg_advisory_xact_lock({LOCK});\n{}\nCOMMIT;\n",
                fill(super::token::tables(layout))
            ),
        }
    }

    fn of_lines(settings: &Settings) -> Text {
        let fill = |text: &str| fill(text, settings);
        let body = concat!(
            include_str!("line/tables.sql"),
            "\n",
            include_str!("line/step.sql")
        );
        let script = format!(
            "{BEGIN};\nSELECT pg_advisory_xact_lock({LOCK});\n{}\n\
             INSERT INTO @version@ VALUES ({VERSION}) ON CONFLICT DO NOTHING;\nCOMMIT;\n",
            body
        );
        Text {
            step: fill(
                "CALL @step@($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
                 $16, $17, $18, NULL, NULL)",
            ),
            sweep: fill("CALL @sweep@(NULL)"),
            inspect: fill(include_str!("line/inspect.sql")),
            version: fill("SELECT max(version) FROM @version@"),
            script: fill(&script),
        }
    }
}

fn fill(text: &str, settings: &Settings) -> String {
    let Settings { schema, table, .. } = settings;
    let mut text = text
        .replace("@schema@", &format!("\"{schema}\""))
        .replace("@line@", &format!("\"{schema}\".\"{table}\""))
        .replace("@waiter_claim@", &format!("\"{table}_waiter_claim\""))
        .replace("@gone_key@", &format!("\"{table}_gone_pkey\""));
    for part in ["holder", "waiter", "gone", "version"] {
        let name = format!("\"{schema}\".\"{table}_{part}\"");
        text = text.replace(&format!("@{part}@"), &name);
    }
    for routine in ["step", "sweep"] {
        let name = format!("\"{schema}\".\"{table}_{routine}_{VERSION}\"");
        text = text.replace(&format!("@{routine}@"), &name);
    }
    text
}

impl Backend {
    /// Mends a request that found a table or routine missing: creates them, once.
    pub(super) async fn created(&self, failed: Failed) -> Result<()> {
        match self.create_missing().await {
            Ok(_) => Ok(()),
            Err(refused) if refused.remedy == Remedy::Create => Err(failed.error),
            Err(refused) => Err(refused.error),
        }
    }

    /// Creates the tables if they are missing, and says whether they were. Other requests wait for it.
    async fn create_missing(&self) -> std::result::Result<bool, Failed> {
        let backend = self.me()?;
        in_task(async move {
            let _one = backend.creating.lock().await;
            // Another request may have created them meanwhile.
            if backend.is_created().await? {
                return Ok(false);
            }
            let created = backend.client.script(&backend.text.script).await;
            created.map(|()| true)
        })
        .await
    }

    async fn is_created(&self) -> Result<bool> {
        let limit = self.client.settings().request_timeout;
        let version = self
            .client
            .query(Purpose::Verbs, limit, &self.text.version, &[])
            .await;
        let version = match version {
            Ok(rows) => rows.first().and_then(|row| row.get::<_, Option<i32>>(0)),
            Err(failed) if failed.remedy == Remedy::Create => None,
            Err(failed) => return Err(failed.error),
        };
        match version {
            Some(newer) if newer > VERSION => Err(Error::protocol(format!(
                "the tables of the locks have version {newer}, and this program knows {VERSION}; \
                 upgrade this program, or use another table="
            ))),
            Some(VERSION) => self.has_routines().await,
            _ => Ok(false),
        }
    }

    async fn has_routines(&self) -> Result<bool> {
        let limit = self.client.settings().request_timeout;
        let name = format!("{}_step_{VERSION}", self.settings.table);
        let (schema, name) = (self.settings.schema.as_str(), name.as_str());
        let rows = self
            .client
            .query(
                Purpose::Verbs,
                limit,
                "SELECT 1 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
                 WHERE n.nspname = $1 AND p.proname = $2",
                &[(&schema, Type::TEXT), (&name, Type::TEXT)],
            )
            .await
            .map_err(|failed| failed.error)?;
        Ok(!rows.is_empty())
    }
}

#[async_trait]
impl Schema for Backend {
    fn statements(&self) -> String {
        let schema = &self.settings.schema;
        if self.settings.layout.is_some() {
            let table = &self.settings.table;
            return format!(
                "{}\n-- For the user of the program, here app:\n\
                 -- GRANT USAGE ON SCHEMA \"{schema}\" TO app;\n\
                 -- GRANT SELECT, INSERT, UPDATE, DELETE ON \"{schema}\".\"{table}\", \
                 \"{schema}\".\"{table}_fence_{VERSION}\" TO app;\n",
                self.text.script
            );
        }
        format!(
            "{}\n-- For the user of the program, here app:\n\
             -- GRANT USAGE ON SCHEMA \"{schema}\" TO app;\n\
             -- GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{schema}\" TO app;\n\
             -- GRANT EXECUTE ON ALL ROUTINES IN SCHEMA \"{schema}\" TO app;\n",
            self.text.script
        )
    }

    async fn create(&self) -> Result<bool> {
        self.create_missing().await.map_err(|failed| failed.error)
    }
}
