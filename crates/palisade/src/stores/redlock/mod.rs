//! `redlock:` — one value per lock on several independent Redis servers; a majority decides.
//!
//! # The steps
//!
//! T1, by our clock. All servers are asked at the same time to put the claim's token, if there is
//! none. With a majority the claim holds; T2. It is valid for the lease, counted from T1, less the
//! drift: the core counts so for every store, and a pause anywhere between T1 and T2 is part of the
//! count. Without a majority the claim is released on all servers before it asks again, also on
//! those that have not answered.
//!
//! # The fence
//!
//! Each claim proposes a fence: the latest of the servers' clocks, in microseconds, or one more than
//! the last fence of the name that this client has seen. A server stores it with the token if it is
//! above the last one that it has stored, and less than a second behind its own clock. When a
//! majority has stored it, it is the fence of the grant. Otherwise the claim has the majority without
//! a fence, and a further round asks all servers again with a higher one. The guard is returned after
//! the round in which a majority has stored the fence: mostly the first.
//!
//! Why fences rise: a grant's fence was stored by a majority while each of these servers had the
//! claim's token. A claim that begins after the grant needs a majority, too. The two share a server,
//! which stores only what is above its last. It has stored the grant's fence first, so the later
//! fence is higher, whatever the clocks say and whatever has expired too early. Only a server that
//! has lost its data is no such witness. The grant's fence was then not far above the servers'
//! clocks, and no server stores one that is far behind its own.
//!
//! A renewal counts only servers that have stored no higher fence since.

mod calls;
mod claim;
mod claimed;
mod inspect;
mod members;
mod node;
mod release;
mod renew;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::Value;
use tokio::sync::Semaphore;

use self::calls::Calls;
use self::claimed::ClaimedNodes;
use self::members::Members;
use self::node::{Connected, Contact, Node};
use self::settings::Settings;
use super::redis::client::{Call, Client, Script, Server};
use super::redis::{Keys, Rollback, fence_key};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Capability, Claim, ClaimId, ClaimRef, ClientHandle, Durability, Ending, Extensions, NameKeys,
    Page, Ping, Query, Released, Revoked, ServerInfo, Standing, Store,
};
use crate::stores::kit::token::{Put, TokenBackend, TokenStore};
use crate::url::StoreUrl;

/// The capability of Redlock.
pub const CAPABILITY: Capability = Capability {
    store: "redlock",
    format: "simple",
    durability: Durability::Quorum,
    any_name: false,
    ..Capability::TOKEN
};

static CLAIM: Script = Script::new(include_str!("claim.lua"));
static RENEW: Script = Script::new(include_str!("renew.lua"));
static RELEASE: Script = Script::new(include_str!("release.lua"));

/// How long the first request waits at least for servers beyond the majority, so that its claim is
/// put on them, too.
const FIRST_REACH: Duration = Duration::from_millis(200);
/// How long a request to one server may take at most.
const LONGEST_REQUEST: Duration = Duration::from_secs(1);
/// How many releases are repeated in the background at most; the leases of others end them.
const MOST_BACKGROUND: usize = 4096;

/// Opens a URL of Redlock. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let settings = Settings::read(url)?;
    Ok(Arc::new(TokenStore(Quorum(Arc::new(Shared::new(
        settings,
    ))))))
}

/// The servers that a request goes to, by their places.
type Servers = Vec<Option<Arc<Server>>>;

/// A majority of servers, as one backend of the token kit.
struct Quorum(Arc<Shared>);

struct Shared {
    capability: Capability,
    keys: Keys,
    nodes: Vec<Arc<Node>>,
    members: Arc<Members>,
    connect_timeout: Duration,
    /// Whether the first request has waited for all servers.
    is_warm: AtomicBool,
    claimed: ClaimedNodes,
    /// The last fence of each name.
    seen: Rollback,
    /// The last proposal: none is made twice.
    proposed: AtomicU64,
    /// Bounds the releases in the background.
    background: Semaphore,
}

impl Shared {
    fn new(settings: Settings) -> Shared {
        let Settings {
            keys,
            servers,
            longest_lease,
        } = settings;
        let members = Arc::new(Members::new(servers.len(), longest_lease));
        let connect_timeout = servers
            .iter()
            .map(|(_, settings)| settings.connect_timeout())
            .max()
            .unwrap_or_default();
        let node = |(place, (address, settings))| {
            let contact = Contact {
                place,
                members: Arc::clone(&members),
            };
            // Nothing is pushed: there is no inbox.
            let client = Client::new(settings, String::new(), Arc::new(contact));
            Arc::new(Node::new(place, address, client, &members))
        };
        Shared {
            capability: Capability {
                max_lease: longest_lease.unwrap_or(CAPABILITY.max_lease),
                ..CAPABILITY
            },
            keys,
            nodes: servers.into_iter().enumerate().map(node).collect(),
            members,
            connect_timeout,
            is_warm: AtomicBool::new(false),
            claimed: ClaimedNodes::default(),
            seen: Rollback::default(),
            proposed: AtomicU64::new(0),
            background: Semaphore::new(MOST_BACKGROUND),
        }
    }

