//! The identity of one claim.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use crate::error::{Error, Result};
use crate::name::hex;

/// 128 random bits that identify one claim. A secret: a client that knows it can end the claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(u128);

impl ClaimId {
    /// A new id from the operating system's random numbers.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the system has none to give.
    pub fn random() -> Result<ClaimId> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|cause| {
            Error::unavailable("the operating system gives no random numbers").with_source(cause)
        })?;
        // Not buffered: buffered numbers would be the same in a machine that is cloned while it
        // runs.
        Ok(ClaimId(u128::from_be_bytes(bytes)))
    }

    /// The id with these bits, as read back from a store.
    pub const fn from_bits(bits: u128) -> ClaimId {
        ClaimId(bits)
    }

    /// The bits, as a store writes them.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// The id as 32 hex digits. A secret.
    pub fn reveal(self) -> String {
        let mut text = String::with_capacity(32);
        self.write(&mut text);
        text
    }

    /// Writes what [`reveal`](ClaimId::reveal) shows.
    pub(crate) fn write(self, text: &mut String) {
        text.push_str(str::from_utf8(&self.digits()).unwrap_or_default());
    }

    /// The text of [`reveal`](ClaimId::reveal).
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        digits
            .chunks_exact_mut(2)
            .zip(self.0.to_be_bytes())
            .for_each(|(digits, byte)| digits.copy_from_slice(&hex(byte)));
        digits
    }

    /// Reads what [`reveal`](ClaimId::reveal) wrote.
    pub fn parse(text: &str) -> Option<ClaimId> {
        let hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| u128::from_str_radix(text, 16).ok())
            .flatten()
            .map(ClaimId)
    }
}

/// A map with an entry for each claim.
pub(crate) type ByClaim<T> = HashMap<ClaimId, T, BuildHasherDefault<OfRandom>>;

/// A hash for keys that are random already. Ids chosen on purpose, and adopted, could only slow
/// their own client.
#[derive(Default)]
pub(crate) struct OfRandom(u64);

impl Hasher for OfRandom {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, bits: u128) {
        self.0 ^= (bits >> 64) as u64 ^ bits as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Six digits are enough to tell two claims apart in a log, and too few to end one.
impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}…", self.0 >> 104)
    }
}
