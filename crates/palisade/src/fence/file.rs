//! A file that refuses stale writes.
//!
//! ```
//! use palisade::fence::Fence;
//! use palisade::fence::file::{FencedFile, WriteError};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("stock.json");
//! # let (ours, later) = (Fence::new(33).ok_or("fence")?, Fence::new(34).ok_or("fence")?);
//! let file = FencedFile::new(&path)?;
//! file.write(ours, b"{\"left\": 7}")?; // `ours` is guard.fence()
//!
//! // Our process is paused past its lease. Another holder is granted the lock, and installs its fence before it reads.
//! file.install(later)?;
//! let seen = file.read()?;
//!
//! // We wake up and go on as if nothing had happened. The file refuses.
//! let refused = file.write(ours, b"{\"left\": 6}");
//! assert!(matches!(refused, Err(WriteError::Stale { .. })));
//! assert_eq!(file.read()?, seen);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How to use it
//!
//! - **Install before you read.** A file only knows the fences it has seen. If the new holder reads
//!   first, the old holder's write can still pass after that read, and the new holder then
//!   overwrites it or works on outdated contents.
//! - With several files, install on all of them before touching any.
//! - All writers must use [`FencedFile`]. A plain `echo > file` checks nothing.
//! - One file belongs to one lock name. Fences of different names, or of different stores, cannot
//!   be compared.
//! - A fence protects this file. It does not undo what a stale holder does elsewhere.
//!
//! # What is on disk
//!
//! | path | what |
//! |---|---|
//! | `X` | the contents, replaced as a whole by rename: a reader sees the old or the new ones, never a part |
//! | `X.fence` | the lock file: an exclusive `flock` on it is held for each write. It is never replaced or removed, since a `flock` is on the inode and not on the name |
//! | `X.fence.mark` | the highest fence seen, with a checksum, replaced by rename |
//! | `X.fence.new`, `X.fence.mark.new` | half-made files, left by a crash at worst; the next write removes them |
//!
//! Do not remove `X.fence` or `X.fence.mark`, and back them up and restore them with `X`: without
//! the mark, the file has forgotten every holder.
//!
//! # What a crash leaves
//!
//! Under the `flock` the new mark is made durable first (written aside, fsync, rename, fsync of the
//! directory), and only then the contents, in the same way. So after a crash of the process or of
//! the machine the mark is at least the fence of the contents; it may be higher, which refuses the
//! old holder a little early. A damaged or missing mark is [`WriteError::Corrupt`], and is never
//! taken for zero.
//!
//! After [`WriteError::Io`] the new contents may be there or not. Writing again with the same fence
//! is safe.
//!
//! # Limits
//!
//! - **The calls block**: a write takes three or four fsyncs (a few milliseconds on most disks) and
//!   waits its turn for the `flock`. In async code call them in `spawn_blocking`. A process that is
//!   stopped in the middle of a write keeps the others waiting until it goes on or dies: the file
//!   stays safe, but cannot be written.
//! - Symbolic links are followed once, by [`FencedFile::new`]: writers through a link and through
//!   the real path meet at the same mark. Other hard links to `X` keep the old contents, because
//!   `X` is replaced and not overwritten.
//! - Mode and group of `X` are kept, its owner where the system lets us; ACLs and extended
//!   attributes are not.
//! - Local file systems only. On NFS, `flock` and rename promise less, by version and mount
//!   options.

mod durable;
mod error;
mod mark;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub use error::WriteError;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Fence;
use durable::{Place, sync_dir};
use error::IoContext;
use mark::Turn;

/// As many as Linux follows.
const MAX_LINKS: usize = 40;

/// A file that remembers the highest fence it has seen and refuses a lower one. See the [module
/// docs](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FencedFile {
    data: Place,
    lock: PathBuf,
    mark: Place,
}

