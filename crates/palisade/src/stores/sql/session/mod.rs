//! Session locks: the database's own locks, which belong to a session of the server and end with it.
//! The engine queues, and hands a lock over by itself.
//!
//! ```text
//! claim   ─► tried on the session that the client's claims of one length share ─► granted or busy
//! wait    ─► a task waits on a connection of its own; the server grants there, and the lock stays there
//! renew   ─► one heartbeat for each session: the server ends one that is silent for a lease
//! release ─► unlock; a wait is interrupted, and whatever it got all the same is unlocked
//! ```
//!
//! [`Engine`] is what a database fills in. The rest is the kit for stores with sessions.

mod claim;
mod claims;
mod engine;
mod pool;
mod release;
mod renew;
mod sessions;
mod wait;

use std::sync::{Arc, Weak};

use async_trait::async_trait;

use self::claims::{Own, Position};
pub(crate) use self::engine::{Engine, Link, Seen};
use self::pool::Pool;
pub(crate) use self::renew::fence_at;
use self::sessions::{Opener, Session};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Capability, Change, ClaimRef, Detach, Durability, Extensions, FenceSource, Holder, Kind,
    LineView, Mode, NameKeys, Order, Page, Ping, Query, ServerInfo, Standing, Store, Wakes,
};
use crate::stores::in_task::in_task;
use crate::stores::kit::session::claims::{ClaimTable, OwnClaim};
use crate::stores::kit::session::renew::renew_one;
use crate::stores::kit::session::sessions::Sessions;
use crate::stores::kit::session::{self as kit, Entries, SessionBackend, SessionStore};

/// What the session locks of every database have in common.
pub(crate) const CAPABILITY: Capability = Capability {
    format: "session",
    durability: Durability::Server,
    order: Order::Engine,
    wakes: Wakes::Engine,
    fence: FenceSource::Clock,
    semaphore: false,
    downgrade: false,
    min_hold: false,
    once: false,
    proclaim: false,
    detach: Detach::Never,
    list: false,
    waiters_known: false,
    holders_known: false,
    // A waiter that is granted while its client is paused has the whole lease.
    short_waits: false,
    // That would end every lock of the session.
    revoke: false,
    revoke_pushed: false,
    ..Capability::SESSION
};

/// How many connections of a client wait, or hold what they have waited for, unless the URL says
/// otherwise.
pub(crate) const WAITS: usize = 16;

/// The session locks of one client.
pub(crate) struct Backend<E: Engine> {
    engine: Arc<E>,
    claims: ClaimTable<Own<E>>,
    sessions: Arc<Sessions<Opener<E>>>,
    pool: Arc<Pool<E>>,
    capability: &'static Capability,
}

/// Opens the store of an engine. Nothing is connected.
pub(crate) fn store<E: Engine>(
    engine: E,
    waits: usize,
    capability: &'static Capability,
) -> Arc<dyn Store> {
    let engine = Arc::new(engine);
    let backend = Arc::new_cyclic(|backend: &Weak<Backend<E>>| Backend {
        sessions: Sessions::new(Opener::new(Arc::clone(&engine), Weak::clone(backend))),
        engine,
        claims: ClaimTable::default(),
        pool: Pool::new(waits),
        capability,
    });
    Arc::new(SessionStore {
        backend,
        capability,
    })
}

impl<E: Engine> Entries for Backend<E> {
    type Own = Own<E>;
    type Opens = Opener<E>;
    type Failed = Error;

    fn claims(&self) -> &ClaimTable<Own<E>> {
        &self.claims
    }

    fn sessions(&self) -> &Arc<Sessions<Opener<E>>> {
        &self.sessions
    }

    fn dropped(&self, own: Own<E>) {
        if let Position::Waiting(waiting) = own.position {
            waiting.cancel.cancel();
        }
    }
}

