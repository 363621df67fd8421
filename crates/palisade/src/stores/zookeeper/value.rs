//! The data of our nodes, which names the owner: `palisade:1:owner=alice&reason=nightly%20run`.
//! Peers do not read it, and a node with other data is a peer's.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::queue_rules;
use crate::error::{Error, Result};
use crate::store::{Claim, ClaimId, Kind};

/// Stands before the version of the format.
const MARK: &str = "palisade:";
const VERSION: &str = "palisade:1:";

/// The data of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) owner: String,
    pub(super) reason: Option<String>,
    /// The mark of the claim, where the node's name does not have it.
    pub(super) guid: Option<String>,
    /// The limit of the semaphore.
    pub(super) limit: Option<u32>,
    /// The hidden password of the session, where the grant may be carried elsewhere.
    pub(super) session: Option<Vec<u8>>,
}

/// The data of a claim's node. With a session's password where the claim has that session for
/// itself.
pub(super) fn of(claim: &Claim, password: Option<&[u8]>, guid: Option<&str>) -> Vec<u8> {
    let mut text = String::with_capacity(128);
    text.push_str(VERSION);
    let mut add = |word: &str, value: &str| {
        if text.len() > VERSION.len() {
            text.push('&');
        }
        text.push_str(word);
        text.push('=');
        text.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
    };
    add("owner", &claim.owner);
    if let Some(reason) = &claim.reason {
        add("reason", reason);
    }
    if let Some(guid) = guid {
        add("claim", guid);
    }
    if let Kind::Semaphore { limit } = claim.kind {
        add("limit", &limit.to_string());
    }
    if let Some(password) = password {
        let hidden = queue_rules::mask(claim.id, password);
        add(
            "session",
            &hidden
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>(),
        );
    }
    text.into_bytes()
}

/// The data of the node that has a semaphore's permits.
pub(super) fn of_limit(limit: u32) -> Vec<u8> {
    format!("{VERSION}limit={limit}").into_bytes()
}

impl Value {
    /// Reads a node. `node` names a peer's.
    ///
    /// # Errors
    ///
    /// [`Protocol`](crate::ErrorKind::Protocol) when it was written by a newer version of this
    /// program.
    pub(super) fn read(data: &[u8], node: &str) -> Result<Value> {
        let text = std::str::from_utf8(data).unwrap_or_default();
        if !text.starts_with(MARK) {
            return Ok(Value {
                owner: stranger(text, node),
                ..Value::default()
            });
        }
        let unreadable = || {
            Error::protocol(
                "a node of this lock was written by a newer version of palisade; upgrade this one",
            )
        };
        let words = text.strip_prefix(VERSION).ok_or_else(unreadable)?;
        let mut value = Value::default();
        for (word, text) in words.split('&').filter_map(|word| word.split_once('=')) {
            let text = percent_decode_str(text).decode_utf8_lossy().into_owned();
            match word {
                "owner" => value.owner = text,
                "reason" => value.reason = Some(text),
                "claim" => value.guid = Some(text),
                "limit" => value.limit = Some(text.parse().map_err(|_| unreadable())?),
                "session" => value.session = bytes(&text),
                _ => {}
            }
        }
        Ok(value)
    }

    /// The password of the session that the node hangs on, if this claim may know it.
    pub(super) fn password(&self, claim: ClaimId) -> Option<Vec<u8>> {
        self.session
            .as_deref()
            .map(|hidden| queue_rules::mask(claim, hidden))
    }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
        .collect()
}

/// The owner of a peer's node: the address, which Curator writes, or the node itself.
fn stranger(text: &str, node: &str) -> String {
    let shown = !text.is_empty() && text.len() <= 200 && !text.chars().any(char::is_control);
    if shown {
        text.to_owned()
    } else {
        format!("node {node}")
    }
}
