//! Changes to the embedded store's file from outside.

#![cfg(feature = "sqlite")]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use palisade::{Client, ErrorKind, LossReason};
use palisade_conformance::{PATIENCE, eventually};

fn client(folder: &tempfile::TempDir) -> Client {
    Client::connect(format!(
        "sqlite:{}",
        folder.path().join("locks.db").display()
    ))
    .expect("a client")
}

/// A removed file decides nothing any more. The holder learns it at its next renewal, and all
/// clients meet in the new file.
#[tokio::test]
async fn a_holder_in_a_removed_file_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (client(&folder), client(&folder));
    let guard = ours
        .mutex("x")
        .lease(Duration::from_secs(2))
        .acquire()
        .await
        .expect("acquired");
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(folder.path().join(file)).expect("removed");
    }
    let reason = tokio::time::timeout(PATIENCE, guard.lost())
        .await
        .expect("told");
    assert!(
        matches!(reason, LossReason::Forgotten | LossReason::Expired),
        "{reason:?}"
    );
    let next = theirs.mutex("x").acquire().await.expect("acquired");
    assert!(
        ours.mutex("x")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "two files"
    );
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
    assert!(
        theirs
            .mutex("x")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    drop(guard);
}

/// Many processes open a file that does not exist yet: one creates it, and all get their turn.
#[test]
fn many_make_the_file_at_once() {
    use palisade::blocking::Wait;
    for _ in 0..20 {
        let folder = tempfile::tempdir().expect("a folder");
        let threads: Vec<_> = (0..16)
            .map(|number| {
                let locks = client(&folder);
                std::thread::spawn(move || {
                    drop(
                        locks
                            .mutex(format!("{number}"))
                            .try_acquire()
                            .wait()
                            .expect("its turn")
                            .expect("free"),
                    )
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("every thread gets its turn"));
    }
}

/// The user `nobody` of most systems.
const OTHER_USER: u32 = 65534;

/// A folder that every user may make files in, as `/tmp` is.
fn open_to_all() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).expect("rights");
    folder
}

/// Makes something as another user. Only root can.
fn as_another_user(program: &str, arguments: &[&str], path: &Path) {
    let made = Command::new(program)
        .args(arguments)
        .arg(path)
        .uid(OTHER_USER)
        .gid(OTHER_USER)
        .status();
    assert!(made.expect("it starts").success());
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root can act as another user");
    }
    is_root
}

/// The claim is refused, and the error says what to do.
#[track_caller]
fn assert_refused(folder: &tempfile::TempDir, advice: &str) {
    use palisade::blocking::Wait;
    let refused = client(folder)
        .mutex("x")
        .try_acquire()
        .wait()
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(
        refused.to_string().contains("locks.db-clients") && refused.to_string().contains(advice),
        "{refused}"
    );
}

fn clients_of(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("locks.db-clients")
}

/// A user who owns the clients' folder could delete their pipes, and all holders would be taken for
/// dead.
#[test]
fn a_clients_folder_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let folder = open_to_all();
    as_another_user("mkdir", &["-m", "777"], &clients_of(&folder));
    assert_refused(&folder, "belongs to another user");
}

/// The same by a user who has made the database, too.
#[test]
fn a_database_that_another_user_has_made_in_a_shared_place_is_refused() {
    if !is_root() {
        return;
    }
    let folder = open_to_all();
    let database = folder.path().join("locks.db");
    as_another_user("touch", &[], &database);
    as_another_user("chmod", &["666"], &database);
    as_another_user("mkdir", &["-m", "777"], &clients_of(&folder));
    assert_refused(&folder, "the database belongs to another user");
}

/// The same by a link to a folder of that user.
#[test]
fn a_planted_link_is_not_taken_for_the_clients_folder() {
    if !is_root() {
        return;
    }
    let folder = open_to_all();
    let theirs = folder.path().join("theirs");
    as_another_user("mkdir", &["-m", "777"], &theirs);
    as_another_user(
        "ln",
        &["-s", theirs.to_str().expect("text")],
        &clients_of(&folder),
    );
    assert_refused(&folder, "not a folder");
}

/// The same rights as the database: users who may write to that can do as they like anyway.
#[test]
fn a_clients_folder_that_all_may_write_needs_a_database_that_all_may_write() {
    use palisade::blocking::Wait;
    let folder = tempfile::tempdir().expect("a folder");
    drop(
        client(&folder)
            .mutex("x")
            .try_acquire()
            .wait()
            .expect("an answer")
            .expect("free"),
    );
    let rights = |path: PathBuf, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("rights")
    };
    rights(clients_of(&folder), 0o777);
    rights(folder.path().join("locks.db"), 0o644);
    assert_refused(&folder, "chmod o-w");
    rights(folder.path().join("locks.db"), 0o666);
    drop(
        client(&folder)
            .mutex("x")
            .try_acquire()
            .wait()
            .expect("an answer")
            .expect("free"),
    );
}

/// Programs that clean up folders such as `/tmp` remove files that were not touched for days.
#[tokio::test]
async fn renewals_keep_the_files_of_a_client_young() {
    let folder = tempfile::tempdir().expect("a folder");
    let guard = client(&folder)
        .mutex("x")
        .lease(Duration::from_secs(6))
        .acquire()
        .await
        .expect("acquired");
    let old = SystemTime::now() - Duration::from_secs(11 * 24 * 3600);
    let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
    let mut files: Vec<PathBuf> = fs::read_dir(clients_of(&folder))
        .expect("a folder")
        .map(|file| file.expect("a file").path())
        .collect();
    files.extend(["locks.db", "locks.db-wal", "locks.db-shm"].map(|name| folder.path().join(name)));
    assert_eq!(files.len(), 5, "{files:?}");
    for path in &files {
        // A socket cannot be opened: `touch` needs no descriptor.
        match fs::metadata(path).expect("a file").file_type().is_socket() {
            true => assert!(
                Command::new("touch")
                    .args(["-d", "11 days ago"])
                    .arg(path)
                    .status()
                    .expect("it starts")
                    .success()
            ),
            false => File::options()
                .read(true)
                .write(true)
                .open(path)
                .expect("opened")
                .set_times(times)
                .expect("times"),
        }
    }
    let is_young = |path: &PathBuf| {
        let changed = fs::metadata(path)
            .and_then(|data| data.modified())
            .expect("a time");
        changed > SystemTime::now() - Duration::from_secs(3600)
    };
    eventually("all are young", async || files.iter().all(is_young)).await;
    assert!(guard.is_held());
}

/// The link itself may lie anywhere: the file behind it decides.
#[test]
fn a_link_to_nowhere_is_not_a_file_here() {
    let folder = tempfile::tempdir().expect("a folder");
    symlink(
        folder.path().join("no/such/folder/locks.db"),
        folder.path().join("locks.db"),
    )
    .expect("linked");
    let refused = Client::connect(format!(
        "sqlite:{}",
        folder.path().join("locks.db").display()
    ))
    .expect_err("refused");
    assert!(
        refused.to_string().contains("no/such/folder is not there"),
        "{refused}"
    );
}
