//! `format=simple`: `SET key token NX PX`, as redis-py, redsync, node-redlock, rslock and
//! bsm/redislock write it.
//!
//! The token is `<claim>.<fence>.<owner>.<reason>`, printable; peers compare it as a whole. The
//! granting script makes the fence: the larger of the server's clock in microseconds and the last
//! fence plus one. The last fence is kept beside the lock for ten minutes. Peers' locks have none.

mod reply;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

pub(in crate::stores) use self::reply::{gone, token_and_left};
use super::backend::Backend;
use super::client::{Call, Purpose, Script};
use super::failure::unexpected;
use super::release::unless_sent_again;
use super::{Batch, claim, renew, server_info};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Busy, Capability, Claim, ClaimRef, ClientHandle, Ending, Extensions, Grant, Lease, Page, Ping,
    Query, Released, Revoked, ServerInfo, Standing,
};
pub(in crate::stores) use crate::stores::kit::token::value::{Token, owner_and_reason, read_fence};
use crate::stores::kit::token::{Put, TokenBackend, page_of};

/// The capability of the format `simple`.
pub const CAPABILITY: Capability = Capability {
    store: "redis",
    format: "simple",
    any_name: false,
    ..Capability::TOKEN
};

static CLAIM: Script = Script::new(include_str!("claim.lua"));
static RENEW: Script = Script::new(include_str!("renew.lua"));
static RELEASE: Script = Script::new(include_str!("release.lua"));
pub(in crate::stores) static SHOW: Script = Script::new(include_str!("show.lua"));
pub(in crate::stores) static REVOKE: Script = Script::new(include_str!("revoke.lua"));

/// The locks in the format `simple`, for one client.
pub(super) struct Simple {
    backend: Arc<Backend>,
    batch: Batch,
}

/// The beginning of the keys that fences are kept in.
const FENCES: &str = "palisade:1:fence:";

/// The key that keeps the last fence, in the slot of the lock.
pub(in crate::stores) fn fence_key(key: &str) -> String {
    // The text in the first braces of a key, up to the first that closes, decides its slot. A name
    // with a closing brace and without such a text is refused by a cluster: no key beside it can
    // hold it in braces.
    if key.contains('}') {
        format!("{FENCES}{key}")
    } else {
        format!("{FENCES}{{{key}}}")
    }
}

/// Refuses a name whose key would be the fence of another lock.
pub(in crate::stores) fn check_key(name: &Name, key: &str) -> Result<()> {
    if key.starts_with(FENCES) {
        return Err(Error::config(format!(
            "{name} begins with {FENCES}, where this format keeps its fences; take another name"
        )));
    }
    Ok(())
}

pub(in crate::stores) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000))
        .unwrap_or(u64::MAX)
        .max(1)
}

impl Simple {
    pub(super) fn of(backend: Arc<Backend>) -> Simple {
        Simple {
            batch: Batch::of(&backend),
            backend,
        }
    }

    fn call(&self, script: &'static Script, name: &Name) -> Call {
        let key = self.backend.settings.key(name);
        Call::new(script, &key).beside(&fence_key(&key))
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

pub(in crate::stores) fn digits(fence: Option<Fence>) -> String {
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
        self.backend.attach(client);
    }

    async fn put_if_absent(&self, claim: &Arc<Claim>) -> Result<Put> {
        let (backend, events) = (&self.backend, &self.backend.channels);
        let call = self
            .call(&CLAIM, &claim.name)
            .text(&claim.id.reveal())
            .number(millis(claim.lease))
            .text(&owner_and_reason(claim));
        check_key(&claim.name, call.key())?;
        let channel = backend.settings.keyspace_channel(call.key());
        let changes = events.changes(&channel);
        let called = self.batch.claim(Arc::new(call), claim, false).await?;
        let (token, left) = match &called.value {
            Value::BulkString(digits) => {
                let fence = read_fence(digits).ok_or_else(unexpected)?;
                let undo = |fence| self.release_call(claim, Some(fence));
                return claim::accept_or_undo(
                    backend,
                    &called.server,
                    claim,
                    held(fence, claim),
                    undo,
                )
                .await
                .map(Put::Done);
            }
            Value::Array(parts) => token_and_left(parts).ok_or_else(unexpected)?,
            _ => return Err(unexpected()),
        };
        let woken = claim.queue && called.server.notifies_of_keys().await;
        if woken {
            events.busy(&channel, &called.server, claim.id, changes, backend);
        }
        Ok(Put::Taken(Busy {
            holder: Some(Token::read(token).holder(left)),
            ask_in: left,
            woken,
            ..Busy::default()
        }))
    }

    async fn extend(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let calls = claims
            .iter()
            .map(|claim| renew::within_limit(claim, self.renew_call(claim)))
            .collect();
        let answers = self
            .backend
            .client
            .call_all(calls, Purpose::Renewals, false)
            .await;
        let standing = |(claim, answer): (&ClaimRef, Result<Value>)| match answer? {
            Value::BulkString(token) => {
                let fence = Token::read(&token).fence().ok_or_else(unexpected)?;
                Ok(Standing::Held(held(fence, &claim.claim)))
            }
            other => gone(&other).map(Standing::Gone).ok_or_else(unexpected),
        };
        claims.iter().zip(answers).map(standing).collect()
    }

    async fn delete_if(&self, claim: &ClaimRef, _ending: Ending) -> Result<Released> {
        let call = Arc::new(self.release_call(&claim.claim, claim.fence));
        let called = self.batch.release(Arc::clone(&call)).await?;
        self.backend.recent_releases.keep(call);
        match called.value {
            Value::Int(1) => Ok(Released::Done),
            Value::Int(0) => Ok(unless_sent_again(Released::AlreadyLost, called.sent_again)),
            _ => Err(unexpected()),
        }
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let call = self
            .call(&REVOKE, name)
            .text(&digits((!fence.is_none()).then_some(fence)));
        match self.backend.call(&call).await?.value {
            Value::Int(1) => Ok(Revoked::Done),
            Value::Int(0) => Ok(Revoked::NotHeld),
            Value::BulkString(token) => Ok(Revoked::OtherHolder {
                fence: Token::read(&token).fence().unwrap_or(Fence::NONE),
            }),
            _ => Err(unexpected()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let (Query::Show(name) | Query::Leader(name)) = query else {
            return Ok(Page::default());
        };
        let holder = match self.backend.call(&self.call(&SHOW, name)).await?.value {
            Value::Nil => None,
            Value::Array(parts) => {
                let (token, left) = token_and_left(&parts).ok_or_else(unexpected)?;
                Some(Token::read(token).holder(left))
            }
            _ => return Err(unexpected()),
        };
        Ok(page_of(name, holder))
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(self),
            name_keys: Some(&*self.backend),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Simple {
    async fn ping(&self) -> Result<ServerInfo> {
        server_info::ping(&self.backend, &self.call(&SHOW, &Name::of_ping())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_fence_is_in_the_slot_of_the_lock() {
        assert_eq!(fence_key("mixed"), "palisade:1:fence:{mixed}");
        assert_eq!(fence_key("a{b}c"), "palisade:1:fence:a{b}c");
        assert_eq!(fence_key("a{b"), "palisade:1:fence:{a{b}");
    }
}
