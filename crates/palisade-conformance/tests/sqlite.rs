//! Every check, on the SQLite store: each client has its own connection to one file.

use std::sync::Arc;

use palisade::stores::sqlite::SqliteStore;
use palisade_conformance::Subject;

fn subject() -> Subject {
    let folder = tempfile::tempdir().expect("a folder");
    Subject::new(move || Arc::new(SqliteStore::new(folder.path().join("locks.db"))))
}

palisade_conformance::suite!(subject());
