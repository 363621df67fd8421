//! `format=simple`: `SET key token NX PX`, as redis-py, redsync, node-redlock, rslock and bsm/redislock write it.
//!
//! The token is `<claim>.<fence>.<owner>.<reason>`, printable; peers compare it as a whole and look at nothing in it. The fence comes
//! from the granting script: the larger of the server's clock in microseconds and one more than the last, which is kept for ten
//! minutes beside the lock. Peers' locks have none.

pub(super) mod keyspace;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use redis::Value;

use super::client::lane::Purpose;
use super::client::script::{Call, Script};
use super::grant;
use super::settings::NAME_LIMIT;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Busy, Capability, Claim, ClaimRef, Detach, Durability, Ending, Event, FenceSource, Gone, Grant, Holder, Kind, Lease,
    LeaseUnit, LineView, Mode, Order, Page, Query, Released, Revoked, Standing, Store, Wakes, Woken,
};

/// What the format `simple` can do.
pub const CAPABILITY: Capability = Capability {
    store: "redis",
    format: "simple",
    durability: Durability::Server,
    order: Order::None,
    wakes: Wakes::Poll,
    fence: FenceSource::CounterAndClock,
    lease_unit: LeaseUnit::Claim,
    min_lease: Duration::from_millis(100),
    max_lease: Duration::from_secs(24 * 3600),
    rwlock: false,
    semaphore: false,
    mutex_is_write_side: true,
    downgrade: false,
    min_hold: false,
    once_per: false,
    once: false,
    proclaim: false,
    observe: false,
    detach: Detach::Anywhere,
    list: false,
    waiters_known: false,
    short_waits: true,
    revoke: true,
    revoke_pushed: false,
    name_limit: NAME_LIMIT,
    renew_batch: 1024,
    claim_blocks: false,
};

static CLAIM: Script = Script::new(include_str!("claim.lua"));
static RENEW: Script = Script::new(include_str!("renew.lua"));
static RELEASE: Script = Script::new(include_str!("release.lua"));
static SHOW: Script = Script::new(include_str!("show.lua"));
static REVOKE: Script = Script::new(include_str!("revoke.lua"));

pub(super) struct SimpleStore(pub(super) Arc<Shared>);

