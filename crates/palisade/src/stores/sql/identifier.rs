//! Names of tables and columns that come from a URL or from the user's code.

use std::fmt;

use crate::error::{Error, Result};

/// The name of a schema, table or column that is safe in a statement: letters, digits and `_`, and
/// no digit first. So quotes around it need no escape.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Identifier(String);

/// PostgreSQL cuts a longer one off, MySQL refuses one of more than 64.
const LONGEST: usize = 63;

impl Identifier {
    /// Checks a text. `what` begins the error: `table=`.
    pub(crate) fn new(what: &str, text: &str) -> Result<Identifier> {
        Identifier::with_room(what, text, 0)
    }

    /// As [`new`](Identifier::new), where up to `room` letters are put behind it.
    pub(crate) fn with_room(what: &str, text: &str, room: usize) -> Result<Identifier> {
        let longest = LONGEST - room;
        let first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        let other = |byte: u8| first(byte) || byte.is_ascii_digit();
        let safe = text.bytes().next().is_some_and(first) && text.bytes().all(other);
        if safe && text.len() <= longest {
            Ok(Identifier(text.to_owned()))
        } else {
            // It is not shown: it may be a piece of something else.
            Err(Error::config(format!(
                "{what} is not a name that is safe in SQL; \
                 write 1 to {longest} letters, digits and '_', and no digit first"
            )))
        }
    }

    /// Without quotes.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_names_are_taken() {
        for good in ["a", "_", "Lock_2", &"x".repeat(63)] {
            assert!(Identifier::new("table=", good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "2a",
            "a b",
            "a.b",
            "a\"b",
            "a`b",
            "a;--",
            "größe",
            "a\0",
            &"x".repeat(64),
        ] {
            let refused = Identifier::new("table=", bad).expect_err(bad);
            assert!(refused.to_string().starts_with("table="), "{refused}");
        }
        assert!(Identifier::with_room("table=", &"x".repeat(55), 9).is_err());
    }
}
