//! The client: from a URL to locks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Core;
use crate::engine::held::HeldClaim;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::guard::{DetachedGrant, Guard, GuardMode};
use crate::lease::tracked::{Terms, TrackedClaim};
use crate::lease::{BootClock, Clock, Drift, deadline};
use crate::lock::{Election, Multi, Mutex, Once, Options, Owner, RwLock, Semaphore};
use crate::name::Name;
use crate::store::{Capability, Claim, Kind, LineView, Page, Query, Revoked, Standing, Store};
use crate::stores;
use crate::url::StoreUrl;

/// Makes a client of the store at this URL; see [`Client::connect`].
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
/// Locks made here are descriptions, and nothing is asked until one is acquired. The client ends by itself when it and its last
/// guard are gone.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
    label: Arc<str>,
}

impl Client {
    /// Makes a client of the store at this URL. It parses and returns: the first use connects.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a URL that cannot be used, with what to do about it.
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
            label: default_label().into(),
        }
    }

    /// The same client under another label, shown to others. Defaults to host, process and program.
    #[must_use]
    pub fn labelled(&self, label: impl AsRef<str>) -> Client {
        Client {
            core: Arc::clone(&self.core),
            label: label.as_ref().into(),
        }
    }

    /// What the store can do and promises.
    pub fn capability(&self) -> &Capability {
        self.core.capability()
    }

    fn options(&self, name: &str, kind: Kind) -> Options {
        Options::new(&self.core, &self.label, name, kind)
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

    /// One leader among candidates, in the line of the mutex of this name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.options(name.as_ref(), Kind::Mutex))
    }

    /// Something that is to be done once, however often it is asked for.
    pub fn once(&self, key: impl AsRef<str>) -> Once {
        Once::new(self.options(key.as_ref(), Kind::Mutex))
    }

    /// Somebody who may enter a lock that he already holds.
    pub fn owner(&self, label: impl AsRef<str>) -> Owner {
        Owner::new(label.as_ref())
    }

    /// Takes up a grant that was [detached](Guard::detach), here or in another process, and renews it at once.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) when it is gone; [`Config`](crate::ErrorKind::Config) when it is of another store or
    /// mode.
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
            // It was carried here, and can be carried on.
            detachable: true,
        });
        let terms = Terms {
            auto_renew: true,
            max_hold: None,
            stop_margin: deadline::default_stop_margin(claim.lease, None),
            drift: self.core.drift,
        };
        let (store, asked) = (
            Arc::clone(&self.core.store),
            [claim.to_ref(Some(grant.fence))],
        );
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
            Standing::Held(held) if held.fence == grant.fence => {
                let tracked = TrackedClaim::granted(claim, terms, sent, held, self.core.now());
                let held = HeldClaim::adopted(Arc::clone(&self.core), tracked);
                held.map(|held| Guard::new(Arc::new(held)))
                    .ok_or_else(|| Error::config("this client has adopted the grant already"))
            }
            Standing::Gone(why) => Err(Error::lost(why.as_loss())),
            Standing::Held(_) | Standing::Waiting(_) => Err(unclear()),
        }
    }

    /// Every line whose name begins so, with holders and waiters where the store knows them.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot list.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LineView>> {
        let mut lines = Vec::new();
        let mut after = None;
        loop {
            let page = self.list_page(prefix.as_ref(), after).await?;
            lines.extend(page.lines);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(lines),
            }
        }
    }

    /// One page of [`list`](Client::list), for stores with very many names.
    ///
    /// # Errors
    ///
    /// As [`list`](Client::list).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn list_page(&self, prefix: impl AsRef<str>, after: Option<String>) -> Result<Page> {
        if !self.capability().list {
            return Err(Error::unsupported(format!(
                "{} cannot list its locks; show one by its name",
                self.capability()
            )));
        }
        self.inspect(Query::List {
            prefix: prefix.as_ref().to_owned(),
            after,
        })
        .await
    }

    /// The line of one name; `None` when nobody holds it or waits for it.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn show(&self, name: impl AsRef<str>) -> Result<Option<LineView>> {
        let page = self.inspect(Query::Show(Name::new(name.as_ref())?)).await?;
        Ok(page.lines.into_iter().next())
    }

    async fn inspect(&self, query: Query) -> Result<Page> {
        let store = Arc::clone(&self.core.store);
        self.core
            .call(async move { store.inspect(&query).await })
            .await
    }

    /// Ends just the grant that has this fence, whoever holds it: an operator's verb. The holder is told by push where the
    /// store can, at its next renewal at the latest. [`Fence::NONE`] names a peer's grant without a fence.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the grant may have been ended.
    pub async fn revoke(&self, name: impl AsRef<str>, fence: Fence) -> Result<Revoked> {
        if !self.capability().revoke {
            return Err(Error::unsupported(format!(
                "{} cannot end somebody else's grant",
                self.capability()
            )));
        }
        let (store, name) = (Arc::clone(&self.core.store), Name::new(name.as_ref())?);
        self.core
            .call(async move { store.revoke(&name, fence).await })
            .await
    }

    /// A descriptor for a child process to inherit, on a store that asks whether its clients are alive: while any process has
    /// it open, the grants of this client are not taken for dead. There once something was acquired; `None` on other stores.
    pub fn liveness(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.core.store.extensions().liveness?.descriptor()
    }

    /// Waits until every release that runs in the background is done: before a program ends, so that nobody waits for a lease.
    /// Guards that are still held stay held.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point; the releases go on.
    pub async fn shutdown(&self) {
        self.core.drain().await;
    }

    /// Ends the client before a program ends, so that it leaves nothing behind: releases on their way are sent, and what the
    /// store keeps for each client is removed. Blocks, for at most so long; `false` when it did not end by then, because guards or
    /// clones are still there or the store does not answer.
    pub fn close(self, longest: Duration) -> bool {
        let ended = self.core.ended();
        drop(self);
        ended.is_none_or(|ended| ended.recv_timeout(longest).is_ok())
    }

    /// What this client has counted.
    pub fn stats(&self) -> Stats {
        Stats {
            kept: self.core.registry.len(),
            unsent_releases: self.core.unsent_releases(),
        }
    }
}

/// What a client has counted since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Claims that are renewed now, waiting and holding.
    pub kept: usize,
    /// Releases that the store never heard of: the locks ended with their leases.
    pub unsent_releases: u64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("store", &self.capability().store)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

fn unclear() -> Error {
    Error::protocol("the store does not say where the adopted grant stands")
}

/// Host, process and program: enough to find who holds a lock.
fn default_label() -> String {
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