    fn call(&self, script: &'static Script, name: &Name) -> Call {
        let key = self.keys.key(name);
        Call::new(script, &key).beside(&fence_key(&key))
    }

    /// Whether a claim is still to be sent.
    fn wants(&self, claim: ClaimId) -> bool {
        let handle = self.members.handle.get();
        handle.is_none_or(|client| client.wants(claim))
    }

    /// The servers to ask, a majority at least: those that are connected, without the silent ones
    /// where that leaves a majority. The others are reached meanwhile.
    ///
    /// A URL that is wrong about one of them is an error, though the others be a majority.
    async fn reached(&self) -> Result<Servers> {
        let (quorum, all) = (self.members.quorum(), self.members.count);
        loop {
            let connected: Vec<_> = self.nodes.iter().map(|node| node.connected()).collect();
            let lively = |one: &&Connected| !one.is_silent;
            let is_warm = self.is_warm.load(Ordering::Relaxed);
            let count = connected.iter().flatten().count();
            if count == all || (is_warm && count >= quorum) {
                if let Some(refused) = self.nodes.iter().find_map(|node| node.refused()) {
                    return Err(refused.with_nothing_sent());
                }
                let unconnected = connected.iter().zip(&self.nodes);
                let unconnected = unconnected.filter(|(one, _)| one.is_none());
                unconnected.for_each(|(_, node)| node.reach_soon());
                let without_silent = connected.iter().flatten().filter(lively).count() >= quorum;
                let usable = |one: &Connected| !(without_silent && one.is_silent);
                let server = |one: Option<Connected>| one.filter(usable).map(|one| one.server);
                return Ok(connected.into_iter().map(server).collect());
            }
            self.reach(&connected, if is_warm { quorum } else { all })
                .await?;
            self.is_warm.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until so many servers are reached. Those beyond a majority have as long as the majority
    /// took.
    async fn reach(&self, connected: &[Option<Connected>], wanted: usize) -> Result<()> {
        let (quorum, begun) = (self.members.quorum(), Instant::now());
        let mut calls = Calls::new();
        let unconnected = self.nodes.iter().zip(connected);
        for (node, _) in unconnected.filter(|(_, one)| one.is_none()) {
            let node = Arc::clone(node);
            calls.push(node.place, async move { node.reach().await.map(drop) });
        }
        let mut count = self.members.count - calls.len();
        let mut failures = Vec::new();
        for wanted in [quorum, wanted] {
            if count >= wanted {
                continue;
            }
            let limit = if count < quorum {
                self.connect_timeout
            } else {
                begun.elapsed().max(FIRST_REACH)
            };
            calls
                .take(limit, |_, answer, _| {
                    match answer {
                        Ok(()) => count += 1,
                        Err(error) => failures.push(error),
                    }
                    count >= wanted
                })
                .await;
            if count < quorum {
                break;
            }
        }
        let wrong = failures
            .iter()
            .find(|error| error.kind() == ErrorKind::Config);
        if count < quorum || wrong.is_some() {
            return Err(self.too_few(count, failures).with_nothing_sent());
        }
        Ok(())
    }

    /// The error when only so many servers did their part. An error that the user can act on comes
    /// first.
    fn too_few(&self, count: usize, failures: Vec<Error>) -> Error {
        if let Some(error) = failures.iter().find(|error| !error.retry_may_help()) {
            return error.clone();
        }
        let why = failures.first().map(|error| format!(": {error}"));
        Error::unavailable(format!(
            "{count} of {} servers answer, and {} are needed{}",
            self.members.count,
            self.members.quorum(),
            why.unwrap_or_default()
        ))
    }

    /// Sends a call to all these servers.
    fn send(&self, servers: &Servers, call: &Arc<Call>) -> Calls<Result<Value>> {
        let mut calls = Calls::new();
        for (node, server) in self.nodes.iter().zip(servers) {
            if let Some(server) = server {
                calls.push(node.place, node.call(Arc::clone(server), call));
            }
        }
        calls
    }
}

/// How long a server has to answer: far less than the lease.
fn limit(lease: Duration) -> Duration {
    (lease / 4).min(LONGEST_REQUEST)
}

#[async_trait]
impl TokenBackend for Quorum {
    fn capability(&self) -> &Capability {
        &self.0.capability
    }

    fn attach(&self, client: ClientHandle) {
        // Told once.
        let _ = self.0.members.handle.set(client);
    }

    async fn put_if_absent(&self, claim: &Arc<Claim>) -> Result<Put> {
        claim::claim(&self.0, claim).await
    }

    async fn extend(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew::renew(&self.0, claims).await
    }

    async fn delete_if(&self, claim: &ClaimRef, _ending: Ending) -> Result<Released> {
        release::release(&self.0, claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) | Query::Leader(name) => inspect::show(&self.0, name).await,
            Query::List { .. } => Ok(Page::default()),
        }
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        inspect::revoke(&self.0, name, fence).await
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(self),
            name_keys: Some(self),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Quorum {
    async fn ping(&self) -> Result<ServerInfo> {
        inspect::ping(&self.0).await
    }
}

impl NameKeys for Quorum {
    fn key(&self, name: &Name) -> Result<String> {
        Ok(self.0.keys.key(name))
    }
}
