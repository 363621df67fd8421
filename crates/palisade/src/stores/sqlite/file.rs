//! The database file: opening it, its schema, its clock, and transactions that wait for their turn
//! without starvation.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::blocking_process;
use super::boot;
use crate::error::{Error, ErrorKind, Result};
use crate::line::StoreTime;

/// `PALS`: the application id that `file` and SQLite's own tools show.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"PALS");
/// The version of the tables. A newer one is refused.
const SCHEMA_VERSION: i32 = 1;

const SCHEMA: &str = "
    -- One row: the highest fence of all names, and how CLOCK_BOOTTIME becomes the time in the other tables.
    CREATE TABLE meta (
        id INTEGER PRIMARY KEY CHECK (id = 0),
        boot_id TEXT NOT NULL,
        base_ns INTEGER NOT NULL,
        wall_ns INTEGER NOT NULL,
        last_fence INTEGER NOT NULL
    );
    -- Who holds (with a fence) and who waits (without), in the order of place. Times in ns.
    CREATE TABLE entries (
        name TEXT NOT NULL,
        place INTEGER NOT NULL,
        claim BLOB NOT NULL,
        kind TEXT NOT NULL,
        permit_limit INTEGER,
        mode TEXT NOT NULL,
        permits INTEGER,
        owner TEXT NOT NULL,
        reason TEXT,
        lease_ns INTEGER NOT NULL,
        since_ns INTEGER NOT NULL,
        expiry_ns INTEGER NOT NULL,
        fence INTEGER,
        keep_until_ns INTEGER NOT NULL,
        ghost INTEGER NOT NULL,
        min_hold_ns INTEGER,
        once_per_ns INTEGER,
        mark_at_ns INTEGER,
        mark_span_ns INTEGER,
        mark_fence INTEGER,
        client TEXT,
        PRIMARY KEY (name, place)
    ) WITHOUT ROWID;
    -- What is rarely there: the once-per mark, the seal, and why claims are gone.
    CREATE TABLE notes (
        name TEXT NOT NULL,
        what TEXT NOT NULL,
        claim BLOB NOT NULL,
        until_ns INTEGER NOT NULL,
        at_ns INTEGER,
        fence INTEGER,
        why TEXT,
        PRIMARY KEY (name, what, claim)
    ) WITHOUT ROWID;
";

/// How long a caller's own thread waits for its turn: longer than a transaction takes, too short to
/// be noticed.
const BRIEFLY: Duration = Duration::from_micros(300);
/// How long the client's thread waits for its turn before the error names the process that blocks
/// the file.
const PATIENTLY: Duration = Duration::from_secs(2);

/// Why a transaction did not happen.
pub(super) enum Refusal {
    /// Another connection has the turn.
    Busy,
    Failed(Error),
}

/// The database of one client.
pub(super) struct Database {
    path: PathBuf,
    connection: Mutex<Option<Open>>,
}

struct Open {
    connection: Connection,
    /// The identity of the file: one that was removed and made anew is another.
    file: Option<(u64, u64)>,
    /// Added to CLOCK_BOOTTIME. It cannot change while the machine runs.
    base_ns: i64,
}

