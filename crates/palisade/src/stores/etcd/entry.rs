//! One key of a line, and what its value says.
//!
//! Our values are words: `palisade:1:kind=rwlock&mode=shared&owner=alice`. Any other value, empty
//! in Go's and etcdctl's locks, is an exclusive claim. The value of an election's candidate is what
//! it proclaims, with our candidates, too.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::client::proto::{KeyValue, TxnResponse};
use super::client::txn;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{Claim, ClaimId, Holder, Kind, Leader, Mode, Waiter};

/// The beginning of all our values, before the version of the format.
const MARK: &str = "palisade:";
const VERSION: &str = "palisade:1:";

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A claim, waiting or holding.
    Claim,
    /// The rest of a minimum hold: its holder is gone.
    Closed,
    /// The name is sealed: its work is done once and for all.
    Sealed,
}

impl Purpose {
    fn word(self) -> &'static str {
        match self {
            Purpose::Claim => "claim",
            Purpose::Closed => "closed",
            Purpose::Sealed => "sealed",
        }
    }
}

/// One key of a line.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    /// The create revision of the key: its place in line, and its fence.
    pub(super) revision: i64,
    pub(super) lease: i64,
    pub(super) purpose: Purpose,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    owner: String,
    reason: Option<String>,
    /// The value as it is, unless it consists of our words.
    value: Option<String>,
}

/// The value of a claim's key.
pub(super) fn value(claim: &Claim) -> Vec<u8> {
    match &claim.value {
        Some(value) => value.as_bytes().to_vec(),
        None => in_words(claim),
    }
}

/// Whether a candidate may proclaim this value: it must not look like words of ours.
pub(super) fn check_value(value: &str) -> Result<()> {
    if value.starts_with(MARK) {
        return Err(Error::config(format!(
            "a value that begins with {MARK} would be taken for a lock of ours; begin it otherwise"
        )));
    }
    Ok(())
}

fn in_words(claim: &Claim) -> Vec<u8> {
    written(
        Purpose::Claim,
        claim.kind,
        claim.mode,
        &claim.owner,
        claim.reason.as_deref(),
    )
}

fn written(purpose: Purpose, kind: Kind, mode: Mode, owner: &str, reason: Option<&str>) -> Vec<u8> {
    let mut text = format!("{VERSION}purpose={}", purpose.word());
    let mut add = |word: &str, value: &str| {
        text.push('&');
        text.push_str(word);
        text.push('=');
        text.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
    };
    match kind {
        Kind::Mutex => add("kind", "mutex"),
        Kind::RwLock => add("kind", "rwlock"),
        Kind::Semaphore { limit } => {
            add("kind", "semaphore");
            add("limit", &limit.to_string());
        }
    }
    match mode {
        Mode::Exclusive => add("mode", "exclusive"),
        Mode::Shared => add("mode", "shared"),
        Mode::Permits(count) => add("permits", &count.to_string()),
    }
    add("owner", owner);
    if let Some(reason) = reason {
        add("reason", reason);
    }
    text.into_bytes()
}

impl Entry {
    /// Reads a key.
    ///
    /// # Errors
    ///
    /// [`Protocol`](crate::ErrorKind::Protocol) when it was written by a newer version of this
    /// program.
    pub(super) fn read(kv: KeyValue) -> Result<Entry> {
        let mut entry = Entry {
            owner: stranger(&kv.key),
            key: kv.key,
            revision: kv.create_revision,
            lease: kv.lease,
            purpose: Purpose::Claim,
            kind: Kind::Mutex,
            mode: Mode::Exclusive,
            reason: None,
            value: None,
        };
        let Some(text) = std::str::from_utf8(&kv.value)
            .ok()
            .filter(|text| text.starts_with(MARK))
        else {
            let value = String::from_utf8_lossy(&kv.value).into_owned();
            if !value.is_empty() {
                entry.owner.clone_from(&value);
            }
            entry.value = Some(value);
            return Ok(entry);
        };
        let unreadable = || {
            Error::protocol(
                "a key of this lock was written by a newer version of palisade; upgrade this one",
            )
        };
        let words = text.strip_prefix(VERSION).ok_or_else(unreadable)?;
        let (mut limit, mut permits) = (0, None);
        for (word, value) in words.split('&').filter_map(|word| word.split_once('=')) {
            let value = percent_decode_str(value).decode_utf8_lossy();
            match (word, &*value) {
                ("purpose", "closed") => entry.purpose = Purpose::Closed,
                ("purpose", "sealed") => entry.purpose = Purpose::Sealed,
                ("kind", "rwlock") => entry.kind = Kind::RwLock,
                ("kind", "semaphore") => entry.kind = Kind::Semaphore { limit: 0 },
                ("limit", number) => limit = number.parse().map_err(|_| unreadable())?,
                ("mode", "shared") => entry.mode = Mode::Shared,
                ("permits", number) => permits = Some(number.parse().map_err(|_| unreadable())?),
                ("owner", owner) => entry.owner = owner.to_owned(),
                ("reason", reason) => entry.reason = Some(reason.to_owned()),
                _ => {}
            }
        }
        if let Kind::Semaphore { .. } = entry.kind {
            entry.kind = Kind::Semaphore { limit };
            entry.mode = Mode::Permits(permits.ok_or_else(unreadable)?);
        }
        Ok(entry)
    }

