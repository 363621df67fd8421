//! The file's clock and its fences across a restart of the machine.
//!
//! Times in the file are CLOCK_BOOTTIME plus a base. At a new boot the base is set anew, so that
//! the file's time follows the wall clock and never goes back. The fence counter jumps, because a
//! power cut may have lost the last commits.

use rusqlite::{Connection, params};

use crate::error::ErrorKind;

/// How far apart the fences of two boots are: more than any machine grants between two.
const FENCES_PER_BOOT: i64 = 1 << 40;

/// Why a database is not ours to use.
pub(super) struct Foreign {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
}

/// Makes the tables in a new file; refuses another program's file, and one of a later version.
pub(super) fn check_schema(
    connection: &Connection,
    application: i32,
    version: i32,
    schema: &str,
) -> rusqlite::Result<Result<(), Foreign>> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    if (pragma("application_id")?, pragma("user_version")?) == (application, version) {
        return Ok(Ok(()));
    }
    // Another process may be making the tables at this moment: check again inside a transaction.
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let (found, found_version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let foreign = match (found, found_version) {
        (found, newer) if found == application && newer > version => Some(Foreign {
            kind: ErrorKind::Protocol,
            message: format!(
                "was made by a newer palisade (version {newer}, this one knows {version}); update this one"
            ),
        }),
        (found, _) if found == application => None,
        (0, 0) if tables == 0 => {
            connection.execute_batch(schema)?;
            connection.pragma_update(None, "application_id", application)?;
            connection.pragma_update(None, "user_version", version)?;
            None
        }
        _ => Some(Foreign {
            kind: ErrorKind::Protocol,
            message: "is a database of another program; give a file of its own".to_owned(),
        }),
    };
    connection.execute_batch(if foreign.is_none() {
        "COMMIT"
    } else {
        "ROLLBACK"
    })?;
    Ok(foreign.map_or(Ok(()), Err))
}

/// Enters this boot, unless another client has, and returns the base that is added to
/// CLOCK_BOOTTIME.
pub(super) fn enter(connection: &Connection) -> rusqlite::Result<i64> {
    let boot_id = boot_id();
    if let Some(base) = base_of(connection, &boot_id)? {
        return Ok(base);
    }
    // This commit must survive a power cut: the fences of this boot rely on it.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let base = match base_of(connection, &boot_id)? {
        Some(base) => base,
        None => begin(connection, &boot_id)?,
    };
    connection.execute_batch("COMMIT")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(base)
}

fn base_of(connection: &Connection, boot_id: &str) -> rusqlite::Result<Option<i64>> {
    let mut select =
        connection.prepare("SELECT base_ns FROM meta WHERE id = 0 AND boot_id = ?1")?;
    let mut rows = select.query([boot_id])?;
    rows.next()?.map(|row| row.get(0)).transpose()
}

fn begin(connection: &Connection, boot_id: &str) -> rusqlite::Result<i64> {
    let wall = realtime_ns().saturating_sub(boottime_ns());
    let mut select =
        connection.prepare("SELECT base_ns, wall_ns, last_fence FROM meta WHERE id = 0")?;
    let mut rows = select.query([])?;
    let before: Option<(i64, i64, i64)> = match rows.next()? {
        Some(row) => Some((row.get(0)?, row.get(1)?, row.get(2)?)),
        None => None,
    };
    let (base, last_fence) = match before {
        None => (0, 0),
        Some((base, wall_then, last_fence)) => {
            // The time that has passed by the wall clock; the file itself shows at least this much.
            let by_the_wall = base.saturating_add(wall.saturating_sub(wall_then));
            let seen: i64 = connection.query_row(
                "SELECT coalesce(max(since_ns), 0) FROM entries",
                [],
                |row| row.get(0),
            )?;
            let jumped = (last_fence / FENCES_PER_BOOT + 1).saturating_mul(FENCES_PER_BOOT);
            (by_the_wall.max(seen.saturating_sub(boottime_ns())), jumped)
        }
    };
    connection.execute(
        "INSERT OR REPLACE INTO meta (id, boot_id, base_ns, wall_ns, last_fence) VALUES (0, ?1, ?2, ?3, ?4)",
        params![boot_id, base, wall, last_fence],
    )?;
    Ok(base)
}

/// The kernel's id of this boot.
fn boot_id() -> String {
    // Without it every start looks like the same boot, as on a machine that is never restarted.
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// CLOCK_BOOTTIME: counts through suspend, and cannot be set.
pub(super) fn boottime_ns() -> i64 {
    nanos(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
}

fn realtime_ns() -> i64 {
    nanos(rustix::time::clock_gettime(rustix::time::ClockId::Realtime))
}

fn nanos(time: rustix::time::Timespec) -> i64 {
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(connection: &Connection) -> (i64, i64) {
        connection
            .query_row("SELECT base_ns, last_fence FROM meta", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap()
    }

    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        let made = check_schema(
            &connection,
            7,
            1,
            "CREATE TABLE meta (id INTEGER PRIMARY KEY, boot_id, base_ns, wall_ns, last_fence);
            CREATE TABLE entries (since_ns INTEGER)",
        );
        assert!(made.unwrap().is_ok());
        connection
    }

    #[test]
    fn fences_jump_at_a_new_boot_and_only_then() {
        let connection = database();
        enter(&connection).unwrap();
        assert_eq!(meta(&connection).1, 0);
        connection
            .execute("UPDATE meta SET last_fence = 41", [])
            .unwrap();
        enter(&connection).unwrap();
        assert_eq!(meta(&connection).1, 41, "the same boot");
        for boot in 1..4 {
            connection
                .execute("UPDATE meta SET boot_id = 'another'", [])
                .unwrap();
            enter(&connection).unwrap();
            assert_eq!(meta(&connection).1, boot << 40);
        }
    }

    #[test]
    fn time_goes_on_by_the_wall_clock_and_never_back() {
        let connection = database();
        enter(&connection).unwrap();
        let hour = 3_600_000_000_000_i64;
        // The boot before began an hour of wall time earlier than this one: the file's time has
        // gone on by that.
        connection
            .execute(
                "UPDATE meta SET boot_id = 'another', base_ns = 0, wall_ns = wall_ns - ?1",
                [hour],
            )
            .unwrap();
        let base = enter(&connection).unwrap();
        assert!((base - hour).abs() < 1_000_000_000, "{base}");
        // The wall clock was set back by a day meanwhile: the file's time does not follow it.
        let seen = boottime_ns() + 50 * hour;
        connection
            .execute("INSERT INTO entries VALUES (?1)", [seen])
            .unwrap();
        connection
            .execute(
                "UPDATE meta SET boot_id = 'another', wall_ns = wall_ns + ?1",
                [24 * hour],
            )
            .unwrap();
        let base = enter(&connection).unwrap();
        assert!(base + boottime_ns() >= seen);
    }

    #[test]
    fn files_of_others_and_of_later_versions_are_refused() {
        let other = Connection::open_in_memory().unwrap();
        other.execute_batch("CREATE TABLE users (id)").unwrap();
        let refused = check_schema(&other, 7, 1, "").unwrap().err().unwrap();
        assert!(refused.kind == ErrorKind::Protocol && refused.message.contains("another program"));
        let newer = database();
        newer.pragma_update(None, "user_version", 2).unwrap();
        let refused = check_schema(&newer, 7, 1, "").unwrap().err().unwrap();
        assert!(refused.kind == ErrorKind::Protocol && refused.message.contains("newer"));
    }
}
