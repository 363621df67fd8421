//! The names of nodes, their order, and which of them hold, as pure functions of a node's children.
//!
//! A holder goes on holding whatever is added behind it, and a node that leaves only helps. So what
//! one look at the children has seen stays true, until a holder itself leaves.
//!
//! These rules are not part of the session kit: they follow the recipes of Curator and kazoo to the
//! letter, with their oddities, and permits are no part of a line here.

use sha2::{Digest, Sha256};

use crate::store::ClaimId;

/// One kind of line, as a peer's recipe keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Recipe {
    /// Curator's `InterProcessMutex`, and the line before the permits of `InterProcessSemaphoreV2`.
    Mutex,
    /// The two sides of Curator's `InterProcessReadWriteLock`.
    Read,
    Write,
    /// kazoo's `Lock`, `ReadLock` and `WriteLock`.
    KazooLock,
    KazooRead,
    KazooWrite,
}

const LOCK: &str = "lock-";
const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";
const KAZOO_LOCK: &str = "__lock__";
const KAZOO_READ: &str = "__rlock__";
/// In the names of a semaphore's permits.
pub(super) const LEASE: &str = "lease-";

/// Where one node stands among its siblings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Held,
    /// It must wait until this sibling is gone.
    Blocked {
        by: String,
        /// The first of those that block it.
        first: String,
    },
    /// It is not there.
    Missing,
}

/// The mark by which a node is known to be a claim's, a UUID of the usual kind. No secret, unlike
/// the claim's own id.
pub(super) fn guid(claim: ClaimId) -> String {
    let digest: [u8; 32] = Sha256::new_with_prefix(b"palisade node ")
        .chain_update(claim.bits().to_be_bytes())
        .finalize()
        .into();
    let mut bits = digest
        .iter()
        .take(16)
        .fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
    bits = bits & !(0xf << 76) | 4 << 76;
    bits = bits & !(0b11 << 62) | 0b10 << 62;
    let mut guid = String::with_capacity(36);
    for at in (0..32).rev() {
        let digit = u32::try_from(bits >> (4 * at) & 0xf).unwrap_or_default();
        guid.extend(char::from_digit(digit, 16));
        if let 12 | 16 | 20 | 24 = at {
            guid.push('-');
        }
    }
    guid
}

/// Hides a text that only the owner of a claim may read, or shows it again.
pub(super) fn mask(claim: ClaimId, bytes: &[u8]) -> Vec<u8> {
    let pad: [u8; 32] =
        Sha256::digest([b"palisade session ".as_slice(), &claim.bits().to_be_bytes()].concat())
            .into();
    bytes
        .iter()
        .zip(pad)
        .map(|(byte, pad)| byte ^ pad)
        .collect()
}

/// The beginning of the name of a permit of this claim.
pub(super) fn lease_prefix(guid: &str) -> String {
    format!("_c_{guid}-{LEASE}")
}

impl Recipe {
    /// The beginning of the name of a claim's node. The server appends its number.
    pub(super) fn prefix(self, guid: &str) -> String {
        match self {
            Recipe::Mutex => ["_c_", guid, "-", LOCK].concat(),
            Recipe::Read => ["_c_", guid, "-", READ].concat(),
            Recipe::Write => ["_c_", guid, "-", WRITE].concat(),
            Recipe::KazooLock | Recipe::KazooWrite => {
                format!("{}{KAZOO_LOCK}", guid.replace('-', ""))
            }
            Recipe::KazooRead => format!("{}{KAZOO_READ}", guid.replace('-', "")),
        }
    }

    /// Whether a child belongs to this kind of line. The two sides of one lock do.
    pub(super) fn is_kin(self, child: &str) -> bool {
        match self {
            Recipe::Mutex => child.contains(LOCK),
            Recipe::Read | Recipe::Write => child.contains(READ) || child.contains(WRITE),
            Recipe::KazooLock | Recipe::KazooRead | Recipe::KazooWrite => kazoo(child).is_some(),
        }
    }

