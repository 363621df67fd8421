//! Names, and how a store writes them.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The name of a lock: any UTF-8 string of 1–512 bytes. Cheap to clone.
///
/// `Display` writes the name as it was given, control characters included; a log or a terminal
/// wants `Debug`, which escapes them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// The name that a ping looks at. Nothing is ever locked by it.
    #[cfg(any(
        feature = "redis",
        feature = "etcd",
        feature = "zookeeper",
        feature = "postgres",
        feature = "mysql"
    ))]
    pub(crate) fn of_ping() -> Name {
        Name("palisade-ping".into())
    }

    /// The longest name, in bytes.
    pub const LONGEST: usize = 512;

    /// The smallest limit that [`mapped`](Name::mapped) can keep: 20 characters, `~` and 32 hex
    /// digits.
    pub const SMALLEST_LIMIT: usize = HEAD + 1 + HASH;

    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when it is empty or longer than 512 bytes.
    pub fn new(name: impl AsRef<str>) -> Result<Name> {
        let name = name.as_ref();
        match name.len() {
            0 => Err(Error::config("the name is empty; give 1 to 512 bytes")),
            1..=Self::LONGEST => Ok(Name(name.into())),
            long => Err(Error::config(format!(
                "the name has {long} bytes; give 1 to 512"
            ))),
        }
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a store writes it: at most `limit` characters out of `[A-Za-z0-9_.%~-]`, and
    /// never that of another name.
    ///
    /// - A plain name, `[A-Za-z0-9_-][A-Za-z0-9_.-]{0,59}`, stays as it is, so that programs in
    ///   other languages find it.
    /// - In any other name each byte outside of that alphabet becomes `%xx`, and so does a dot at
    ///   the beginning. Length alone escapes nothing: 61 plain characters stay as they are where
    ///   the limit allows.
    /// - A result longer than `limit` becomes its first 20 characters, `~`, and 32 hex digits of
    ///   the SHA-256 of the name. A `%xx` that would be cut by the 20th character is left out, so
    ///   that 18 or 19 characters remain. A bare `~` is in no other mapping, and the hash is that
    ///   of the whole name, so two names never meet.
    ///
    /// Upper and lower case stay apart. A store that folds case must not compare mapped names by
    /// itself.
    ///
    /// A `limit` below [`SMALLEST_LIMIT`](Name::SMALLEST_LIMIT) is a mistake in the store; a
    /// release build takes the smallest instead. Below 60 the limit wins over the first rule: a
    /// longer plain name is hashed.
    ///
    /// ```
    /// # fn main() -> palisade::Result<()> {
    /// use palisade::Name;
    /// let mapped = |name: &str| Name::new(name).map(|name| name.mapped(64));
    ///
    /// assert_eq!(mapped("mixed")?, "mixed");
    /// assert_eq!(mapped("Mixed")?, "Mixed");
    /// assert_eq!(mapped("-v1.2_x")?, "-v1.2_x");
    /// assert_eq!(mapped("a/b")?, "a%2fb");
    /// assert_eq!(mapped("{user}:1*")?, "%7buser%7d%3a1%2a");
    /// assert_eq!(mapped("größe")?, "gr%c3%b6%c3%9fe");
    /// assert_eq!(mapped("🔒")?, "%f0%9f%94%92");
    /// assert_eq!(mapped(".")?, "%2e");
    /// assert_eq!(mapped("..")?, "%2e.");
    /// assert_eq!(mapped(".a.b")?, "%2ea.b");
    /// assert_eq!(mapped("a..")?, "a..");
    /// assert_eq!(mapped("100%")?, "100%25");
    /// assert_eq!(mapped("a%2fb")?, "a%252fb");
    /// assert_eq!(mapped("a~b")?, "a%7eb");
    /// assert_eq!(mapped(" a b ")?, "%20a%20b%20");
    /// assert_eq!(mapped("a\0b")?, "a%00b");
    /// assert_eq!(mapped("a\nb")?, "a%0ab");
    ///
    /// let long = |count: usize| "x".repeat(count);
    /// assert_eq!(mapped(&long(60))?, long(60));
    /// assert_eq!(mapped(&long(61))?, long(61));
    /// assert_eq!(mapped(&long(64))?, long(64));
    /// assert_eq!(mapped(&long(65))?, "xxxxxxxxxxxxxxxxxxxx~9537c5fdf120482f7d58d25e9ed583f5");
    /// assert_eq!(mapped(&long(512))?, "xxxxxxxxxxxxxxxxxxxx~64164443bb63e338ef1cfdb12a57117c");
    /// // A whole %2f ends at the 20th character; one that would end at the 21st or 22nd is left out.
    /// assert_eq!(mapped(&(long(17) + "/" + &long(60)))?, "xxxxxxxxxxxxxxxxx%2f~3e181bb8c80bbc91aca6944c593f600e");
    /// assert_eq!(mapped(&(long(18) + "/" + &long(60)))?, "xxxxxxxxxxxxxxxxxx~794786bfb04e944b70926d3190aad975");
    /// assert_eq!(mapped(&(long(19) + "/" + &long(60)))?, "xxxxxxxxxxxxxxxxxxx~df12af756e5c04207a0ddbdcb2a2202b");
    /// # Ok(())
    /// # }
    /// ```
    pub fn mapped(&self, limit: usize) -> String {
        debug_assert!(
            limit >= Self::SMALLEST_LIMIT,
            "no store has names shorter than {}",
            Self::SMALLEST_LIMIT
        );
        let escaped = self.escaped();
        if escaped.len() <= limit.max(Self::SMALLEST_LIMIT) {
            escaped
        } else {
            self.hashed(&escaped)
        }
    }

    /// Reads back what [`mapped`](Name::mapped) wrote.
    ///
    /// `None` for a hashed name, which cannot be read back, and for everything that `mapped` never
    /// writes: a peer's key, another spelling.
    ///
    /// ```
    /// use palisade::Name;
    /// assert_eq!(Name::unmapped("a%2fb"), Name::new("a/b").ok());
    /// assert_eq!(Name::unmapped("a%2Fb"), None);
    /// assert_eq!(Name::unmapped("a/b"), None);
    /// ```
    pub fn unmapped(mapped: &str) -> Option<Name> {
        let name = Name::new(percent_decode_str(mapped).decode_utf8().ok()?).ok()?;
        // Many spellings decode to one name; only the one that we write is ours.
        (name.escaped() == mapped).then_some(name)
    }

    /// Whether it is mapped to itself, whatever the limit.
    #[cfg(feature = "redis")]
    pub(crate) fn is_plain(&self) -> bool {
        let is_plain =
            |byte: u8| matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.');
        self.0.len() <= Self::SMALLEST_LIMIT
            && !self.0.starts_with('.')
            && self.0.bytes().all(is_plain)
    }

    fn escaped(&self) -> String {
        // Enough for a few that are escaped.
        let mut escaped = String::with_capacity(self.0.len() + 16);
        for (place, byte) in self.0.bytes().enumerate() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => escaped.push(byte.into()),
                b'.' if place > 0 => escaped.push('.'),
                _ => {
                    escaped.push('%');
                    push_hex(&mut escaped, byte);
                }
            }
        }
        escaped
    }

    fn hashed(&self, escaped: &str) -> String {
        let mut hashed = head(escaped).to_owned();
        hashed.push('~');
        for byte in Sha256::digest(self.0.as_bytes()).iter().take(HASH / 2) {
            push_hex(&mut hashed, *byte);
        }
        hashed
    }
}