    /// Reads keys, in the order of their line.
    pub(super) fn read_all(kvs: Vec<KeyValue>) -> Result<Vec<Entry>> {
        let mut entries = kvs
            .into_iter()
            .map(Entry::read)
            .collect::<Result<Vec<Entry>>>()?;
        entries.sort_by(|one, other| (one.revision, &one.key).cmp(&(other.revision, &other.key)));
        entries.dedup_by(|one, other| one.key == other.key);
        Ok(entries)
    }

    pub(super) fn fence(&self) -> Fence {
        fence_of(self.revision)
    }

    /// Its value as the leader of an election.
    pub(super) fn leader(&self) -> Leader {
        Leader {
            value: self.value.as_ref().unwrap_or(&self.owner).clone(),
            fence: self.fence(),
        }
    }

    /// The same key with another value.
    pub(super) fn rewritten(&self, purpose: Purpose, mode: Mode) -> Vec<u8> {
        let kind = if mode == Mode::Shared {
            Kind::RwLock
        } else {
            self.kind
        };
        written(purpose, kind, mode, &self.owner, self.reason.as_deref())
    }

    pub(super) fn holder(&self) -> Holder {
        Holder {
            owner: self.owner.clone(),
            reason: self.reason.clone(),
            fence: self.fence(),
            mode: self.mode,
            held: None,
            lease_left: None,
        }
    }

    pub(super) fn waiter(&self) -> Waiter {
        Waiter {
            owner: self.owner.clone(),
            reason: self.reason.clone(),
            mode: self.mode,
            waited: None,
        }
    }
}

/// The fence of a key that was created at this revision.
pub(super) fn fence_of(revision: i64) -> Fence {
    u64::try_from(revision)
        .ok()
        .and_then(Fence::new)
        .unwrap_or(Fence::NONE)
}

/// Keys of a line, in their order, as they were at one revision.
pub(super) struct Snapshot {
    pub(super) entries: Vec<Entry>,
    pub(super) revision: i64,
}

impl Snapshot {
    /// All keys that a transaction read.
    pub(super) fn of(response: TxnResponse) -> Result<Snapshot> {
        let revision = txn::revision_of(&response);
        Ok(Snapshot {
            entries: Entry::read_all(txn::keys_of(response))?,
            revision,
        })
    }

    pub(super) fn first(&self) -> Option<&Entry> {
        self.entries.first()
    }

    /// The index of a key.
    pub(super) fn position(&self, key: &[u8]) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key == key)
    }

    /// The holder, where the first entry is a claim.
    pub(super) fn holder(&self) -> Option<Holder> {
        self.first()
            .filter(|first| first.purpose == Purpose::Claim)
            .map(Entry::holder)
    }
}

/// The owner of a key without one: the end of the key. That is a peer's lease, or a claim of ours,
/// which is a secret.
fn stranger(key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    let end = key.rsplit('/').next().unwrap_or_default();
    match ClaimId::parse(end) {
        Some(claim) => format!("claim {claim:?}"),
        None => format!("lease {end}"),
    }
}
