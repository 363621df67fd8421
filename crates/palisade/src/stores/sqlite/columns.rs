//! How values stand in the columns of the tables.

use std::time::Duration;

use crate::fence::Fence;
use crate::line::{Mark, StoreTime};
use crate::store::{Gone, Kind, Mode};

pub(super) fn read_mark(set_at: Option<i64>, lasts: Option<i64>, by: Option<i64>) -> Option<Mark> {
    Some(Mark {
        at: at(set_at?),
        span: span(lasts?),
        fence: fence(by?),
    })
}

pub(super) fn write_kind(kind: Kind) -> (&'static str, Option<u32>) {
    match kind {
        Kind::Mutex => ("mutex", None),
        Kind::RwLock => ("rwlock", None),
        Kind::Semaphore { limit } => ("semaphore", Some(limit)),
    }
}

pub(super) fn read_kind(word: &str, limit: Option<u32>) -> Kind {
    match (word, limit) {
        ("semaphore", Some(limit)) => Kind::Semaphore { limit },
        ("rwlock", _) => Kind::RwLock,
        _ => Kind::Mutex,
    }
}

pub(super) fn write_mode(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permits(count) => ("permits", Some(count)),
    }
}

pub(super) fn read_mode(word: &str, permits: Option<u32>) -> Mode {
    match (word, permits) {
        ("permits", Some(count)) => Mode::Permits(count),
        ("shared", _) => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

pub(super) fn write_gone(why: Gone) -> &'static str {
    match why {
        Gone::Expired => "expired",
        Gone::Ended => "ended",
        Gone::Unknown => "unknown",
        Gone::Taken => "taken",
        Gone::Revoked => "revoked",
        Gone::SessionEnded => "session-ended",
        Gone::Sealed => "sealed",
        Gone::TooSoon => "too-soon",
    }
}

pub(super) fn read_gone(word: &str) -> Gone {
    match word {
        "ended" => Gone::Ended,
        "unknown" => Gone::Unknown,
        "taken" => Gone::Taken,
        "revoked" => Gone::Revoked,
        "session-ended" => Gone::SessionEnded,
        "sealed" => Gone::Sealed,
        "too-soon" => Gone::TooSoon,
        _ => Gone::Expired,
    }
}

/// SQLite's integers end at 2^63, as fences do.
pub(super) fn as_i64(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

pub(super) fn fence(number: i64) -> Fence {
    u64::try_from(number)
        .ok()
        .and_then(Fence::new)
        .unwrap_or(Fence::NONE)
}

pub(super) fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn span(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// The end of SQLite's integers is the end of time.
pub(super) fn time(time: StoreTime) -> i64 {
    nanos(time.since_zero())
}

pub(super) fn at(nanos: i64) -> StoreTime {
    if nanos == i64::MAX {
        StoreTime::NEVER
    } else {
        StoreTime::at(span(nanos))
    }
}
