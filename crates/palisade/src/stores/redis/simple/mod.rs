//! `format=simple`: `SET key token NX PX`, as redis-py, redsync, node-redlock, rslock and bsm/redislock write it.
//!
//! The token is `<claim>.<fence>.<owner>.<reason>`, printable; peers compare it as a whole. The fence comes
//! from the granting script: the larger of the server's clock in microseconds and one more than the last, which is kept for ten
//! minutes beside the lock. Peers' locks have none.

mod keyspace;
mod token;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use redis::Value;

pub(super) use self::keyspace::Keyspace;
use self::token::{Token, read_fence};
use super::client::{Call, Purpose, Script};
use super::failure::unreadable;
use super::release::unless_sent_again;
use super::{Batch, Locks, grant, renew};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Capability, Claim, ClaimRef, ClientHandle, Ending, Gone, Grant, Lease, Page, Query, Released,
    Revoked, Standing,
};
use crate::stores::kit::token::{Put, TokenBackend, page_of};

/// What the format `simple` can do.
pub const CAPABILITY: Capability = Capability {
    store: "redis",
    format: "simple",
    any_name: false,
    ..Capability::TOKEN
};

static CLAIM: Script = Script::new(include_str!("claim.lua"));
static RENEW: Script = Script::new(include_str!("renew.lua"));
static RELEASE: Script = Script::new(include_str!("release.lua"));
static SHOW: Script = Script::new(include_str!("show.lua"));
static REVOKE: Script = Script::new(include_str!("revoke.lua"));

/// The locks in the format `simple`, for one client.
pub(super) struct Simple {
    locks: Arc<Locks>,
    batch: Batch,
}

/// The key that keeps the last fence, in the slot of the lock.
fn mark(key: &str) -> String {
    // The text in the first braces of a key, up to the first that closes, decides its slot. A name with a closing brace and without
    // such a text is refused by a cluster: no key beside it can hold it in braces.
    if key.contains('}') {
        format!("palisade:1:fence:{key}")
    } else {
        format!("palisade:1:fence:{{{key}}}")
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000))
        .unwrap_or(u64::MAX)
        .max(1)
}

impl Simple {
    pub(super) fn of(locks: Arc<Locks>) -> Simple {
        Simple {
            batch: Batch::of(&locks),
            locks,
        }
    }

    fn call(&self, script: &'static Script, name: &Name) -> Call {
        let key = self.locks.settings.key(name);
        let mark = mark(&key);
        Call::new(script, &key).beside(&mark)
    }

    fn release_call(&self, claim: &Claim, fence: Option<Fence>) -> Call {
        self.call(&RELEASE, &claim.name)
            .text(&claim.id.reveal())
            .text(&digits(fence))
    }

    fn renew_call(&self, claim: &ClaimRef) -> Call {
        let ClaimRef { claim, fence } = claim;
        self.call(&RENEW, &claim.name)
            .text(&claim.id.reveal())
            .text(&digits(*fence))
            .number(millis(claim.lease))
    }
}

fn digits(fence: Option<Fence>) -> String {
    fence
        .map(|fence| fence.get().to_string())
        .unwrap_or_default()
}

fn held(fence: Fence, claim: &Claim) -> Grant {
    Grant {
        fence,
        lease: Lease::of(claim.lease),
    }
}

