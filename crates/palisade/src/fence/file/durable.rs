//! Replacing a file so that a crash leaves the old one or the new one, and never a part.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use super::error::{IoContext, WriteError};
use super::{absent_as_none, not_a_file};

/// Only for this user, until the rights of the old file are on the new one.
const PRIVATE: u32 = 0o600;
/// The mode that `open` gives a new file, less the umask.
const USUAL: u32 = 0o666;

/// A file that is replaced as a whole, by one writer at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// Where the next version is made: in the same directory, for the rename. The name is fixed, so
    /// that crashes cannot pile up files; the caller's lock keeps two writers from sharing it.
    pub(super) aside: PathBuf,
    pub(super) dir: PathBuf,
}

impl Place {
    /// On disk when this returns `Ok`.
    pub(super) fn replace(&self, contents: &[u8]) -> Result<(), WriteError> {
        let replaced = self
            .write_aside(contents)
            .and_then(|()| fs::rename(&self.aside, &self.path).context("replace", &self.path));
        if replaced.is_err() {
            // Frees the space. If that fails too, the next write does it.
            let _ = fs::remove_file(&self.aside);
        }
        replaced?;
        sync_dir(&self.dir)
    }

    fn write_aside(&self, contents: &[u8]) -> Result<(), WriteError> {
        let old =
            absent_as_none(fs::symlink_metadata(&self.path)).context("look at", &self.path)?;
        if old.as_ref().is_some_and(|old| !old.is_file()) {
            return Err(not_a_file()).context("replace", &self.path);
        }
        absent_as_none(fs::remove_file(&self.aside))
            .context("remove the left-over", &self.aside)?;
        // create_new, so that a link planted under this name is not followed.
        let mode = if old.is_some() { PRIVATE } else { USUAL };
        let mut new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&self.aside)
            .context("create", &self.aside)?;
        if let Some(old) = old {
            keep_rights(&new, &old).context("keep owner and mode on", &self.aside)?;
        }
        new.write_all(contents).context("write", &self.aside)?;
        new.sync_all().context("sync", &self.aside)
    }
}

/// Owner first: changing it clears bits of the mode.
fn keep_rights(new: &File, old: &Metadata) -> io::Result<()> {
    let made = new.metadata()?;
    if made.uid() != old.uid() {
        // Only root may give files away. Among the members of a group, the last writer owns the
        // file.
        if let Err(cause) = fchown(new, Some(old.uid()), None)
            && cause.kind() != io::ErrorKind::PermissionDenied
        {
            return Err(cause);
        }
    }
    if made.gid() != old.gid() {
        // No exception here: with another group, the same mode would admit other users.
        fchown(new, None, Some(old.gid()))?;
    }
    new.set_permissions(old.permissions())
}

/// A rename is durable only when its directory is.
pub(super) fn sync_dir(dir: &Path) -> Result<(), WriteError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .context("sync the directory", dir)
}