impl Database {
    pub(super) fn new(path: PathBuf) -> Database {
        Database {
            path,
            connection: Mutex::new(None),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a write transaction if it can have its turn at once.
    pub(super) fn attempt<T>(
        &self,
        work: impl FnOnce(&Connection, StoreTime) -> Result<T>,
    ) -> Result<T, Refusal> {
        match self.connection.try_lock() {
            Ok(open) => self.transact(open, BRIEFLY, work),
            Err(TryLockError::Poisoned(poisoned)) => {
                self.transact(poisoned.into_inner(), BRIEFLY, work)
            }
            Err(TryLockError::WouldBlock) => Err(Refusal::Busy),
        }
    }

    /// Runs a write transaction, waiting for its turn. Blocks the thread.
    pub(super) fn run<T>(&self, work: impl Fn(&Connection, StoreTime) -> Result<T>) -> Result<T> {
        let end = Instant::now() + PATIENTLY;
        loop {
            let open = self
                .connection
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match self.transact(open, end.saturating_duration_since(Instant::now()), &work) {
                Ok(done) => return Ok(done),
                Err(Refusal::Failed(error)) => return Err(error),
                // While a file is made, SQLite answers busy without waiting. The process that makes
                // it needs only a moment.
                Err(Refusal::Busy) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Err(Refusal::Busy) => {
                    return Err(Error::unavailable(blocking_process::message(&self.path)));
                }
            }
        }
    }

    /// Reads if no other task of this client uses the file just now.
    pub(super) fn glance<T>(
        &self,
        read: impl FnOnce(&Connection, StoreTime) -> rusqlite::Result<T>,
    ) -> Option<T> {
        let open = self.connection.try_lock().ok()?;
        let open = open.as_ref()?;
        read(&open.connection, open.now()).ok()
    }

    fn transact<T>(
        &self,
        mut open: MutexGuard<'_, Option<Open>>,
        patience: Duration,
        work: impl FnOnce(&Connection, StoreTime) -> Result<T>,
    ) -> Result<T, Refusal> {
        TURN_BY.set(Some(Instant::now() + patience));
        // A file that was removed decides nothing any more. The new one does not have our grants,
        // and so we learn it.
        if open
            .as_ref()
            .is_some_and(|open| open.file != identity(&self.path))
        {
            *open = None;
        }
        let open = match &mut *open {
            Some(open) => open,
            closed => closed.insert(self.open()?),
        };
        self.step(
            open.connection
                .prepare_cached("BEGIN IMMEDIATE")
                .and_then(|mut begin| begin.execute([])),
        )?;
        // Read after the turn has come, so that two transactions have the order of their times.
        match work(&open.connection, open.now()) {
            Ok(done) => {
                let commit = open
                    .connection
                    .prepare_cached("COMMIT")
                    .and_then(|mut commit| commit.execute([]));
                if commit.is_err() {
                    let _ = open.connection.execute_batch("ROLLBACK");
                }
                self.step(commit)?;
                Ok(done)
            }
            Err(error) => {
                let _ = open.connection.execute_batch("ROLLBACK");
                Err(Refusal::Failed(error))
            }
        }
    }

    fn step<T>(&self, result: rusqlite::Result<T>) -> Result<T, Refusal> {
        result.map_err(|error| {
            if is_busy(&error) {
                Refusal::Busy
            } else {
                Refusal::Failed(failure(&self.path, error))
            }
        })
    }

    fn open(&self) -> Result<Open, Refusal> {
        check_place(&self.path).map_err(Refusal::Failed)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = self.step(Connection::open_with_flags(&self.path, flags))?;
        self.step(prepare(&mut connection))?;
        self.step(boot::check_schema(
            &connection,
            APPLICATION_ID,
            SCHEMA_VERSION,
            SCHEMA,
        ))?
        .map_err(|why| {
            Refusal::Failed(Error::new(
                why.kind,
                format!("{}: {}", self.path.display(), why.message),
            ))
        })?;
        let base_ns = self.step(boot::enter(&connection))?;
        Ok(Open {
            connection,
            file: identity(&self.path),
            base_ns,
        })
    }
}

impl Open {
    fn now(&self) -> StoreTime {
        let nanos = boot::boottime_ns().saturating_add(self.base_ns);
        StoreTime::at(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path)
        .ok()
        .map(|data| (data.dev(), data.ino()))
}

/// Refuses a place that SQLite would fail on later, or would accept silently. The file behind a
/// symbolic link decides, as it does for SQLite.
pub(super) fn check_place(path: &Path) -> Result<()> {
    let file = behind_links(path);
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // The file itself may be mounted from elsewhere.
    let system = rustix::fs::statfs(&file)
        .or_else(|_| rustix::fs::statfs(folder))
        .map_err(|cause| match cause {
            rustix::io::Errno::NOENT => Error::config(format!(
                "{}: the folder {} is not there; make it",
                path.display(),
                folder.display()
            )),
            rustix::io::Errno::ACCESS => Error::new(
                ErrorKind::Denied,
                format!("{}: no right to enter {}", path.display(), folder.display()),
            ),
            cause => Error::config(format!("{}: cannot be used: {cause}", path.display())),
        })?;
    match network_file_system(system.f_type as u64 & 0xffff_ffff) {
        Some(kind) => Err(Error::config(format!(
            "{}: lies on {kind}, where processes of different machines would not see each other's locks; \
             put the file on a local disk, or use a store with a server",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// The path that a path leads to, whether or not the file is there yet.
fn behind_links(path: &Path) -> PathBuf {
    /// As many as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let Ok(target) = std::fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// The file systems on which several machines may have the same file, by statfs's magic number.
fn network_file_system(magic: u64) -> Option<&'static str> {
    const KINDS: [(u64, &str); 18] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xfe53_4d42, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0x0102_1997, "9P"),
        (0x00c3_6400, "Ceph"),
        (0x5346_414f, "AFS"),
        (0x6b41_4653, "AFS"),
        (0x7375_7245, "Coda"),
        (0x0bd0_0bd0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x1983_0326, "BeeGFS"),
        (0x2003_0528, "OrangeFS"),
        (0x786f_4256, "a folder shared by VirtualBox"),
        (0xbacb_acbc, "a folder shared by VMware"),
        (0x6573_5546, "FUSE (perhaps a network file system)"),
    ];
    KINDS
        .iter()
        .find(|(kind, _)| *kind == magic)
        .map(|(_, name)| *name)
}

fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait_for_turn))?;
    // A checkpoint costs two syncs. It is due every thousand pages, not whenever a short command
    // ends.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Otherwise the planner looks at bound values, and prepares statements anew for every name.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A power cut may lose the last commits. All holders are gone then, and fences jump at the next
    // boot.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

thread_local! {
    /// Until when the transaction of this thread waits for its turn.
    static TURN_BY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// SQLite's own waiting grows its pauses, so that the longest waiter asks least often, and starves.
/// This one asks at a steady pace.
fn wait_for_turn(asked: i32) -> bool {
    if TURN_BY.get().is_none_or(|end| Instant::now() >= end) {
        return false;
    }
    match asked {
        0..20 => std::thread::yield_now(),
        20..60 => std::thread::sleep(Duration::from_micros(50)),
        _ => std::thread::sleep(Duration::from_micros(500)),
    }
    true
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// The meaning of a failure of SQLite, and what to do about it.
pub(super) fn failure(path: &Path, error: rusqlite::Error) -> Error {
    let path = path.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            format!("{path}: another process uses the file"),
        ),
        Some(ErrorCode::ReadOnly) => (
            ErrorKind::Denied,
            format!("{path}: cannot be written; check its rights and its folder's"),
        ),
        Some(
            ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => (
            ErrorKind::Denied,
            format!("{path}: cannot be opened; check its rights and its folder's"),
        ),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (
            ErrorKind::Protocol,
            format!(
                "{path}: is damaged, or not a database; stop all programs that use it and move it away, a new one is made"
            ),
        ),
        Some(ErrorCode::DiskFull) => (
            ErrorKind::Unavailable,
            format!("{path}: the disk is full; make room"),
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            format!("{path}: cannot be read or written; is the disk full?"),
        ),
        _ => (ErrorKind::Protocol, format!("{path}: {error}")),
    };
    Error::new(kind, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_several_machines_are_known() {
        for (magic, kind) in [
            (0x6969, "NFS"),
            (0x0116_1970, "GFS2"),
            (0x7461_636f, "OCFS2"),
            (0x6b41_4653, "AFS"),
        ] {
            assert_eq!(network_file_system(magic), Some(kind));
        }
        for magic in [0x786f_4256, 0xbacb_acbc, 0x1983_0326, 0x2003_0528] {
            assert!(network_file_system(magic).is_some(), "{magic:x}");
        }
        // ext4, tmpfs, overlayfs.
        for magic in [0xef53, 0x0102_1994, 0x794c_7630] {
            assert_eq!(network_file_system(magic), None);
        }
    }

    #[test]
    fn links_are_followed_to_a_file_that_need_not_be_there() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::os::unix::fs::symlink("second", at("first")).unwrap();
        std::os::unix::fs::symlink("/no/such/file", at("second")).unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert_eq!(behind_links(&at("first")), Path::new("/no/such/file"));
        assert_eq!(behind_links(&at("plain")), at("plain"));
        assert!(
            check_place(&at("first"))
                .unwrap_err()
                .to_string()
                .contains("/no/such is not there")
        );
        assert_eq!(behind_links(&at("loop")), at("loop"));
    }
}