/// How many characters of a hashed name people can still read.
const HEAD: usize = 20;
/// How many hex digits of the hash are written: 128 bits, so that two names with one mapping cannot
/// be found.
const HASH: usize = 32;

fn push_hex(text: &mut String, byte: u8) {
    text.extend(hex(byte).map(char::from));
}

/// A byte as two hex digits.
pub(crate) fn hex(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|digit| {
        if digit < 10 {
            b'0' + digit
        } else {
            b'a' + digit - 10
        }
    })
}

/// The first characters of an escaped name, without a `%xx` cut in two.
fn head(escaped: &str) -> &str {
    let cut = (HEAD - 2..HEAD)
        .find(|&place| escaped.as_bytes().get(place) == Some(&b'%'))
        .unwrap_or(HEAD);
    escaped.get(..cut).unwrap_or(escaped)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Maps keyed by name can be asked with a `&str`: `Name` hashes and compares as its text does.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&Name> for Name {
    fn from(name: &Name) -> Name {
        name.clone()
    }
}

impl From<&Name> for String {
    fn from(name: &Name) -> String {
        name.as_str().to_owned()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        String::from(&name)
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(name: &str) -> Result<Name> {
        Name::new(name)
    }
}

impl TryFrom<&str> for Name {
    type Error = Error;

    fn try_from(name: &str) -> Result<Name> {
        Name::new(name)
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(name: String) -> Result<Name> {
        Name::new(name)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        Name::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Names that lie close together: what the mapping writes itself, and what it must escape.
    fn names() -> impl Strategy<Value = Name> {
        let close = "[a%~./25fe2]{1,8}";
        let long = "[ax./%~]{40,100}";
        let any = proptest::collection::vec(any::<char>(), 1..100).prop_map(String::from_iter);
        prop_oneof![close.boxed(), long.boxed(), any.boxed()]
            .prop_map(|name| Name::new(name).unwrap())
    }

    /// A name and a neighbour of it, which differ seldom and little.
    fn pairs() -> impl Strategy<Value = (Name, Name)> {
        let edited =
            (names(), any::<prop::sample::Index>(), "[%~./a]?").prop_map(|(name, place, new)| {
                let mut chars: Vec<char> = name.as_str().chars().collect();
                let place = place.index(chars.len());
                chars.splice(place..=place, new.chars());
                let neighbour =
                    Name::new(String::from_iter(chars)).unwrap_or_else(|_| name.clone());
                (name, neighbour)
            });
        // A name that looks like a mapping of itself or another: the reader of a mapping must not
        // mistake it for one.
        let nested = (names(), 53..100_usize)
            .prop_map(|(name, limit)| (Name::new(name.mapped(limit)).unwrap(), name));
        prop_oneof![(names(), names()), edited, nested]
    }

    fn in_alphabet(mapped: &str) -> bool {
        mapped
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.%~-".contains(&byte))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn two_names_never_meet((one, other) in pairs(), limit in 53..200_usize) {
            prop_assert_eq!(one == other, one.mapped(limit) == other.mapped(limit));
        }

        #[test]
        fn the_mapping_keeps_its_alphabet_and_limit(name in names(), limit in 53..200_usize) {
            let mapped = name.mapped(limit);
            prop_assert!(in_alphabet(&mapped), "{mapped}");
            prop_assert!(!mapped.starts_with('.'), "{mapped}");
            prop_assert!(mapped.len() <= limit, "{mapped}");
        }

        #[cfg(feature = "redis")]
        #[test]
        fn a_plain_name_is_its_own_mapping(name in prop_oneof![names(), "[a-zA-Z0-9_.-]{1,60}".prop_map(|name| Name::new(name).unwrap())]) {
            let is_its_own = name.as_str().len() <= Name::SMALLEST_LIMIT && name.mapped(Name::SMALLEST_LIMIT) == name.as_str();
            prop_assert_eq!(name.is_plain(), is_its_own);
        }

        #[test]
        fn a_mapping_is_read_back_unless_hashed(name in names(), limit in 53..200_usize) {
            let mapped = name.mapped(limit);
            let read = Name::unmapped(&mapped);
            prop_assert_eq!(read, (!mapped.contains('~')).then_some(name));
        }

        #[test]
        fn what_is_read_back_is_what_we_wrote(text in prop_oneof!["[a%~./25fe2E]{0,9}", any::<String>()]) {
            if let Some(name) = Name::unmapped(&text) {
                prop_assert_eq!(name.mapped(usize::MAX), text);
            }
        }

        #[test]
        fn plain_names_stay(name in "[A-Za-z0-9_-][A-Za-z0-9_.-]{0,59}") {
            prop_assert_eq!(Name::new(&name).unwrap().mapped(60), name);
        }

        #[test]
        fn a_hash_never_follows_half_an_escape(name in "[a/]{60,99}") {
            let mapped = Name::new(name).unwrap().mapped(53);
            let head = mapped.split('~').next().unwrap();
            prop_assert!((18..=20).contains(&head.len()) && Name::unmapped(head).is_some(), "{mapped}");
        }
    }

    #[test]
    fn foreign_keys_are_not_read_back() {
        let foreign = [
            "", ".", "..", ".a", "a/b", "a~b", "%61", "%2F", "%2", "%", "%zz", "%ff", "a b", "ä",
            "%c3",
        ];
        for text in foreign
            .map(String::from)
            .into_iter()
            .chain(["x".repeat(513), "%00".repeat(513)])
        {
            assert_eq!(Name::unmapped(&text), None, "{text}");
        }
        assert!(Name::unmapped(&"%00".repeat(512)).is_some());
    }

    /// A store's mistake is found by its tests, and does not stop its users.
    #[test]
    #[cfg_attr(
        debug_assertions,
        should_panic(expected = "no store has names shorter than 53")
    )]
    fn a_limit_that_cannot_be_kept_is_the_smallest_one_in_a_release() {
        assert_eq!(Name::new("x".repeat(53)).unwrap().mapped(9), "x".repeat(53));
    }

    #[test]
    fn serde_checks_the_length() {
        let name: Name = serde_json::from_str(r#""a/\u0000b""#).unwrap();
        assert_eq!(name.as_str(), "a/\0b");
        assert_eq!(serde_json::to_string(&name).unwrap(), r#""a/\u0000b""#);
        assert!(serde_json::from_str::<Name>(r#""""#).is_err());
        assert!(serde_json::from_value::<Name>("x".repeat(513).into()).is_err());
    }

    #[test]
    fn a_map_of_names_is_asked_with_text() {
        let map = HashMap::from([(Name::new("a/b").unwrap(), 1)]);
        assert_eq!(map.get("a/b"), Some(&1));
    }
}
