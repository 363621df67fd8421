//! The tables as the other programs know them.

use crate::error::{Error, Result};
use crate::store::{Capability, Durability};

/// A table of locks: its columns, and how a lock ends.
pub(crate) struct Layout {
    pub(crate) format: &'static str,
    /// The name of the table, unless the URL says otherwise.
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    owner: &'static str,
    until: &'static str,
    at: &'static str,
    /// The statement that ends a lock.
    end: &'static str,
    /// The statement that removes locks that have expired.
    clean: &'static str,
    /// Whether the peers write what the server's clock shows, by the zone of their session, so that
    /// it must be known which zone that is.
    pub(crate) asks_for_zone: bool,
}

/// A table with a unique name, an owner and an expiry. A free lock has no row.
pub(crate) const SIMPLE: Layout = Layout {
    format: "simple",
    table: "distributed_lock",
    name: "lock_name",
    owner: "owner_id",
    until: "expire_time",
    at: "create_time",
    end: "DELETE FROM {table} WHERE {name} = p_name;",
    // A lock that ends was seen at most a minute and a half before. No row is locked in both tables: a
    // claim locks them in the other order.
    clean: "UPDATE {fence} SET used = us WHERE used < us - 60000000 \
              AND EXISTS (SELECT 1 FROM {table} AS t WHERE t.{name} = {fence}.name AND t.{until} >= v_end); \
            DELETE FROM {table} WHERE {until} < v_end;",
    asks_for_zone: true,
};

/// The table of ShedLock. Its clients remember that a row is there, so none is ever deleted.
pub(crate) const SHEDLOCK: Layout = Layout {
    format: "shedlock",
    table: "shedlock",
    name: "name",
    owner: "locked_by",
    until: "lock_until",
    at: "locked_at",
    end: "UPDATE {table} SET {until} = v_end WHERE {name} = p_name AND {until} > v_end;",
    clean: "",
    // Its clients write UTC (`usingDbTime`), or the time of their own process.
    asks_for_zone: false,
};

/// What stands behind the name of the table in the names of ours.
pub(crate) const ENDINGS: usize = "_fence_1".len();

/// The clock that the peers' times are read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zone {
    Utc,
    /// The zone of sessions that set none.
    Server,
}

impl Zone {
    /// Reads `zone=`.
    pub(crate) fn read(word: Option<&str>) -> Result<Option<Zone>> {
        match word {
            None => Ok(None),
            Some("utc") => Ok(Some(Zone::Utc)),
            Some("server") => Ok(Some(Zone::Server)),
            Some(_) => Err(Error::bad_url("bad store URL: zone= is utc or server")),
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Zone::Utc => "utc",
            Zone::Server => "server",
        }
    }
}

/// A column, as `information_schema.columns` has it.
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) characters: Option<i64>,
    pub(crate) precision: Option<i64>,
    /// Whether it has a unique key of its own.
    pub(crate) is_unique: bool,
}

/// What a table can hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(super) longest_name: usize,
    pub(super) longest_owner: usize,
    /// In microseconds, the smallest step of time that the column of the expiry can hold.
    pub(crate) unit: i64,
    /// Whether that column has no time zone.
    pub(crate) is_naive: bool,
    pub(crate) zone: Zone,
}

/// The first parts of our own value: the claim, the fence, and the dots behind them.
const BEFORE_LABEL: usize = 32 + 1 + 19 + 1;

impl Facts {
    /// The part of a label that the column of the owner has room for.
    pub(crate) fn cut(&self, mut label: String) -> String {
        let room = self.longest_owner - BEFORE_LABEL;
        if label.len() > room {
            // It is ASCII. An escape stays whole.
            label.truncate(room);
            let tail = &label[room.saturating_sub(2)..];
            if let Some(at) = tail.rfind('%') {
                label.truncate(room.saturating_sub(2) + at);
            }
        }
        label
    }
}

impl Layout {
    /// What a store promises in this format.
    pub(crate) const fn capability(&self, store: &'static str) -> Capability {
        Capability {
            store,
            format: self.format,
            any_name: false,
            durability: Durability::Failover,
            ..Capability::TOKEN
        }
    }

    /// Puts the names into a text. `table` is quoted, with its schema; so are the names of ours.
    pub(crate) fn fill(&self, text: &str, table: &str, fence: &str, step: &str) -> String {
        text.replace("{end}", self.end)
            .replace("{clean}", self.clean)
            .replace("{table}", table)
            .replace("{fence}", fence)
            .replace("{step}", step)
            .replace("{name}", self.name)
            .replace("{owner}", self.owner)
            .replace("{until}", self.until)
            .replace("{at}", self.at)
    }

