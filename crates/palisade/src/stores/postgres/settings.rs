//! The part of the URL that is about locks: schema and table, and how names become keys.

use super::client::ClientSettings;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::stores::sql::token::{ENDINGS as TOKEN_ENDINGS, Layout, SHEDLOCK, SIMPLE, Zone};
use crate::stores::sql::{Identifier, check_prefix};
use crate::url::StoreUrl;

/// The longest mapped name. No name of 512 bytes is longer when it is escaped, so every key can be
/// read back.
const NAME_LIMIT: usize = 3 * Name::LONGEST;
/// An index holds keys of up to 2704 bytes, with the claim.
const LONGEST_PREFIX: usize = 1000;
/// Room for the longest ending of a table's name.
const ENDINGS: usize = "_waiter_claim".len();

pub(super) struct Settings {
    pub(super) schema: Identifier,
    pub(super) table: Identifier,
    /// The table that is shared with other programs; `None` for the lines.
    pub(super) layout: Option<&'static Layout>,
    /// By which clock its peers write times.
    pub(super) zone: Option<Zone>,
    prefix: String,
    exact_names: bool,
}

impl Settings {
    pub(super) fn read(mut url: StoreUrl) -> Result<(Settings, ClientSettings)> {
        let client = ClientSettings::read(&mut url)?;
        let schema = url.take("schema");
        let table = url.take("table");
        let layout = match url.common().format.as_deref() {
            None | Some("table") => None,
            Some("simple") => Some(&SIMPLE),
            Some("shedlock") => Some(&SHEDLOCK),
            Some(_) => {
                return Err(Error::bad_url(
                    "bad store URL: format= of postgres: is table, session, simple or shedlock",
                ));
            }
        };
        let zone = layout.and_then(|_| url.take("zone"));
        url.finish(&["schema", "table", "sslmode", "zone"])?;
        let (at_home, named, room) = match layout {
            None => ("palisade", "lock", ENDINGS),
            Some(layout) => ("public", layout.table, TOKEN_ENDINGS),
        };
        let common = url.common();
        let prefix = common.prefix.clone().unwrap_or_default();
        check_prefix(&prefix, LONGEST_PREFIX)?;
        if prefix.contains('\0') {
            return Err(Error::bad_url(
                "bad store URL: prefix= has a character U+0000, which no column of text can hold",
            ));
        }
        Ok((
            Settings {
                schema: Identifier::new("schema=", schema.as_deref().unwrap_or(at_home))?,
                table: Identifier::with_room("table=", table.as_deref().unwrap_or(named), room)?,
                layout,
                zone: Zone::read(zone.as_deref())?,
                prefix,
                // A shared table has the names as they are.
                exact_names: common.exact_names() || layout.is_some(),
            },
            client,
        ))
    }

    /// The key of a name.
    pub(super) fn key(&self, name: &Name) -> Result<String> {
        if self.exact_names {
            if name.as_str().contains('\0') {
                return Err(Error::config(
                    "the name has a character U+0000, which no column of text can hold; \
                     take another name, or leave names=exact out",
                ));
            }
            return Ok(format!("{}{name}", self.prefix));
        }
        Ok(format!("{}{}", self.prefix, name.mapped(NAME_LIMIT)))
    }

    /// The name of a key; `None` for a key that is not ours.
    pub(super) fn name(&self, key: &str) -> Option<Name> {
        let mapped = key.strip_prefix(&self.prefix)?;
        if self.exact_names {
            Name::new(mapped).ok()
        } else {
            Name::unmapped(mapped)
        }
    }

    /// What the keys of all names that begin so begin with.
    pub(super) fn key_prefix(&self, prefix: &str) -> String {
        let mapped = match Name::new(prefix) {
            Ok(prefix) if !self.exact_names => prefix.mapped(NAME_LIMIT),
            _ => prefix.to_owned(),
        };
        format!("{}{mapped}", self.prefix)
    }
}