impl FencedFile {
    /// The fenced file at `path`. The file need not exist, its directory must. Nothing is created
    /// before the first write.
    ///
    /// A relative path is made absolute and symbolic links are resolved here, once: when a link is
    /// pointed elsewhere later, this value stays with the file it found.
    pub fn new(path: impl AsRef<Path>) -> Result<FencedFile, WriteError> {
        let path = path.as_ref();
        let (dir, name) = resolve(path).context("find", path)?;
        let sibling = |suffix: &str| {
            let mut name = name.clone();
            name.push(suffix);
            dir.join(name)
        };
        Ok(FencedFile {
            data: Place {
                path: sibling(""),
                aside: sibling(".fence.new"),
                dir: dir.clone(),
            },
            lock: sibling(".fence"),
            mark: Place {
                path: sibling(".fence.mark"),
                aside: sibling(".fence.mark.new"),
                dir: dir.clone(),
            },
        })
    }

    /// Where the contents are, after links were resolved.
    pub fn path(&self) -> &Path {
        &self.data.path
    }

    /// Replaces the contents, unless a higher fence has been seen. Check and write are one step,
    /// with no other writer in between.
    ///
    /// The same fence may write again. When this returns `Ok`, the contents are on disk. Blocks.
    pub fn write(&self, fence: Fence, contents: &[u8]) -> Result<(), WriteError> {
        let _turn = self.admit(fence)?;
        self.data.replace(contents)
    }

    /// Makes this fence known, so that every lower one is refused from now on. The contents stay as
    /// they are.
    ///
    /// A new holder calls this before it reads. Blocks.
    pub fn install(&self, fence: Fence) -> Result<(), WriteError> {
        self.admit(fence).map(drop)
    }

    /// The contents; `None` while there is no file. Waits for no writer.
    ///
    /// Call [`install`](FencedFile::install) first if you are going to write something that depends
    /// on them.
    pub fn read(&self) -> io::Result<Option<Vec<u8>>> {
        absent_as_none(fs::read(&self.data.path))
    }

    /// The highest fence this file has seen; `None` before the first. Waits for no writer.
    pub fn highest(&self) -> Result<Option<Fence>, WriteError> {
        mark::load(&self.mark.path, &self.lock)
    }

    /// Waits for our turn and raises the mark. Other writers wait as long as the turn lives.
    fn admit(&self, offered: Fence) -> Result<Turn, WriteError> {
        if offered.is_none() {
            return Err(WriteError::NoFence);
        }
        let turn = Turn::wait(&self.lock)?;
        match self.highest()? {
            Some(highest) if offered < highest => {
                return Err(WriteError::Stale { highest, offered });
            }
            // The mark may be the work of a process that died before its rename was durable. Our
            // contents must not overtake it.
            Some(highest) if offered == highest => sync_dir(&self.mark.dir)?,
            _ => self.mark.replace(&mark::encode(offered))?,
        }
        turn.note_that_there_is_a_mark()?;
        Ok(turn)
    }
}

/// The real directory and the name in it that `path` leads to, whether or not the file is there
/// yet.
fn resolve(path: &Path) -> io::Result<(PathBuf, std::ffi::OsString)> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let name = file_name(&path)?.to_owned();
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.canonicalize()?,
            _ => Path::new(".").canonicalize()?,
        };
        let found = dir.join(&name);
        match absent_as_none(fs::symlink_metadata(&found))? {
            Some(it) if it.is_symlink() => path = dir.join(fs::read_link(&found)?),
            Some(it) if !it.is_file() => return Err(not_a_file()),
            _ => return Ok((dir, name)),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Opens a file of ours, and never follows a link that another user has planted in its place.
fn open_itself(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let opened = options
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path);
    opened.map_err(|cause| match Errno::from_io_error(&cause) {
        Some(Errno::LOOP) => io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a symbolic link; remove it",
        ),
        _ => cause,
    })
}

fn file_name(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(not_a_file)
}

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

fn absent_as_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}