    /// Whether a child is the shared side of its lock.
    pub(super) fn is_shared(self, child: &str) -> bool {
        match self {
            Recipe::Mutex => false,
            Recipe::Read | Recipe::Write => child.contains(READ),
            Recipe::KazooLock | Recipe::KazooRead | Recipe::KazooWrite => {
                kazoo(child).is_some_and(|(shared, _)| shared)
            }
        }
    }

    /// By what siblings are compared. Curator takes what follows the last mark, and the whole name
    /// of a child without one.
    fn key(self, child: &str) -> &str {
        let after = |text, mark: &str| -> &str {
            let text: &str = text;
            text.rsplit_once(mark).map_or(text, |(_, after)| after)
        };
        match self {
            Recipe::Mutex => after(child, LOCK),
            Recipe::Read | Recipe::Write => after(after(child, READ), WRITE),
            Recipe::KazooLock | Recipe::KazooRead | Recipe::KazooWrite => {
                kazoo(child).map_or(child, |(_, number)| number)
            }
        }
    }

    /// The children in their order. Of two that compare alike, a writer that reads as well, the
    /// writer is first.
    pub(super) fn sorted(self, children: &[String]) -> Vec<&str> {
        let mut sorted: Vec<&str> = children.iter().map(String::as_str).collect();
        sorted.sort_by_key(|child| (self.key(child), self.is_shared(child)));
        sorted
    }

    /// Whether a sibling before it blocks a node of this kind.
    fn is_blocked_by(self, sibling: &str) -> bool {
        match self {
            // As Curator does: whatever it is.
            Recipe::Mutex | Recipe::Write => true,
            Recipe::Read => sibling.contains(WRITE),
            Recipe::KazooLock | Recipe::KazooRead => {
                kazoo(sibling).is_some_and(|(shared, _)| !shared)
            }
            Recipe::KazooWrite => kazoo(sibling).is_some(),
        }
    }

    /// Where a node stands.
    pub(super) fn verdict(self, children: &[String], own: &str) -> Verdict {
        let sorted = self.sorted(children);
        let Some(at) = sorted.iter().position(|child| *child == own) else {
            return Verdict::Missing;
        };
        let mut blockers = sorted
            .iter()
            .take(at)
            .filter(|sibling| self.is_blocked_by(sibling));
        match (blockers.next(), blockers.next_back()) {
            (None, _) => Verdict::Held,
            (Some(first), last) => Verdict::Blocked {
                by: (*last.unwrap_or(first)).to_owned(),
                first: (*first).to_owned(),
            },
        }
    }

    /// The nodes of this kind of line in their order, and how many of them hold.
    pub(super) fn line(self, children: &[String]) -> (Vec<&str>, usize) {
        let line: Vec<&str> = self
            .sorted(children)
            .into_iter()
            .filter(|child| self.is_kin(child))
            .collect();
        let writer_first = line.first().is_some_and(|first| !self.is_shared(first));
        let readers = line
            .iter()
            .take_while(|child| self.is_shared(child))
            .count();
        let held = if writer_first { 1 } else { readers };
        (line, held)
    }
}

/// Reads a child as kazoo does: whether it is a reader, and its number.
fn kazoo(child: &str) -> Option<(bool, &str)> {
    let digits = child.len().checked_sub(10)?;
    let (name, number) = child.split_at_checked(digits)?;
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Past 2147483647 the numbers are negative.
    let (name, number) = match name.strip_suffix('-') {
        Some(shorter) if is_marked(shorter) => (shorter, child.get(digits - 1..)?),
        _ => (name, number),
    };
    is_marked(name).then(|| (name.ends_with(KAZOO_READ), number))
}