#[async_trait]
impl TokenBackend for Simple {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, client: ClientHandle) {
        self.locks.attach(client);
    }

    async fn put_if_absent(&self, claim: &Arc<Claim>) -> Result<Put> {
        let (locks, keyspace) = (&self.locks, &self.locks.keyspace);
        let mut owner = utf8_percent_encode(&claim.owner, NON_ALPHANUMERIC).to_string();
        if let Some(reason) = &claim.reason {
            owner.push('.');
            owner.extend(utf8_percent_encode(reason, NON_ALPHANUMERIC));
        }
        let call = self
            .call(&CLAIM, &claim.name)
            .text(&claim.id.reveal())
            .number(millis(claim.lease))
            .text(&owner);
        let channel = locks.settings.keyspace(call.key());
        let changes = keyspace.changes(&channel);
        let called = self.batch.claim(Arc::new(call), claim, false).await?;
        let (token, left) = match &called.value {
            Value::BulkString(digits) => {
                let fence = read_fence(digits).ok_or_else(unreadable)?;
                let undo = |fence| self.release_call(claim, Some(fence));
                return grant::accept_or_undo(
                    locks,
                    &called.server,
                    claim,
                    held(fence, claim),
                    undo,
                )
                .await
                .map(Put::Done);
            }
            Value::Array(parts) => match parts.as_slice() {
                [Value::BulkString(token), Value::Int(left)] => (Token::read(token), *left),
                _ => return Err(unreadable()),
            },
            _ => return Err(unreadable()),
        };
        let woken = claim.queue && called.server.notifies_of_keys().await;
        if woken {
            keyspace.busy(&channel, &called.server, claim.id, changes, locks);
        }
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        Ok(Put::Taken {
            holder: Some(token.holder(left)),
            left,
            woken,
        })
    }

    async fn extend(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let calls = claims
            .iter()
            .map(|claim| (self.renew_call(claim), renew::limit(claim)))
            .collect();
        let answers = self
            .locks
            .client
            .call_all(calls, Purpose::Renewals, false)
            .await;
        let standing = |(claim, answer): (&ClaimRef, Result<Value>)| match answer? {
            Value::BulkString(token) => {
                let fence = Token::read(&token).fence().ok_or_else(unreadable)?;
                Ok(Standing::Held(held(fence, &claim.claim)))
            }
            Value::Int(0) => Ok(Standing::Gone(Gone::Expired)),
            Value::Int(1) => Ok(Standing::Gone(Gone::Taken)),
            Value::Int(2) => Ok(Standing::Gone(Gone::Revoked)),
            _ => Err(unreadable()),
        };
        claims.iter().zip(answers).map(standing).collect()
    }

    async fn delete_if(&self, claim: &ClaimRef, _ending: Ending) -> Result<Released> {
        let call = Arc::new(self.release_call(&claim.claim, claim.fence));
        let called = self.batch.release(Arc::clone(&call)).await?;
        self.locks.release_replay.keep(call);
        match called.value {
            Value::Int(1) => Ok(Released::Done),
            Value::Int(0) => Ok(unless_sent_again(Released::AlreadyLost, called.sent_again)),
            _ => Err(unreadable()),
        }
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let call = self.call(&REVOKE, name).text(&if fence.is_none() {
            String::new()
        } else {
            fence.get().to_string()
        });
        match self.locks.call(&call).await?.value {
            Value::Int(1) => Ok(Revoked::Done),
            Value::Int(0) => Ok(Revoked::NotHeld),
            Value::BulkString(token) => Ok(Revoked::OtherHolder {
                fence: Token::read(&token).fence().unwrap_or(Fence::NONE),
            }),
            _ => Err(unreadable()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let (Query::Show(name) | Query::Leader(name)) = query else {
            return Ok(Page::default());
        };
        let holder = match self.locks.call(&self.call(&SHOW, name)).await?.value {
            Value::Nil => None,
            Value::Array(parts) => match parts.as_slice() {
                [Value::BulkString(token), Value::Int(left)] => Some(
                    Token::read(token).holder(u64::try_from(*left).ok().map(Duration::from_millis)),
                ),
                _ => return Err(unreadable()),
            },
            _ => return Err(unreadable()),
        };
        Ok(page_of(name, holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_in_the_slot_of_the_lock() {
        assert_eq!(mark("mixed"), "palisade:1:fence:{mixed}");
        assert_eq!(mark("a{b}c"), "palisade:1:fence:a{b}c");
        assert_eq!(mark("a{b"), "palisade:1:fence:{a{b}");
    }
}
