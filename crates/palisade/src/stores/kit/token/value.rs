//! The value of a lock, printable: `<claim>.<fence>.<owner>.<reason>`. Peers compare it as a whole.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::fence::Fence;
use crate::store::{Claim, Holder, Mode};

/// A token of ours, or a peer's.
pub(in crate::stores) enum Token {
    Ours {
        fence: Fence,
        owner: String,
        reason: Option<String>,
    },
    Peers,
}

impl Token {
    pub(in crate::stores) fn read(token: &[u8]) -> Token {
        let read = || {
            let mut parts = std::str::from_utf8(token).ok()?.splitn(3, '.');
            let (claim, fence, labels) = (parts.next()?, parts.next()?, parts.next()?);
            let ours = claim.len() == 32 && claim.bytes().all(|byte| byte.is_ascii_hexdigit());
            let (owner, reason) = read_labels(labels);
            ours.then_some(Token::Ours {
                fence: read_fence(fence.as_bytes())?,
                owner,
                reason,
            })
        };
        read().unwrap_or(Token::Peers)
    }

    /// The part of a token that tells its claim from others: a peer's token as a whole.
    #[cfg(feature = "redis")]
    pub(in crate::stores) fn claim_of(token: &[u8]) -> &[u8] {
        match Token::read(token) {
            Token::Ours { .. } => &token[..32],
            Token::Peers => token,
        }
    }

    pub(in crate::stores) fn fence(&self) -> Option<Fence> {
        match self {
            Token::Ours { fence, .. } => Some(*fence),
            Token::Peers => None,
        }
    }

    /// A peer's token is its secret: it is not shown.
    pub(in crate::stores) fn holder(&self, lease_left: Option<Duration>) -> Holder {
        let (owner, reason, fence) = match self {
            Token::Ours {
                fence,
                owner,
                reason,
            } => (owner.clone(), reason.clone(), *fence),
            Token::Peers => ("another program".to_owned(), None, Fence::NONE),
        };
        Holder {
            owner,
            reason,
            fence,
            mode: Mode::Exclusive,
            held: None,
            lease_left,
        }
    }
}

/// The end of a token.
pub(in crate::stores) fn owner_and_reason(claim: &Claim) -> String {
    let mut owner = utf8_percent_encode(&claim.owner, NON_ALPHANUMERIC).to_string();
    if let Some(reason) = &claim.reason {
        owner.push('.');
        owner.extend(utf8_percent_encode(reason, NON_ALPHANUMERIC));
    }
    owner
}

/// Reads what [`owner_and_reason`] wrote.
pub(in crate::stores) fn read_labels(labels: &str) -> (String, Option<String>) {
    let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
    match labels.split_once('.') {
        Some((owner, reason)) => (decoded(owner), Some(decoded(reason))),
        None => (decoded(labels), None),
    }
}

pub(in crate::stores) fn read_fence(digits: &[u8]) -> Option<Fence> {
    std::str::from_utf8(digits)
        .ok()?
        .parse()
        .ok()
        .and_then(Fence::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_and_peers_are_not_shown() {
        let ours = format!("{:032x}.1700000000000000.a%2Eb%20c.why", 7);
        let Token::Ours {
            fence,
            owner,
            reason,
        } = Token::read(ours.as_bytes())
        else {
            panic!("ours")
        };
        assert_eq!(
            (fence.get(), owner.as_str(), reason.as_deref()),
            (1_700_000_000_000_000, "a.b c", Some("why"))
        );
        for peers in [
            &b"secret-token"[..],
            b"",
            b"\xff\xfe",
            b"0123.4.5",
            b"00000000000000000000000000000000.x.y",
        ] {
            let holder = Token::read(peers).holder(None);
            assert!(holder.fence.is_none() && holder.owner == "another program");
        }
    }
}
