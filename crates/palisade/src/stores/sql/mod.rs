//! Shared by the stores in SQL: identifiers that are safe in a statement, the words that the lock
//! tables hold, and spans as the routines take them.

// The stores take what they need of it.
#![allow(
    dead_code,
    reason = "one of the SQL stores may be compiled without the other"
)]

mod identifier;
#[cfg(test)]
mod oracle;
pub(crate) mod session;
pub(crate) mod token;
mod words;

use std::time::Duration;

pub(crate) use self::identifier::Identifier;
pub(crate) use self::words::{gone, kind, kind_word, mode, mode_word};
use crate::error::{Error, Result};

/// A span as the routines take it: never shorter than it is, and so short that no sum with a time
/// overflows.
pub(crate) fn micros(span: Duration) -> i64 {
    const LONGEST: u128 = 1 << 60;
    let micros = span.as_nanos().div_ceil(1000).min(LONGEST);
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// A span that a routine answered; negative when there is none.
pub(crate) fn span(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

/// Refuses a prefix of names that a column of the primary key cannot hold.
pub(crate) fn check_prefix(prefix: &str, longest: usize) -> Result<()> {
    if prefix.len() > longest {
        Err(Error::bad_url(format!(
            "bad store URL: prefix= is longer than {longest} bytes"
        )))
    } else {
        Ok(())
    }
}

/// Refuses a text that a column cannot hold.
pub(crate) fn check_text(what: &str, text: &str) -> Result<()> {
    if text.contains('\0') {
        Err(Error::config(format!(
            "the {what} has a character U+0000, which no column of text can hold; leave it out"
        )))
    } else {
        Ok(())
    }
}
