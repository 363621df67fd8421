//! Whether a client is alive: a named pipe that it keeps locked and open for as long as it lives.
//!
//! The lock (`flock`) answers the question now, and the pipe tells when the answer changes: a
//! reader's end hangs up when the last writer is gone. Both belong to the open file, not to a
//! process, so a child that inherits the descriptor keeps its parent's grants alive until the whole
//! process tree is gone. POSIX locks would do neither.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;

/// How old the files of a client may become: clean-up programs remove files after some days.
const OLDEST: Duration = Duration::from_secs(3600);
/// The right of all users to write.
const BY_OTHERS: u32 = 0o002;

/// The folder of the clients of one database.
pub(super) struct Folder {
    database: PathBuf,
    /// All files are reached through this handle: a folder that replaces it later is not used. It
    /// also keeps socket paths short.
    handle: Arc<File>,
}

/// A client's sign of life. Dropping it, in every process that has it, ends the client's claims.
pub(super) struct Life {
    /// Taken when it ends.
    pipe: Option<OwnedFd>,
    folder: Arc<File>,
    client: String,
}

impl Folder {
    /// Opens the folder beside an existing database, and makes the folder if necessary.
    ///
    /// # Errors
    ///
    /// When a user who may not write to the database could delete pipes in the folder: a client
    /// without its pipe is taken for dead.
    pub(super) fn beside(database: &Path) -> io::Result<Folder> {
        // SQLite follows a link to the file, and keeps a relative path when the process changes its
        // directory. So must we: in another folder every client would look dead.
        let database = database.canonicalize()?;
        let rights = database.metadata()?;
        let mut path = database.clone().into_os_string();
        path.push("-clients");
        let mode = Mode::from_raw_mode(0o775 | rights.mode() & BY_OTHERS);
        match rustix::fs::mkdirat(rustix::fs::CWD, &path, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = File::from(rustix::fs::open(&path, flags, Mode::empty()).map_err(
            |error| match error {
                Errno::NOTDIR | Errno::LOOP => refused("it is not a folder; remove it"),
                error => error.into(),
            },
        )?);
        let parent = database.parent().unwrap_or(Path::new("/")).metadata()?;
        check_rights(&handle.metadata()?, &rights, &parent)?;
        Ok(Folder {
            database,
            handle: Arc::new(handle),
        })
    }

    /// The path of a client's socket, through the open folder: a socket's path has room for about a
    /// hundred bytes.
    pub(super) fn socket(&self, client: &str) -> PathBuf {
        PathBuf::from(format!(
            "/proc/self/fd/{}/{}",
            self.handle.as_raw_fd(),
            socket_of(client)
        ))
    }

    /// Begins a client's life.
    pub(super) fn live(&self, client: &str) -> io::Result<Life> {
        let name = pipe_of(client);
        rustix::fs::mkfifoat(
            &self.handle,
            &name,
            Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP,
        )?;
        // For reading and writing: a pipe opened for writing alone would wait for a reader.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pipe = rustix::fs::openat(&self.handle, &name, flags, Mode::empty())?;
        // No other client knows this one yet, so this waits at most for a sweep that has just
        // checked it.
        rustix::fs::flock(&pipe, FlockOperation::LockExclusive)?;
        Ok(Life {
            pipe: Some(pipe),
            folder: Arc::clone(&self.handle),
            client: client.to_owned(),
        })
    }

    /// Keeps the files of a living client, and those of the database, from being cleaned up:
    /// systemd removes files in `/tmp` that were not touched for 10 days.
    pub(super) fn keep_young(&self, life: &Life) {
        let Some(pipe) = &life.pipe else { return };
        if rustix::fs::fstat(pipe).is_ok_and(|pipe| !is_older(pipe.st_mtime as _, OLDEST)) {
            return;
        }
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        };
        let now = Timestamps {
            last_access: now,
            last_modification: now,
        };
        // Best effort: a file that another user owns may be touched by that user's clients only.
        let _ = rustix::fs::futimens(pipe, &now);
        let _ = rustix::fs::utimensat(
            &self.handle,
            socket_of(&life.client),
            &now,
            AtFlags::SYMLINK_NOFOLLOW,
        );
        for suffix in ["", "-wal", "-shm"] {
            let mut file = self.database.clone().into_os_string();
            file.push(suffix);
            let _ = rustix::fs::utimensat(rustix::fs::CWD, file, &now, AtFlags::SYMLINK_NOFOLLOW);
        }
    }

