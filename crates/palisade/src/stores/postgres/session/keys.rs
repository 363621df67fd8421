//! Keys of advisory locks: the number of a name, in the ways of the programs that share it.

use std::fmt;

use hkdf::Hkdf;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The key of an advisory lock. The two forms never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Whole(i64),
    Pair(i32, i32),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Whole(key) => write!(f, "{key}"),
            Key::Pair(high, low) => write!(f, "{high},{low}"),
        }
    }
}

/// How a name becomes a key: `keys=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// The first 8 bytes of its SHA-256.
    Sha256,
    /// As sqlx's `PgAdvisoryLock::new`.
    Sqlx,
    /// As `PostgresAdvisoryLockKey` of madelson/DistributedLock, with hashing allowed.
    Madelson,
    /// The name is the number.
    Number,
}

impl Keys {
    pub(super) fn read(word: Option<&str>) -> Result<Keys> {
        match word {
            None | Some("sha256") => Ok(Keys::Sha256),
            Some("sqlx") => Ok(Keys::Sqlx),
            Some("madelson") => Ok(Keys::Madelson),
            Some("number") => Ok(Keys::Number),
            Some(_) => Err(Error::bad_url(
                "bad store URL: keys= is sha256, sqlx, madelson or number",
            )),
        }
    }

    pub(super) fn key(self, name: &str) -> Result<Key> {
        Ok(match self {
            Keys::Sha256 => Key::Whole(i64::from_be_bytes(first_eight(&Sha256::digest(name)))),
            Keys::Sqlx => Key::Whole(sqlx(name)),
            Keys::Madelson => madelson(name),
            Keys::Number => number(name).ok_or_else(|| {
                Error::config(
                    "with keys=number a name is the key itself: one whole number of 64 bits, or \
                     two of 32 bits with a comma between; leave keys= out for other names",
                )
            })?,
        })
    }
}

fn first_eight(bytes: &[u8]) -> [u8; 8] {
    let mut first = [0; 8];
    first
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    first
}

fn sqlx(name: &str) -> i64 {
    let mut key = [0; 8];
    let derived = Hkdf::<Sha256>::new(None, name.as_bytes());
    // Eight bytes are not too many for it.
    let _ = derived.expand(b"SQLx (Rust) Postgres advisory lock", &mut key);
    i64::from_le_bytes(key)
}

fn madelson(name: &str) -> Key {
    let by_form = short_text(name).or_else(|| hex_number(name));
    by_form.unwrap_or_else(|| Key::Whole(i64::from_le_bytes(first_eight(&Sha1::digest(name)))))
}

/// Up to 9 letters of 7 bits, then a 0, then nothing but 1s.
fn short_text(name: &str) -> Option<Key> {
    if name.len() > 9 || !name.is_ascii() {
        return None;
    }
    let letters = name.bytes();
    let bits = letters.fold(0_u64, |bits, letter| bits << 7 | u64::from(letter));
    let rest = 64 - 7 * name.len();
    // Without letters nothing is left to shift out.
    let shifted = bits.checked_shl(u32::try_from(rest).ok()?).unwrap_or(0);
    let filled = shifted | ((1 << (rest - 1)) - 1);
    Some(pair(filled))
}

fn hex_number(name: &str) -> Option<Key> {
    let hex = |text: &str, length: usize| {
        let is_hex = text.len() == length && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u64::from_str_radix(text, 16).ok())?
    };
    if let Some((high, low)) = name.split_once(',') {
        return Some(pair(hex(high, 8)? << 32 | hex(low, 8)?));
    }
    hex(name, 16).map(|key| Key::Whole(key.cast_signed()))
}

fn pair(bits: u64) -> Key {
    let [a, b, c, d, e, f, g, h] = bits.to_be_bytes();
    Key::Pair(
        i32::from_be_bytes([a, b, c, d]),
        i32::from_be_bytes([e, f, g, h]),
    )
}

fn number(name: &str) -> Option<Key> {
    match name.split_once(',') {
        None => name.parse().ok().map(Key::Whole),
        Some((high, low)) => Some(Key::Pair(high.parse().ok()?, low.trim().parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(keys: Keys, name: &str) -> Key {
        keys.key(name).expect("a key")
    }

    /// SQL: `('x' || left(encode(sha256('abc'), 'hex'), 16))::bit(64)::bigint`.
    #[test]
    fn a_name_is_hashed() {
        assert_eq!(
            key(Keys::Sha256, "abc"),
            Key::Whole(-5_010_229_573_455_851_542)
        );
        assert_eq!(Keys::read(None).expect("known"), Keys::Sha256);
        assert!(Keys::read(Some("crc32")).is_err());
    }

    #[test]
    fn keys_are_those_of_sqlx() {
        for (name, expected) in [
            ("", 8_559_922_135_585_776_354),
            ("my-lock", -7_577_905_956_304_869_515),
            ("orders/settlement", -5_874_930_259_815_841_942),
        ] {
            assert_eq!(key(Keys::Sqlx, name), Key::Whole(expected), "{name}");
        }
    }

    #[test]
    fn keys_are_those_of_madelson() {
        for (name, expected) in [
            ("lock1", Key::Pair(-641_786_186, 805_306_367)),
            ("orders/settlement", Key::Whole(-2_344_666_533_123_101_062)),
            ("00000000000000ff", Key::Whole(255)),
            ("ffffffffffffffff", Key::Whole(-1)),
            ("00000001,ffffffff", Key::Pair(1, -1)),
        ] {
            assert_eq!(key(Keys::Madelson, name), expected, "{name}");
        }
        let nine = key(Keys::Madelson, "123456789");
        assert!(
            matches!(nine, Key::Pair(_, low) if low & 1 == 0),
            "{nine:?}"
        );
        let not_ascii = key(Keys::Madelson, "ü");
        assert!(matches!(not_ascii, Key::Whole(_)), "{not_ascii:?}");
    }

    #[test]
    fn a_number_is_itself() {
        assert_eq!(key(Keys::Number, "-42"), Key::Whole(-42));
        assert_eq!(key(Keys::Number, "1,-2"), Key::Pair(1, -2));
        for bad in [
            "",
            "a",
            "1,",
            "1,2,3",
            "9223372036854775808",
            "2147483648,1",
        ] {
            assert!(Keys::Number.key(bad).is_err(), "{bad}");
        }
    }
}
