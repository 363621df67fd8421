//! The client: from a URL to locks.

mod operators;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::operators::Pong;
use crate::engine::Core;
use crate::engine::held_claim::HeldClaim;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::guard::{DetachedGrant, Guard, GuardMode};
use crate::lease::tracked::{Stage, Terms, TrackedClaim};
use crate::lease::{BootClock, Clock, Drift, LossReason, Moment, deadline};
use crate::lock::{
    Election, Identity, Latch, Multi, Mutex, Once, Options, RwLock, Semaphore, Striped,
};
use crate::store::{Capability, Claim, Gone, Grant, Kind, Standing, Store};
use crate::stores;
use crate::url::StoreUrl;

/// Makes a client of the store at this URL. It only parses; see [`Client::connect`].
///
/// # Errors
///
/// [`Config`](crate::ErrorKind::Config) for a URL that cannot be used.
///
/// # Cancel safety
///
/// It never waits.
pub async fn connect(url: impl AsRef<str>) -> Result<Client> {
    Client::connect(url)
}

/// A store, and the thread that keeps our locks in it. Cheap to clone; clones share everything.
///
/// Locks made here are descriptions: no request is sent until one is acquired. The client ends by
/// itself when it and its last guard are gone.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
    owner: Arc<str>,
}

impl Client {
    /// Makes a client of the store at this URL. It only parses the URL: nothing is connected, and a
    /// wrong host, a wrong password and missing rights are found at first use. [`ping`](Client::ping)
    /// finds them at once.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a URL that cannot be used, with what to do about
    /// it.
    pub fn connect(url: impl AsRef<str>) -> Result<Client> {
        let url = StoreUrl::parse(url.as_ref())?;
        let (drift, identity) = (Drift::new(url.common().drift), url.identity());
        Ok(Client::new(
            stores::open(url)?,
            Arc::new(BootClock),
            drift,
            identity,
        ))
    }

    /// A client of a store of your own, on a clock of your own.
    pub fn over(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Client {
        Client::new(store, clock, Drift::default(), None)
    }

    fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        drift: Drift,
        identity: Option<String>,
    ) -> Client {
        Client {
            core: Core::new(store, clock, drift, identity),
            owner: default_owner().into(),
        }
    }

    /// The same client with another owner: the text that others are shown of its locks. Defaults to
    /// host, process and program.
    #[must_use]
    pub fn with_owner(&self, owner: impl AsRef<str>) -> Client {
        Client {
            core: Arc::clone(&self.core),
            owner: owner.as_ref().into(),
        }
    }

    /// The capability of the store: what it can do and promises.
    pub fn capability(&self) -> &Capability {
        self.core.capability()
    }

    fn options(&self, name: &str, kind: Kind) -> Options {
        Options::new(&self.core, &self.owner, name, kind)
    }

