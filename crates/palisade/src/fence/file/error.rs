//! Why a fenced file did not take a write.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::fence::Fence;

/// Why a fenced file did not take a write. The message says what to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// A higher fence has been seen: the lock was granted to another holder since.
    Stale {
        /// The highest fence that the file has seen.
        highest: Fence,
        /// The fence that came with this write.
        offered: Fence,
    },
    /// The grant has no fence, so a stale write could not be detected.
    NoFence,
    /// The system refused. The new contents may be there or not; writing again with the same fence
    /// is safe.
    Io {
        /// The failed operation, as a verb: "create", "rename".
        doing: &'static str,
        /// The file it was tried on.
        path: PathBuf,
        /// The system's error. It is part of the message, and so not repeated as the
        /// [`source`](std::error::Error::source).
        cause: io::Error,
    },
    /// The mark cannot be trusted, so that nothing may be written.
    Corrupt {
        /// The mark file.
        path: PathBuf,
        /// The defect.
        why: &'static str,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Stale { highest, offered } => write!(
                f,
                "stale write refused: fence {offered} is lower than {highest}, which the file has seen, so the lock was granted \
                 to another holder since; stop, and acquire the lock again before you read and write"
            ),
            WriteError::NoFence => f.write_str(
                "write refused: the grant has no fence, because the store or the shared format gives none; use a store or format \
                 whose capability has fences",
            ),
            WriteError::Io { doing, path, cause } => {
                write!(f, "cannot {doing} {}: {cause}{}", path.display(), advice(cause.kind()))
            }
            WriteError::Corrupt { path, why } => write!(
                f,
                "the mark file {} {why}, so a stale write could not be refused; restore it from a backup, or, once every holder up \
                 to now has stopped, remove it together with the file {} to start anew",
                path.display(),
                path.with_extension("").display(),
            ),
        }
    }
}

impl std::error::Error for WriteError {}

fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; a fenced file is replaced by rename, so its directory and the .fence files beside it must be writable"
        }
        io::ErrorKind::NotFound => "; the directory must exist",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space and write again with the same fence"
        }
        _ => "",
    }
}

/// Says what was tried, and where: an `io::Error` alone names no file.
pub(super) trait IoContext<T> {
    fn context(self, doing: &'static str, path: &Path) -> Result<T, WriteError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn context(self, doing: &'static str, path: &Path) -> Result<T, WriteError> {
        self.map_err(|cause| WriteError::Io {
            doing,
            path: path.to_path_buf(),
            cause: cause.into(),
        })
    }
}
