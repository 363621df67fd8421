//! `format=redisson`: the locks of Redisson, the Redis client of the JVM, for programs that share
//! them.
//!
//! A mutex is an `RLock`, or an `RFencedLock`, or with `fair=yes` an `RFairLock`; a rwlock is an
//! `RReadWriteLock`. Each is a hash with a field for each holder and the lease as its time to live;
//! `keys` has the keys beside it, and the scripts in `lua` say what each step does to them. Notes of
//! our own, in keys that Redisson does not know, keep the fence, the owner and the reason of a
//! grant, and until when a waiter of ours is alive. A semaphore is an `RSemaphore`, or with
//! `expirable=yes` an `RPermitExpirableSemaphore`: see `permits`.
//!
//! A release is announced on a channel, on which the waiters of all clients are subscribed: see
//! [`channels`](super::channels). A fair lock tells the next in its queue alone.

mod claim;
mod inspect;
mod keys;
mod permits;
mod release;
mod renew;
mod reply;
mod wait;

use std::sync::Arc;

use async_trait::async_trait;

use self::keys::Keys;
pub(super) use self::keys::{CHANNELS, check_key};
pub(super) use self::wait::announced;
use super::backend::Backend;
use super::client::{Call, Script};
use super::simple::{digits, millis};
use super::{Batch, server_info};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Capability, Change, Claim, ClaimRef, ClientHandle, Ending, Extensions, Kind, NameKeys, Order,
    Page, Ping, Query, Released, Revoked, ServerInfo, Standing, Wakes, no_standing,
};
use crate::stores::kit::token::value::owner_and_reason;
use crate::stores::kit::token::{Put, TokenBackend};

/// The capability of the format `redisson`.
pub const CAPABILITY: Capability = Capability {
    store: "redis",
    format: "redisson",
    wakes: Wakes::Push,
    rwlock: true,
    semaphore: true,
    semaphore_stays: true,
    mutex_is_write_side: false,
    downgrade: true,
    any_name: false,
    ..Capability::TOKEN
};

/// The same where mutexes are fair locks.
pub const FAIR: Capability = Capability {
    format: "redisson&fair=yes",
    order: Order::Fifo,
    waiters_known: true,
    // Its queue is for the mutex alone.
    rwlock: false,
    semaphore: false,
    downgrade: false,
    ..CAPABILITY
};

/// A script behind the part that all have in common, and perhaps more.
macro_rules! script {
    ($($part:literal),+) => {
        Script::new(concat!(include_str!("lua/head.lua"), $(include_str!(concat!("lua/", $part))),+))
    };
}

static SHOW: Script = script!("rw.lua", "permits.lua", "show.lua");
static CLAIM: Script = script!("lock_claim.lua");
static CLAIM_SIDE: Script = script!("rw.lua", "rw_claim.lua");
/// A waiter renews its place as it claims.
static ASK: Script = script!("fair.lua", "fair_ask.lua");
static CLAIM_PERMITS: Script = script!("permits.lua", "permits_claim.lua");
static RENEW_PERMITS: Script = script!("permits.lua", "permits_renew.lua");
static RELEASE_PERMITS: Script = script!("permits.lua", "permits_release.lua");
static RENEW: Script = script!("rw.lua", "renew.lua");
static DOWNGRADE: Script = script!("rw.lua", "rw_downgrade.lua");
static RELEASE: Script = script!("rw.lua", "fair.lua", "release.lua");
static REVOKE: Script = script!("rw.lua", "fair.lua", "permits.lua", "revoke.lua");

/// The locks in the format `redisson`, for one client.
pub(super) struct Redisson {
    backend: Arc<Backend>,
    batch: Batch,
}

impl Redisson {
    pub(super) fn of(backend: Arc<Backend>) -> Redisson {
        Redisson {
            batch: Batch::of(&backend),
            backend,
        }
    }

    fn keys(&self, name: &Name) -> Result<Keys> {
        let key = self.backend.settings.key(name);
        Keys::of(name, key, self.backend.client.settings().is_cluster())
    }

    fn is_fair(&self) -> bool {
        self.backend.settings.fair
    }

    /// A call with what all scripts take.
    fn call(
        &self,
        script: &'static Script,
        keys: &Keys,
        claim: Option<&Claim>,
        fence: Option<Fence>,
    ) -> Call {
        let settings = &self.backend.settings;
        let flags = [
            (self.backend.is_sharded(), 'c'),
            (settings.fair, 'f'),
            (settings.fenced, 'n'),
            (settings.expirable, 'e'),
        ];
        let flags: String = flags
            .iter()
            .filter_map(|(is_set, letter)| is_set.then_some(*letter))
            .collect();
        let call = keys
            .beside()
            .iter()
            .fold(Call::new(script, &keys.lock), |call, key| call.beside(key))
            .text(&keys.tag)
            .text(&flags);
        match claim {
            Some(claim) => call
                .text(&keys::field(claim.id))
                .text(&digits(fence))
                .number(millis(claim.lease))
                .text(&owner_and_reason(claim)),
            None => call.text("").text(&digits(fence)).number(0).text(""),
        }
    }

    /// The channel on which a claim is told that it is worth asking again.
    fn channel(&self, keys: &Keys, claim: &Claim) -> String {
        match claim.kind {
            _ if self.is_fair() => keys.fair_channel(claim.id),
            Kind::RwLock => keys.rwlock_channel(),
            Kind::Semaphore { .. } => keys.semaphore_channel(),
            Kind::Mutex => keys.lock_channel(),
        }
    }
}

#[async_trait]
impl TokenBackend for Redisson {
    fn capability(&self) -> &Capability {
        match self.backend.settings.fair {
            true => &FAIR,
            false => &CAPABILITY,
        }
    }

    fn attach(&self, client: ClientHandle) {
        self.backend.attach(client);
    }

    async fn put_if_absent(&self, claim: &Arc<Claim>) -> Result<Put> {
        claim::claim(self, claim).await
    }

    async fn extend(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew::renew(self, claims).await
    }

    async fn delete_if(&self, claim: &ClaimRef, _ending: Ending) -> Result<Released> {
        release::release(self, claim).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        release::revoke(self, name, fence).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) | Query::Leader(name) => inspect::show(self, name).await,
            Query::List { .. } => Ok(Page::default()),
        }
    }

    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        match to {
            Change::Detach => {
                let mut answers = self.extend(std::slice::from_ref(claim)).await;
                answers.pop().unwrap_or_else(|| Err(no_standing()))
            }
            Change::Downgrade if claim.claim.kind == Kind::RwLock => {
                renew::downgrade(self, claim).await
            }
            other => Err(other.refused_by(self.capability())),
        }
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(self),
            name_keys: Some(self),
            latches: Some(&self.backend),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Redisson {
    async fn ping(&self) -> Result<ServerInfo> {
        let keys = self.keys(&Name::of_ping())?;
        server_info::ping(&self.backend, &self.call(&SHOW, &keys, None, None)).await
    }
}

impl NameKeys for Redisson {
    fn key(&self, name: &Name) -> Result<String> {
        Ok(self.keys(name)?.lock)
    }
}
