//! Names of user locks: the name of a lock, in the ways of the programs that share it.

use sha2::{Digest, Sha512};

use crate::error::{Error, Result};
use crate::name::Name;

/// The longest name that every server takes.
const LONGEST: usize = 64;

/// How a name becomes a key: `keys=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// A plain name as it is; in others, each other byte is written `%xx`.
    Mapped,
    /// As it is, whatever it is: `names=exact`.
    Exact,
    /// As `MySqlDistributedLock` of madelson/DistributedLock, with exact names off.
    Madelson,
}

impl Keys {
    pub(super) fn read(word: Option<&str>, exact: bool) -> Result<Keys> {
        match (word, exact) {
            (None, false) => Ok(Keys::Mapped),
            (None, true) => Ok(Keys::Exact),
            (Some("madelson"), false) => Ok(Keys::Madelson),
            (Some("madelson"), true) => Err(Error::bad_url(
                "bad store URL: keys=madelson has a mapping of its own; leave names=exact out",
            )),
            (Some(_), _) => Err(Error::bad_url(
                "bad store URL: keys= of mysql: is madelson; leave it out for plain names as they are",
            )),
        }
    }

    /// `name` has the prefix already.
    pub(super) fn key(self, name: &str) -> Result<String> {
        match self {
            Keys::Mapped => Ok(Name::new(name)?.mapped(LONGEST)),
            Keys::Exact if name.chars().count() <= LONGEST => Ok(name.to_owned()),
            Keys::Exact => Err(Error::config(format!(
                "the name of a user lock has {LONGEST} characters at most; take a shorter one, or \
                 leave names=exact out"
            ))),
            Keys::Madelson => Ok(madelson(name)),
        }
    }
}

/// A name that is lower case and not too long is itself. Any other is cut, with a hash behind it.
fn madelson(name: &str) -> String {
    let lower = name.to_lowercase();
    if !name.is_empty() && name == lower && name.encode_utf16().count() <= LONGEST {
        return lower;
    }
    let hash = base32(&Sha512::digest(name), LONGEST / 2);
    lower
        .chars()
        .take(LONGEST / 2)
        .chain(hash.chars())
        .collect()
}

/// So many digits of 5 bits, the least significant bits of each byte first.
fn base32(bytes: &[u8], digits: usize) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |at: usize| {
        let byte = bytes.get(at / 8).copied().unwrap_or_default();
        usize::from(byte >> (at % 8) & 1)
    };
    let digit = |at: usize| {
        (0..5)
            .map(|place| bit(5 * at + place) << place)
            .sum::<usize>()
    };
    (0..digits)
        .map(|at| char::from(DIGITS[digit(at) % DIGITS.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_is_itself() {
        for (name, expected) in [("orders", "orders"), ("a b", "a%20b"), ("A", "A")] {
            assert_eq!(Keys::Mapped.key(name).expect("a key"), expected);
        }
        assert!(Keys::Mapped.key(&"x".repeat(500)).expect("a key").len() <= LONGEST);
        assert_eq!(Keys::Exact.key("a b").expect("a key"), "a b");
        assert!(Keys::Exact.key(&"x".repeat(65)).is_err());
    }

    #[test]
    fn keys_are_those_of_madelson() {
        for (name, expected) in [
            ("orders/settlement", "orders/settlement"),
            ("MyLock", "mylock6isuyjwnkexb4ujf4m7j37hstmoxe3vx"),
        ] {
            assert_eq!(Keys::Madelson.key(name).expect("a key"), expected);
        }
    }

    #[test]
    fn words_are_checked() {
        assert_eq!(Keys::read(None, false).expect("known"), Keys::Mapped);
        assert_eq!(Keys::read(None, true).expect("known"), Keys::Exact);
        assert!(Keys::read(Some("sqlx"), false).is_err());
        assert!(Keys::read(Some("madelson"), true).is_err());
    }
}