    /// A lock with one holder.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.options(name.as_ref(), Kind::Mutex))
    }

    /// A lock with many readers or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.options(name.as_ref(), Kind::RwLock))
    }

    /// A lock with so many permits.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self.options(name.as_ref(), Kind::Semaphore { limit }))
    }

    /// Several mutexes as one: all or nothing. For other members see [`Multi::of`].
    pub fn multi<S: AsRef<str>>(&self, names: impl IntoIterator<Item = S>) -> Multi {
        Multi::of(names.into_iter().map(|name| self.mutex(name).into()))
    }

    /// A mutex in so many stripes: one by key, or all of them.
    pub fn striped(&self, name: impl AsRef<str>, stripes: u32) -> Striped {
        Striped::new(self.options(name.as_ref(), Kind::Mutex), stripes)
    }

    /// A counter that many wait for, where the store has it; see [`Latch`].
    pub fn latch(&self, name: impl AsRef<str>, count: u32) -> Latch {
        Latch::new(self.options(name.as_ref(), Kind::Mutex), count)
    }

    /// One leader among candidates, in the line of the mutex of this name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.options(name.as_ref(), Kind::Mutex))
    }

    /// Work that is to be done once, however often it is asked for.
    pub fn once(&self, key: impl AsRef<str>) -> Once {
        Once::new(self.options(key.as_ref(), Kind::Mutex))
    }

    /// An identity that may enter a lock again that it already holds. Others are shown this owner.
    pub fn identity(&self, owner: impl AsRef<str>) -> Identity {
        Identity::new(owner.as_ref())
    }

    /// Takes up a grant that was [detached](Guard::detach), here or in another process, and renews
    /// it at once.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) when it is gone; [`Config`](crate::ErrorKind::Config) when
    /// it is of another store or mode.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the grant may have been renewed, and can be adopted again.
    pub async fn adopt<M: GuardMode>(&self, grant: &DetachedGrant) -> Result<Guard<M>> {
        let capability = self.capability();
        if grant.store != capability.store {
            return Err(Error::config(format!(
                "the grant is of {}, and this client is of {}",
                grant.store, capability.store
            )));
        }
        if !M::fits(grant.mode) {
            return Err(Error::config(format!(
                "the grant is {}; adopt it as such",
                grant.mode
            )));
        }
        let claim = Arc::new(Claim {
            id: grant.claim_id()?,
            name: grant.name.clone(),
            kind: grant.kind,
            mode: grant.mode,
            owner: grant.owner.as_str().into(),
            reason: grant.reason.as_deref().map(Into::into),
            value: None,
            lease: grant.lease(),
            exact_lease: false,
            queue: false,
            min_hold: None,
            once_per: None,
            // It was detached before, and can be again.
            detachable: true,
        });
        let terms = Terms {
            auto_renew: true,
            max_hold: None,
            stop_margin: deadline::default_stop_margin(claim.lease, None),
            drift: self.core.drift,
        };
        let (sent, held) = self.still_held(&claim, grant.fence).await?;
        let now = self.core.now();
        let mut tracked = TrackedClaim::granted(Arc::clone(&claim), terms, sent, held, now);
        if !matches!(tracked.stage(), Stage::Held) {
            // The answer took long: one renewal more, as for every grant.
            let (sent, held) = self.still_held(&claim, grant.fence).await?;
            tracked = TrackedClaim::held(claim, terms, sent, held, self.core.now());
        }
        HeldClaim::adopted(Arc::clone(&self.core), tracked)
            .map(|held| Guard::new(Arc::new(held)))
            .ok_or_else(|| Error::config("this client has adopted the grant already"))
    }

    /// Renews a grant that this client does not keep: when it asked, and what the store has.
    async fn still_held(&self, claim: &Arc<Claim>, fence: Fence) -> Result<(Moment, Grant)> {
        let (store, asked) = (Arc::clone(&self.core.store), [claim.to_ref(Some(fence))]);
        let sent = self.core.now();
        let answers = self
            .core
            .call(async move { Ok(store.renew(&asked).await) })
            .await?;
        match answers
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(unclear()))?
        {
            Standing::Held(held) if held.fence == fence => Ok((sent, held)),
            Standing::Gone(_) if self.core.released.has(claim.id) => {
                Err(Error::lost(LossReason::Released))
            }
            // Nothing that this store confirmed to this client.
            Standing::Gone(Gone::Unknown) => Err(Error::lost(LossReason::Unknown)),
            Standing::Gone(why) => Err(Error::lost(why.as_loss(claim.mode))),
            Standing::Held(_) | Standing::Waiting(_) => Err(unclear()),
        }
    }

    /// A descriptor for a child process to inherit, on a store that checks whether its clients are
    /// alive. While any process has it open, the grants of this client are not taken for dead. It
    /// exists after the first acquisition; `None` on other stores.
    pub fn liveness(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.core.store.extensions().liveness?.descriptor()
    }

    /// Waits until every release in the background is done. Call it before a program ends, so that
    /// no waiter has to wait for a lease. Guards that are still held stay held.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point; the releases go on.
    pub async fn shutdown(&self) {
        self.core.drain().await;
    }

    /// Ends the client before a program ends, so that it leaves nothing behind: pending releases
    /// are sent, and the store's files of this client are removed. Blocks for at most this long;
    /// `false` when it did not end by then, because guards or clones are still there or the store
    /// does not answer.
    pub fn close(self, longest: Duration) -> bool {
        let ended = self.core.ended();
        drop(self);
        ended.is_none_or(|ended| ended.recv_timeout(longest).is_ok())
    }

    /// The counters of this client.
    pub fn stats(&self) -> Stats {
        Stats {
            kept: self.core.registry.len(),
            unsent_releases: self.core.unsent_releases(),
        }
    }
}

/// The counters of a client since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Claims that are renewed now, waiting and holding.
    pub kept: usize,
    /// Releases that never reached the store: the locks ended with their leases.
    pub unsent_releases: u64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("store", &self.capability().store)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

fn unclear() -> Error {
    Error::protocol("the store does not say where the adopted grant stands")
}

/// Host, process and program, so that an operator can find the holder of a lock.
fn default_owner() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program
        .as_deref()
        .and_then(std::path::Path::file_name)
        .map(|name| name.to_string_lossy().into_owned());
    match program {
        Some(program) => format!("{host}:{}:{program}", std::process::id()),
        None => format!("{host}:{}", std::process::id()),
    }
}