    /// Whether a client is alive. One whose pipe is there but cannot be opened (no right, no
    /// descriptor left) is taken for alive: its lease ends it.
    pub(super) fn is_alive(&self, client: &str) -> bool {
        match open(&self.handle, client) {
            Ok(pipe) => is_locked(&pipe),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Completes when a client has died; at once if it is dead.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub(super) async fn death(&self, client: &str) {
        let pipe = match open(&self.handle, client) {
            Ok(pipe) => pipe,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => return std::future::pending().await,
        };
        if !is_locked(&pipe) {
            return;
        }
        match Receiver::from_owned_fd(pipe) {
            // No client ever writes: the only event is the hang-up.
            Ok(pipe) => drop(pipe.readable().await),
            // Without the push there is still the heartbeat.
            Err(_) => std::future::pending().await,
        }
    }

    /// Removes the files of dead clients. Young files are spared: their owners may be about to lock
    /// them.
    pub(super) fn sweep(&self) {
        let Ok(files) = rustix::fs::Dir::read_from(&self.handle) else {
            return;
        };
        for file in files.flatten() {
            let Some(client) = file
                .file_name()
                .to_str()
                .ok()
                .and_then(|name| name.strip_suffix(".pipe"))
            else {
                continue;
            };
            let Ok(pipe) =
                rustix::fs::statat(&self.handle, file.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            if is_older(pipe.st_mtime as _, Duration::from_secs(60)) && !self.is_alive(client) {
                remove(&self.handle, client);
            }
        }
    }
}

fn pipe_of(client: &str) -> String {
    format!("{client}.pipe")
}

fn socket_of(client: &str) -> String {
    format!("{client}.sock")
}

fn open(folder: &File, client: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(
        folder,
        pipe_of(client),
        flags,
        Mode::empty(),
    )?)
}

/// Removes the files of a client.
fn remove(folder: &File, client: &str) {
    let _ = rustix::fs::unlinkat(folder, socket_of(client), AtFlags::empty());
    let _ = rustix::fs::unlinkat(folder, pipe_of(client), AtFlags::empty());
}

/// Only users who may write to the database may own the folder, or write to it. In a place where
/// every user can make files, such as `/tmp`, a database that another user has made is no better
/// than the folder of such a user.
fn check_rights(folder: &Metadata, database: &Metadata, parent: &Metadata) -> io::Result<()> {
    let ours = rustix::process::geteuid().as_raw();
    if parent.mode() & BY_OTHERS != 0 && ![ours, 0].contains(&database.uid()) {
        return Err(refused(&format!(
            "the database belongs to another user (uid {}), in a folder that every user may write to, \
             so that user could end your locks; put the database into a folder of its users",
            database.uid()
        )));
    }
    if ![ours, database.uid(), 0].contains(&folder.uid()) {
        return Err(refused(&format!(
            "it belongs to another user (uid {}), who could end your locks; remove it, \
             or put the database into a folder that only you can write to",
            folder.uid()
        )));
    }
    if folder.mode() & BY_OTHERS & !database.mode() != 0 {
        return Err(refused(
            "every user may write to it, but not to the database, and could end your locks; chmod o-w it",
        ));
    }
    Ok(())
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Whether a time of a file, in seconds since 1970, is further back than that.
fn is_older(changed: i64, age: Duration) -> bool {
    let changed =
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(changed).unwrap_or_default());
    changed.elapsed().is_ok_and(|passed| passed > age)
}

/// Whether the lock is held. Tried as a shared lock, so that two checks at once do not mistake each
/// other for the owner.
fn is_locked(pipe: impl AsFd) -> bool {
    matches!(
        rustix::fs::flock(pipe, FlockOperation::NonBlockingLockShared),
        Err(Errno::WOULDBLOCK)
    )
}

impl Life {
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Life {
    /// Leaves nothing behind, unless a child still has the descriptor: then a later sweep removes
    /// the files.
    fn drop(&mut self) {
        drop(self.pipe.take());
        if open(&self.folder, &self.client).is_ok_and(|pipe| !is_locked(pipe)) {
            remove(&self.folder, &self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder_in(place: &Path) -> Folder {
        fs::write(place.join("locks.db"), "").unwrap();
        Folder::beside(&place.join("locks.db")).unwrap()
    }

    #[test]
    fn a_link_to_the_file_leads_to_the_same_clients() {
        let place = tempfile::tempdir().unwrap();
        let folder = folder_in(place.path());
        std::os::unix::fs::symlink("locks.db", place.path().join("link.db")).unwrap();
        let linked = Folder::beside(&place.path().join("link.db")).unwrap();
        let inode = |folder: &Folder| folder.handle.metadata().unwrap().ino();
        assert_eq!(inode(&folder), inode(&linked));
        assert!(folder.database.is_absolute());
    }

    #[test]
    fn only_clients_known_to_be_dead_are_dead() {
        let place = tempfile::tempdir().unwrap();
        let folder = folder_in(place.path());
        let life = folder.live("lives").unwrap();
        assert!(folder.is_alive("lives"));
        drop(life);
        assert!(!folder.is_alive("lives"));
        // It is there and cannot be opened, as for a user without the right: that says nothing of
        // its owner.
        std::os::unix::fs::symlink(
            "unknown.pipe",
            place.path().join("locks.db-clients/unknown.pipe"),
        )
        .unwrap();
        assert!(folder.is_alive("unknown"));
    }
}
