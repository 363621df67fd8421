//! Kinds, modes and reasons as the columns of a lock table hold them, for people to read.

use crate::store::{Gone, Kind, Mode};

/// The word of a kind, and its limit; 0 where it has none.
pub(crate) fn kind_word(kind: Kind) -> (&'static str, i64) {
    match kind {
        Kind::Mutex => ("mutex", 0),
        Kind::RwLock => ("rwlock", 0),
        Kind::Semaphore { limit } => ("semaphore", limit.into()),
    }
}

/// Reads a kind. A line that is not in use, which has none, is shown as a mutex.
pub(crate) fn kind(word: Option<&str>, limit: i64) -> Option<Kind> {
    match word {
        None | Some("mutex") => Some(Kind::Mutex),
        Some("rwlock") => Some(Kind::RwLock),
        Some("semaphore") => Some(Kind::Semaphore {
            limit: u32::try_from(limit).ok()?,
        }),
        Some(_) => None,
    }
}

/// The word of a mode, and its permits; 0 where it has none.
pub(crate) fn mode_word(mode: Mode) -> (&'static str, i64) {
    match mode {
        Mode::Exclusive => ("exclusive", 0),
        Mode::Shared => ("shared", 0),
        Mode::Permits(count) => ("permits", count.into()),
    }
}

/// Reads a mode.
pub(crate) fn mode(word: &str, permits: i64) -> Option<Mode> {
    match word {
        "exclusive" => Some(Mode::Exclusive),
        "shared" => Some(Mode::Shared),
        "permits" => Some(Mode::Permits(u32::try_from(permits).ok()?)),
        _ => None,
    }
}

/// Reads why a claim is gone.
pub(crate) fn gone(word: &str) -> Option<Gone> {
    match word {
        "ended" => Some(Gone::Ended),
        "unknown" => Some(Gone::Unknown),
        "taken" => Some(Gone::Taken),
        "revoked" => Some(Gone::Revoked),
        "sealed" => Some(Gone::Sealed),
        "too soon" => Some(Gone::TooSoon),
        _ => None,
    }
}
