//! The part of the URL that is about locks: the format, the tables, and how names become keys.

use super::client::ClientSettings;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::stores::sql::token::{ENDINGS, Layout, SHEDLOCK, SIMPLE, Zone};
use crate::stores::sql::{Identifier, check_prefix};
use crate::url::StoreUrl;

/// How many connections of a client wait for bells at most, unless the URL says otherwise.
const WAITS: usize = 16;
/// The longest key: a column of the primary key must hold it.
const LONGEST_KEY: usize = 1024;
/// What is put behind the name of the tables for each table and routine.
const LONGEST_SUFFIX: usize = 10;

pub(super) struct Settings {
    /// The database of the tables, if it is not the one of the connection.
    pub(super) schema: Option<Identifier>,
    /// What the names of tables and routines begin with.
    pub(super) table: Identifier,
    /// The table that is shared with other programs; `None` for the lines.
    pub(super) layout: Option<&'static Layout>,
    /// By which clock its peers write times.
    pub(super) zone: Option<Zone>,
    prefix: String,
    pub(super) waits: usize,
}

/// The words of the URL that only this store has.
const WORDS: [&str; 5] = ["schema", "table", "tls", "waits", "zone"];

impl Settings {
    pub(super) fn read(mut url: StoreUrl) -> Result<(Settings, ClientSettings)> {
        let layout = match url.common().format.as_deref() {
            None | Some("table") => None,
            Some("simple") => Some(&SIMPLE),
            Some("shedlock") => Some(&SHEDLOCK),
            Some(_) => {
                return Err(Error::bad_url(
                    "bad store URL: format= of mysql: is table, session, simple or shedlock",
                ));
            }
        };
        let mut client = ClientSettings::read(&mut url)?;
        // A column of the type TIMESTAMP means the same to the peers only in their zone.
        client.keeps_zone = layout.is_some();
        let identifier = |word: &str, text: Option<String>, room| {
            text.map(|text| Identifier::with_room(&format!("{word}="), &text, room))
                .transpose()
        };
        let schema = identifier("schema", url.take("schema"), 0)?;
        let room = layout.map_or(LONGEST_SUFFIX, |_| ENDINGS);
        let table = identifier("table", url.take("table"), room)?;
        let (waits, zone) = match layout {
            None => (
                url.take_parsed("waits", "a number of connections, from 0")?,
                None,
            ),
            Some(_) => (None, url.take("zone")),
        };
        url.finish(&WORDS)?;
        if schema.is_none() && url.below_hosts().is_empty() {
            return Err(Error::bad_url(format!(
                "bad store URL: the database is missing; write {}://user:password@host/database",
                url.scheme()
            )));
        }
        let common = url.common();
        let prefix = common.prefix.clone().unwrap_or_default();
        check_prefix(&prefix, LONGEST_KEY - Name::LONGEST)?;
        let table = match table {
            Some(table) => table,
            None => Identifier::new("table=", layout.map_or("palisade", |layout| layout.table))?,
        };
        Ok((
            Settings {
                schema,
                table,
                layout,
                zone: Zone::read(zone.as_deref())?,
                prefix,
                waits: waits.unwrap_or(WAITS),
            },
            client,
        ))
    }

    /// The key of a name: any name is a good one.
    pub(super) fn key(&self, name: &Name) -> String {
        [self.prefix.as_str(), name.as_str()].concat()
    }

    /// The name of a key; `None` for a key that is not ours.
    pub(super) fn name(&self, key: &[u8]) -> Option<Name> {
        let name = key.strip_prefix(self.prefix.as_bytes())?;
        Name::new(std::str::from_utf8(name).ok()?).ok()
    }

    /// How the keys of all names begin that begin so.
    pub(super) fn begin(&self, prefix: &str) -> String {
        [self.prefix.as_str(), prefix].concat()
    }
}
