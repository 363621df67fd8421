//! The matrix: every deployment, with its mutexes as mutexes, as writers and as semaphores of one, passes every check.

use std::sync::Arc;

use palisade::lease::BootClock;
use palisade::stores::memory::MemoryStore;
use palisade::stores::sqlite::SqliteStore;
use palisade_conformance::{As, Hooks, Subject, suite};

fn memory() -> Subject {
    let store = MemoryStore::new(Arc::new(BootClock));
    Subject::new(move || Arc::new(store.another()))
}

fn sqlite() -> Subject {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    let database = path.clone();
    // Whoever sits on the file with a transaction makes it stand still for all others.
    let pause = move || -> Box<dyn Send> {
        let connection = rusqlite::Connection::open(&database).expect("opened");
        connection.busy_timeout(palisade_conformance::PATIENCE).expect("set");
        connection.execute_batch("BEGIN IMMEDIATE").expect("our turn");
        Box::new(connection)
    };
    let clients = folder.path().join("locks.db-clients");
    // A client lives by its pipe: without it the others take it for dead.
    let lose_sessions = move || -> Box<dyn Send> {
        let files = std::fs::read_dir(&clients).expect("a folder of clients").flatten();
        for pipe in files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|kind| kind == "pipe")) {
            std::fs::remove_file(pipe).expect("removed");
        }
        Box::new(())
    };
    Subject::new(move || {
        // Kept for as long as the subject is.
        let _ = &folder;
        Arc::new(SqliteStore::new(&path))
    })
    .with_url(url)
    .with_hooks(Hooks { pause: Some(Box::new(pause)), lose_sessions: Some(Box::new(lose_sessions)) })
}

/// Makes the tests of the table, and the table itself for the test below.
macro_rules! matrix {
    ($($store:literal / $format:literal: $($module:ident = $subject:expr, $kind:expr;)*)*) => {
        $($(suite!($module, $subject.adapted($kind));)*)*

        const MATRIX: &[(&str, &str, As)] = &[$($(($store, $format, $kind),)*)*];
    };
}

matrix! {
    "memory" / "line":
        memory_mutex = memory(), As::Mutex;
        memory_writer = memory(), As::Writer;
        memory_semaphore = memory(), As::Semaphore;
    "sqlite" / "line":
        sqlite_mutex = sqlite(), As::Mutex;
        sqlite_writer = sqlite(), As::Writer;
        sqlite_semaphore = sqlite(), As::Semaphore;
}

/// A store, a format or an adapter that is not in the table was forgotten.
#[test]
fn no_cell_is_missing() {
    for capability in palisade::stores::capabilities() {
        let mut kinds = vec![As::Mutex];
        kinds.extend(capability.rwlock.then_some(As::Writer));
        kinds.extend(capability.semaphore.then_some(As::Semaphore));
        for kind in kinds {
            let cell = (capability.store, capability.format, kind);
            assert!(MATRIX.contains(&cell), "{cell:?} is not in the matrix");
        }
    }
}