impl<E: Engine> Backend<E> {
    /// A session has ended, and with it the locks that it had.
    fn session_over(&self, session: &Session<E>) {
        kit::session_ended(self, session.id);
        self.sessions.forget(|other| other.id == session.id);
        if session.is_unused() {
            return;
        }
        // Whatever ended it may have ended others, unnoticed so far.
        if let Some(client) = self.claims.client() {
            client.contact_regained();
        }
    }

    /// Makes a writer a reader, unless it is one.
    async fn downgrade(&self, claim: &ClaimRef) -> Result<()> {
        let id = claim.claim.id;
        let (session, key) = match self.claims.lock().own.get(&id) {
            Some(own) if own.is_meant_by(claim.fence) => match &own.position {
                Position::Held { mode, .. } if *mode != Mode::Shared => {
                    (Arc::clone(&own.session), own.key.clone())
                }
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        let limit = self.engine.request_timeout();
        session.ask(limit, session.link.downgrade(&key)).await?;
        session.now_shared(&key);
        if let Some(own) = self.claims.lock().own.get_mut(&id)
            && let Position::Held { mode, .. } = &mut own.position
        {
            *mode = Mode::Shared;
        }
        Ok(())
    }

    async fn show(&self, name: &Name) -> Result<Page> {
        let key = self.engine.key(name)?;
        let seen = self.engine.holders(&key).await?;
        if seen.is_empty() {
            return Ok(Page::default());
        }
        let exclusive = seen.iter().all(|seen| seen.mode == Mode::Exclusive);
        let claims = self.claims.lock();
        let holder = |seen: Seen| {
            let is_it = |own: &&Own<E>| {
                let held = matches!(own.position, Position::Held { .. });
                held && own.key == key && own.session.link.number() == seen.session
            };
            let own = claims.own.values().find(is_it);
            Holder {
                owner: own.map_or(seen.owner, |own| own.claim.owner.to_string()),
                reason: own.and_then(|own| own.claim.reason.as_deref().map(str::to_owned)),
                fence: own.map_or(Fence::NONE, OwnClaim::fence),
                mode: seen.mode,
                held: None,
                lease_left: None,
            }
        };
        let line = LineView {
            kind: if exclusive { Kind::Mutex } else { Kind::RwLock },
            holders: seen.into_iter().map(holder).collect(),
            waiters_known: false,
            ..LineView::free(name.as_str())
        };
        Ok(Page {
            lines: vec![line],
            next: None,
        })
    }
}

#[async_trait]
impl<E: Engine> SessionBackend for Backend<E> {
    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) | Query::Leader(name) => self.show(name).await,
            Query::List { .. } => Err(Error::unsupported(
                "this format cannot list: the server knows the keys of its locks, and not their names",
            )),
        }
    }

    async fn change(
        self: &Arc<Self>,
        claim: &ClaimRef,
        to: Change,
        capability: &Capability,
    ) -> Result<Standing> {
        if !(capability.downgrade && to == Change::Downgrade) {
            return Err(to.refused_by(capability));
        }
        // A release waits for it: it must know in which mode the key is locked.
        let lock = self.claims.lock().look_lock(claim.claim.id);
        if let Some(lock) = lock {
            let (backend, claim) = (Arc::clone(self), claim.clone());
            in_task(async move {
                let _one = lock.lock().await;
                backend.downgrade(&claim).await
            })
            .await?;
        }
        renew_one(self, claim).await
    }

    fn extensions(self: &Arc<Self>) -> Extensions<'_> {
        Extensions {
            ping: Some(&**self),
            name_keys: Some(&**self),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl<E: Engine> Ping for Backend<E> {
    async fn ping(&self) -> Result<ServerInfo> {
        self.show(&Name::of_ping()).await?;
        self.engine.server().await
    }
}

impl<E: Engine> NameKeys for Backend<E> {
    fn key(&self, name: &Name) -> Result<String> {
        Ok(self.engine.shown(&self.engine.key(name)?))
    }
}