/// The key that keeps the last fence, in the slot of the lock.
fn mark(key: &str) -> String {
    // Braces of the name's own say where the lock is, and then where this is.
    if key.contains('{') { format!("palisade:1:fence:{key}") } else { format!("palisade:1:fence:{{{key}}}") }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

impl SimpleStore {
    fn call(&self, script: &'static Script, name: &Name) -> Call {
        let key = self.0.settings.key(name);
        let mark = mark(&key);
        Call::new(script, &key).beside(&mark)
    }

    fn release_call(&self, claim: &Claim, fence: Option<Fence>) -> Call {
        self.call(&RELEASE, &claim.name).text(&claim.id.reveal()).text(&digits(fence))
    }

    fn renew_call(&self, claim: &ClaimRef) -> Call {
        let ClaimRef { claim, fence, .. } = claim;
        self.call(&RENEW, &claim.name).text(&claim.id.reveal()).text(&digits(*fence)).number(millis(claim.lease))
    }
}

fn digits(fence: Option<Fence>) -> String {
    fence.map(|fence| fence.get().to_string()).unwrap_or_default()
}

fn held(fence: Fence, claim: &Claim) -> Grant {
    Grant { fence, lease: Lease::of(claim.lease) }
}

#[async_trait]
impl Store for SimpleStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, runtime: &tokio::runtime::Handle) {
        self.0.attach(runtime);
    }

    fn part(&self, name: &Name) -> u64 {
        self.0.part(name)
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        check(claim)?;
        let shared = &self.0;
        let lane = shared.lane()?;
        let mut owner = utf8_percent_encode(&claim.owner, NON_ALPHANUMERIC).to_string();
        if let Some(reason) = &claim.reason {
            owner.push('.');
            owner.extend(utf8_percent_encode(reason, NON_ALPHANUMERIC));
        }
        let call = self.call(&CLAIM, &claim.name).text(&claim.id.reveal()).number(millis(claim.lease)).text(&owner);
        let channel = shared.settings.keyspace(call.key());
        let changes = shared.keyspace.changes(&channel);
        let (link, value) = shared.call(&lane, &call, false).await?;
        let (token, left) = match &value {
            Value::BulkString(digits) => {
                let fence = read_fence(digits).ok_or_else(unreadable)?;
                let undo = |fence| self.release_call(claim, Some(fence));
                return grant::answer(shared, &lane, &link, claim, held(fence, claim), undo).await;
            }
            Value::Array(parts) => match parts.as_slice() {
                [Value::BulkString(token), Value::Int(left)] => (Token::read(token), *left),
                _ => return Err(unreadable()),
            },
            _ => return Err(unreadable()),
        };
        if claim.queue
            && let Some(changes) = changes
        {
            shared.keyspace.busy(&channel, claim.id, changes);
        }
        let woken = claim.queue && link.tells_of_keys().await;
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        let holder = Some(token.holder(left));
        Ok(Answer::Busy(Busy { holder, ask_in: left, too_soon: false, woken }))
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        let shared = &self.0;
        let key = shared.settings.key(&claim.name);
        let link = async {
            let address = shared.topology.known(&key)?;
            let link = shared.lane().ok()?.open_link(&address, Purpose::Requests)?;
            link.tells_of_keys().await.then_some(link)
        };
        match link.await {
            Some(link) => match shared.keyspace.freed(&shared.settings.keyspace(&key), &link, claim.id).await {
                Some(()) => Woken::Ask,
                None => std::future::pending().await,
            },
            // The core asks by the clock.
            None => std::future::pending().await,
        }
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let calls = claims.iter().map(|claim| self.renew_call(claim)).collect();
        let answers = self.0.call_all(calls, Purpose::Renewals, false).await;
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

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        if let Ending::Seal(_) = ending {
            return Err(Error::unsupported("the format simple of redis: cannot seal a name; take the format palisade"));
        }
        let lane = self.0.lane()?;
        let call = self.release_call(&claim.claim, claim.fence);
        let (_, value, sent_again) = self.0.call_perhaps_twice(&lane, &call, false).await?;
        self.0.release_replay.keep(Arc::new(call));
        match value {
            Value::Int(1) => Ok(Released::Done),
            Value::Int(0) => Ok(super::shared::unsure(Released::AlreadyLost, sent_again)),
            _ => Err(unreadable()),
        }
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let lane = self.0.lane()?;
        let call = self.call(&REVOKE, name).text(&if fence.is_none() { String::new() } else { fence.get().to_string() });
        match self.0.call(&lane, &call, false).await?.1 {
            Value::Int(1) => Ok(Revoked::Done),
            Value::Int(0) => Ok(Revoked::NotHeld),
            Value::BulkString(token) => Ok(Revoked::OtherHolder { fence: Token::read(&token).fence().unwrap_or(Fence::NONE) }),
            _ => Err(unreadable()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let Query::Show(name) = query else {
            return Err(Error::unsupported(
                "the format simple of redis: cannot tell locks from other keys; show one by its name",
            ));
        };
        let lane = self.0.lane()?;
        let lines = match self.0.call(&lane, &self.call(&SHOW, name), false).await?.1 {
            Value::Nil => Vec::new(),
            Value::Array(parts) => match parts.as_slice() {
                [Value::BulkString(token), Value::Int(left)] => {
                    let left = u64::try_from(*left).ok().map(Duration::from_millis);
                    vec![LineView {
                        name: name.as_str().to_owned(),
                        kind: Kind::Mutex,
                        holders: vec![Token::read(token).holder(left)],
                        waiters: Vec::new(),
                        waiters_known: false,
                    }]
                }
                _ => return Err(unreadable()),
            },
            _ => return Err(unreadable()),
        };
        Ok(Page { lines, next: None })
    }

    async fn event(&self) -> Event {
        self.0.events.next().await
    }
}

/// Refuses what the format has no place for.
fn check(claim: &Claim) -> Result<()> {
    let what = match (claim.kind, claim.mode) {
        (Kind::Mutex | Kind::RwLock, Mode::Exclusive) if claim.min_hold.is_none() && claim.once_per.is_none() => return Ok(()),
        (_, Mode::Shared) => "readers",
        (Kind::Semaphore { .. }, _) => "permits",
        _ => "min-hold and once-per",
    };
    Err(Error::unsupported(format!("the format simple of redis: has no {what}; take the format palisade")))
}

/// What stands in a lock's key: a token of ours, or a peer's.
enum Token {
    Ours { fence: Fence, owner: String, reason: Option<String> },
    Peers,
}

impl Token {
    fn read(token: &[u8]) -> Token {
        let read = || {
            let mut parts = std::str::from_utf8(token).ok()?.splitn(4, '.');
            let (claim, fence, owner) = (parts.next()?, parts.next()?, parts.next()?);
            let ours = claim.len() == 32 && claim.bytes().all(|byte| byte.is_ascii_hexdigit());
            let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
            let (owner, reason) = (decoded(owner), parts.next().map(decoded));
            ours.then_some(Token::Ours { fence: read_fence(fence.as_bytes())?, owner, reason })
        };
        read().unwrap_or(Token::Peers)
    }

    fn fence(&self) -> Option<Fence> {
        match self {
            Token::Ours { fence, .. } => Some(*fence),
            Token::Peers => None,
        }
    }

    /// A peer's token is its secret: it is not shown.
    fn holder(&self, lease_left: Option<Duration>) -> Holder {
        let (owner, reason, fence) = match self {
            Token::Ours { fence, owner, reason } => (owner.clone(), reason.clone(), *fence),
            Token::Peers => ("another program".to_owned(), None, Fence::NONE),
        };
        Holder { owner, reason, fence, mode: Mode::Exclusive, held: None, lease_left }
    }
}

fn read_fence(digits: &[u8]) -> Option<Fence> {
    std::str::from_utf8(digits).ok()?.parse().ok().and_then(Fence::new)
}

fn unreadable() -> Error {
    Error::protocol("the server's answer to a script cannot be read; does somebody else write to this key?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_and_peers_are_not_shown() {
        let ours = format!("{:032x}.1700000000000000.a%2Eb%20c.why", 7);
        let Token::Ours { fence, owner, reason } = Token::read(ours.as_bytes()) else { panic!("ours") };
        assert_eq!((fence.get(), owner.as_str(), reason.as_deref()), (1_700_000_000_000_000, "a.b c", Some("why")));
        for peers in [&b"secret-token"[..], b"", b"\xff\xfe", b"0123.4.5", b"00000000000000000000000000000000.x.y"] {
            let holder = Token::read(peers).holder(None);
            assert!(holder.fence.is_none() && holder.owner == "another program");
        }
    }

    #[test]
    fn the_mark_is_in_the_slot_of_the_lock() {
        assert_eq!(mark("mixed"), "palisade:1:fence:{mixed}");
        assert_eq!(mark("a{b}c"), "palisade:1:fence:a{b}c");
    }
}