fn is_marked(name: &str) -> bool {
    name.ends_with(KAZOO_LOCK) || name.ends_with(KAZOO_READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn blocked(by: &str, first: &str) -> Verdict {
        Verdict::Blocked {
            by: by.to_owned(),
            first: first.to_owned(),
        }
    }

    #[test]
    fn a_claim_has_one_name_for_ever() {
        let claim = ClaimId::from_bits(1);
        assert_eq!(guid(claim), "316392e0-b137-4d54-9f47-feda327bcefa");
        assert_eq!(Recipe::Mutex.prefix("g"), "_c_g-lock-");
        assert_eq!(Recipe::KazooRead.prefix("a-b"), "ab__rlock__");
        assert_eq!(
            mask(claim, &mask(claim, b"0123456789abcdef")),
            b"0123456789abcdef"
        );
        assert_ne!(mask(claim, b"0123456789abcdef"), b"0123456789abcdef");
    }

    /// By the number, and not by the random part before it; a child without the mark sorts by its
    /// whole name.
    #[test]
    fn curators_order() {
        let line = children(&[
            "_c_aaa-lock-0000000012",
            "_c_fff-lock-0000000003",
            "lock-0000000004",
            "locks",
            "_c_x-__WRIT__0000000001",
        ]);
        let order = [
            "_c_fff-lock-0000000003",
            "lock-0000000004",
            "_c_aaa-lock-0000000012",
            "_c_x-__WRIT__0000000001",
            "locks",
        ];
        assert_eq!(Recipe::Mutex.sorted(&line), order);
        assert_eq!(
            Recipe::Mutex.verdict(&line, "_c_fff-lock-0000000003"),
            Verdict::Held
        );
        let by_the_one_before = blocked("lock-0000000004", "_c_fff-lock-0000000003");
        assert_eq!(
            Recipe::Mutex.verdict(&line, "_c_aaa-lock-0000000012"),
            by_the_one_before
        );
        assert_eq!(
            Recipe::Mutex.verdict(&line, "_c_gone-lock-0000000001"),
            Verdict::Missing
        );
        assert_eq!(Recipe::Mutex.line(&line), (order[..3].to_vec(), 1));
        // As Curator does, we take it for a holder.
        let stray = children(&["000-readme", "_c_a-lock-0000000001"]);
        assert_eq!(
            Recipe::Mutex.verdict(&stray, "_c_a-lock-0000000001"),
            blocked("000-readme", "000-readme")
        );
    }

    #[test]
    fn readers_wait_for_writers_only() {
        let line = children(&[
            "_c_d-__READ__0000000003",
            "_c_a-__READ__0000000000",
            "_c_b-__WRIT__0000000001",
            "_c_c-__WRIT__0000000002",
        ]);
        assert_eq!(
            Recipe::Read.verdict(&line, "_c_a-__READ__0000000000"),
            Verdict::Held
        );
        assert_eq!(
            Recipe::Write.verdict(&line, "_c_b-__WRIT__0000000001"),
            blocked("_c_a-__READ__0000000000", "_c_a-__READ__0000000000")
        );
        // The last writer before it: the one whose end lets it in.
        assert_eq!(
            Recipe::Read.verdict(&line, "_c_d-__READ__0000000003"),
            blocked("_c_c-__WRIT__0000000002", "_c_b-__WRIT__0000000001")
        );
        assert_eq!(Recipe::Read.line(&line).1, 1);
        let together = children(&["_c_w-__READ__0000000007", "_c_w-__WRIT__0000000007"]);
        assert_eq!(
            Recipe::Write.verdict(&together, "_c_w-__WRIT__0000000007"),
            Verdict::Held,
            "a writer that reads as well"
        );
    }

    #[test]
    fn kazoo_sees_its_own_only() {
        let line = children(&[
            "_c_x-lock-0000000000",
            "aa__rlock__0000000001",
            "bb__lock__0000000002",
            "cc__lock__0000000003",
            "dd__lock__",
        ]);
        assert_eq!(
            Recipe::KazooLock.verdict(&line, "bb__lock__0000000002"),
            Verdict::Held,
            "a lock does not see readers"
        );
        let reader = "aa__rlock__0000000001";
        assert_eq!(
            Recipe::KazooWrite.verdict(&line, "bb__lock__0000000002"),
            blocked(reader, reader)
        );
        assert_eq!(
            Recipe::KazooLock.verdict(&line, "cc__lock__0000000003"),
            blocked("bb__lock__0000000002", "bb__lock__0000000002")
        );
        assert_eq!(
            Recipe::KazooRead.verdict(&line, "aa__rlock__0000000001"),
            Verdict::Held
        );
        assert_eq!(kazoo("ee__lock__-2147483648"), Some((false, "-2147483648")));
        assert_eq!(kazoo("ee__lock__123"), None);
    }
}