    /// Checks that a table is one of this layout.
    pub(crate) fn facts(&self, columns: &[Column]) -> Result<Facts> {
        let column = |name: &str| {
            let found = columns.iter().find(|column| column.name == name);
            found.ok_or_else(|| {
                Error::config(format!(
                    "the table of the locks has no column {name}, which format={} needs; \
                     name the right table by table=",
                    self.format
                ))
            })
        };
        let size = |name: &str| -> Result<usize> {
            let size = column(name)?
                .characters
                .and_then(|size| usize::try_from(size).ok());
            Ok(size.unwrap_or(usize::MAX))
        };
        if !column(self.name)?.is_unique {
            return Err(Error::config(format!(
                "the column {} of the table of the locks has no unique key of its own: two programs could insert the \
                 same lock; add one",
                self.name
            )));
        }
        let until = column(self.until)?;
        column(self.at)?;
        if !until.kind.starts_with("timestamp") && until.kind != "datetime" {
            return Err(Error::config(format!(
                "the column {} of the table of the locks is of the type {}; format={} needs a date with a time",
                self.until, until.kind, self.format
            )));
        }
        let longest_owner = size(self.owner)?;
        if longest_owner <= BEFORE_LABEL {
            return Err(Error::config(format!(
                "the column {} of the table of the locks holds {longest_owner} characters, and the value of a lock \
                 needs more than {BEFORE_LABEL}; make it longer",
                self.owner
            )));
        }
        Ok(Facts {
            longest_name: size(self.name)?,
            longest_owner,
            unit: match until.precision {
                Some(..3) => 1_000_000,
                Some(3..6) => 1_000,
                _ => 1,
            },
            is_naive: until.kind != "timestamp with time zone",
            zone: Zone::Utc,
        })
    }

    /// The zone of a server, where both zones are the same.
    pub(crate) fn zone_of(&self, server: &str) -> Result<Zone> {
        let same = [
            "utc", "etc/utc", "gmt", "etc/gmt", "uct", "etc/uct", "zulu", "+00:00",
        ];
        if same.contains(&server.to_ascii_lowercase().as_str()) {
            return Ok(Zone::Utc);
        }
        Err(Error::config(format!(
            "the column {} has no time zone, and that of the server is {server}: say by which clock the other programs \
             write it, by zone=utc or zone=server in the URL. With the wrong one, a lock that is held looks free",
            self.until
        )))
    }

    /// Refuses a name that the column cannot hold.
    pub(crate) fn check_name(&self, key: &str, facts: &Facts) -> Result<()> {
        if key.chars().count() > facts.longest_name {
            return Err(Error::config(format!(
                "the name is longer than the {} characters of the column {}; names are exact in format={}, take a shorter one",
                facts.longest_name, self.name, self.format
            )));
        }
        if key.contains('\0') {
            return Err(Error::config(
                "the name has a character U+0000, which no column of text can hold; take another name",
            ));
        }
        if key.ends_with(' ') {
            return Err(Error::config(
                "the name ends with a space, which some databases do not compare; take another name",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, kind: &str, characters: Option<i64>, precision: Option<i64>) -> Column {
        Column {
            name: name.to_owned(),
            kind: kind.to_owned(),
            characters,
            precision,
            is_unique: name == "lock_name",
        }
    }

    fn of_seeds(kind: &str, precision: i64) -> Vec<Column> {
        vec![
            column("lock_name", "varchar", Some(128), None),
            column("owner_id", "varchar", Some(128), None),
            column("expire_time", kind, None, Some(precision)),
            column("create_time", kind, None, Some(precision)),
        ]
    }

    #[test]
    fn a_table_is_read() {
        let facts = SIMPLE
            .facts(&of_seeds("datetime", 0))
            .expect("a good table");
        assert_eq!((facts.unit, facts.is_naive), (1_000_000, true));
        assert!(SIMPLE.check_name(&"ü".repeat(128), &facts).is_ok());
        for bad in [&*"x".repeat(129), "a\0b", "a "] {
            assert!(SIMPLE.check_name(bad, &facts).is_err(), "{bad:?}");
        }
        let facts = SIMPLE.facts(&of_seeds("timestamp with time zone", 6));
        assert!(facts.is_ok_and(|facts| facts.unit == 1 && !facts.is_naive));
        let mut twice = of_seeds("datetime", 0);
        twice[0].is_unique = false;
        for (bad, why) in [
            (twice, "no unique key"),
            (of_seeds("bigint", 0), "type bigint"),
            (of_seeds("datetime", 0).split_off(1), "no column lock_name"),
        ] {
            let refused = SIMPLE.facts(&bad).expect_err(why);
            assert!(refused.to_string().contains(why), "{refused}");
        }
    }

    #[test]
    fn a_label_is_cut_between_escapes() {
        let facts = SIMPLE
            .facts(&of_seeds("datetime", 0))
            .expect("a good table");
        let room = 128 - BEFORE_LABEL;
        for extra in 0..4 {
            let label = format!("{}{}", "x".repeat(extra), "%2E".repeat(room));
            let cut = facts.cut(label);
            assert!(cut.len() <= room && cut.len() > room - 3, "{}", cut.len());
            assert!((cut.len() - extra).is_multiple_of(3), "{cut}");
        }
        assert_eq!(facts.cut("short".to_owned()), "short");
    }

    #[test]
    fn a_zone_is_asked_for_where_it_matters() {
        assert_eq!(SIMPLE.zone_of("Etc/UTC").ok(), Some(Zone::Utc));
        let refused = SIMPLE.zone_of("Europe/Berlin").expect_err("unknown");
        assert!(refused.to_string().contains("zone=server"), "{refused}");
        assert!(Zone::read(Some("cet")).is_err());
    }
}
