//! What happens to the embedded store's file from outside.

#![cfg(feature = "sqlite")]

use std::time::Duration;

use palisade::{Client, LossReason};
use palisade_conformance::PATIENCE;

fn client(folder: &tempfile::TempDir) -> Client {
    Client::connect(format!("sqlite:{}", folder.path().join("locks.db").display())).expect("a client")
}

/// A file that was removed decides nothing any more: the holder learns it at its next renewal, and everybody meets in the new one.
#[tokio::test]
async fn a_holder_in_a_removed_file_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (client(&folder), client(&folder));
    let guard = ours.mutex("x").lease(Duration::from_secs(2)).acquire().await.expect("acquired");
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(folder.path().join(file)).expect("removed");
    }
    let reason = tokio::time::timeout(PATIENCE, guard.lost()).await.expect("told");
    assert!(matches!(reason, LossReason::Expired | LossReason::Taken), "{reason:?}");
    let next = theirs.mutex("x").acquire().await.expect("acquired");
    assert!(ours.mutex("x").try_acquire().await.expect("an answer").is_none(), "two files");
    drop(next);
}

/// Two paths to one file are one store.
#[tokio::test]
async fn a_link_leads_to_the_same_locks() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = client(&folder);
    let guard = ours.mutex("x").acquire().await.expect("acquired");
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.path().join("locks.db"), &link).expect("linked");
    let theirs = Client::connect(format!("sqlite:{}", link.display())).expect("a client");
    assert!(theirs.mutex("x").try_acquire().await.expect("an answer").is_none());
    drop(guard);
}

/// Many who come at once to a file that is not there yet: one makes it, and all get their turn.
#[test]
fn many_make_the_file_at_once() {
    use palisade::blocking::Wait;
    for _ in 0..20 {
        let folder = tempfile::tempdir().expect("a folder");
        let threads: Vec<_> = (0..16)
            .map(|number| {
                let locks = client(&folder);
                std::thread::spawn(move || {
                    drop(locks.mutex(format!("{number}")).try_acquire().wait().expect("its turn").expect("free"))
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("everybody gets his turn"));
    }
}
