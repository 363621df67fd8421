//! Whether a client is alive: a named pipe that it keeps locked and open for as long as it lives.
//!
//! The lock (`flock`) answers the question now, and the pipe tells the moment it changes: a reader's end hangs up when the last
//! writer is gone. Both belong to the open file, not to a process, so a child that inherits the descriptor keeps its parent's
//! grants alive until the whole tree is gone. POSIX locks would do neither.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;

/// The folder of the clients of one database.
pub(super) struct Folder {
    path: PathBuf,
    /// Open, so that sockets are reached by a short path however deep the folder lies.
    handle: File,
}

/// A client's life. Dropping it, in every process that has it, ends the client's claims.
pub(super) struct Life {
    /// Taken when it ends.
    pipe: Option<OwnedFd>,
    path: PathBuf,
}

impl Folder {
    /// The folder beside the database, which is there; made if it is not there itself.
    pub(super) fn beside(database: &Path) -> io::Result<Folder> {
        // SQLite follows a link to the file, and stays with a relative path when the process goes elsewhere. So must we: in
        // another folder everybody would look dead.
        let mut path = database.canonicalize()?.into_os_string();
        path.push("-clients");
        let path = PathBuf::from(path);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let handle = File::open(&path)?;
        Ok(Folder { path, handle })
    }

    /// The path of a client's socket, through the open folder: a socket's path has room for about a hundred bytes.
    pub(super) fn socket(&self, client: &str) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}/{client}.sock", self.handle.as_raw_fd()))
    }

    fn pipe(&self, client: &str) -> PathBuf {
        self.path.join(format!("{client}.pipe"))
    }

    /// Begins a client's life.
    pub(super) fn live(&self, client: &str) -> io::Result<Life> {
        let path = self.pipe(client);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)?;
        // For reading and writing: a pipe opened for writing alone would wait for a reader.
        let pipe = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // Nobody knows the client yet, so this waits at most for a sweep that has just looked.
        rustix::fs::flock(&pipe, FlockOperation::LockExclusive)?;
        Ok(Life { pipe: Some(pipe), path })
    }

    /// Whether a client is alive. One whose pipe is there but cannot be opened (no right, no descriptor left) is taken for alive:
    /// its lease ends it.
    pub(super) fn is_alive(&self, client: &str) -> bool {
        match self.open(client) {
            Ok(pipe) => is_locked(&pipe),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    fn open(&self, client: &str) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(self.pipe(client), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Completes when a client has died; at once if it is dead.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub(super) async fn death(&self, client: &str) {
        let pipe = match self.open(client) {
            Ok(pipe) => pipe,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => return std::future::pending().await,
        };
        if !is_locked(&pipe) {
            return;
        }
        match Receiver::from_owned_fd(pipe) {
            // Nobody ever writes: the only thing to read is the hang-up.
            Ok(pipe) => drop(pipe.readable().await),
            // Without the push there is still the heartbeat.
            Err(_) => std::future::pending().await,
        }
    }

    /// Removes what dead clients have left. Young files are spared: their owners may be about to lock them.
    pub(super) fn sweep(&self) {
        let Ok(files) = fs::read_dir(&self.path) else { return };
        for path in files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|kind| kind == "pipe")) {
            let Some(client) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            if is_old(&path) && !self.is_alive(client) {
                let _ = fs::remove_file(path.with_extension("sock"));
                let _ = fs::remove_file(&path);
            }
        }
    }
}

fn is_old(path: &Path) -> bool {
    let changed = fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    changed.elapsed().is_ok_and(|age| age > Duration::from_secs(60))
}

/// Whether somebody holds the lock. Shared, so that two who look at once do not take each other for the owner.
fn is_locked(pipe: impl AsFd) -> bool {
    matches!(rustix::fs::flock(pipe, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK))
}

impl Life {
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Life {
    /// Leaves nothing behind, unless a child still has the descriptor: then whoever sweeps later removes the files.
    fn drop(&mut self) {
        drop(self.pipe.take());
        let pipe = rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        if pipe.is_ok_and(|pipe| !is_locked(pipe)) {
            let _ = fs::remove_file(self.path.with_extension("sock"));
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(folder.path, linked.path);
        assert!(folder.path.is_absolute());
    }

    #[test]
    fn only_those_who_are_known_to_be_dead_are_dead() {
        let place = tempfile::tempdir().unwrap();
        let folder = folder_in(place.path());
        let life = folder.live("lives").unwrap();
        assert!(folder.is_alive("lives"));
        drop(life);
        assert!(!folder.is_alive("lives"));
        // It is there and cannot be opened, as for a user without the right: that says nothing of its owner.
        std::os::unix::fs::symlink("unknown.pipe", folder.pipe("unknown")).unwrap();
        assert!(folder.is_alive("unknown"));
    }
}
