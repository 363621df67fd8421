//! This client's own claims: where each stands, and the session that it hangs on.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::cleanup::Leftover;
use super::client::{Failed, KeepOpen, Session};
use super::queue_rules::{self, Recipe};
use super::sessions::LockSession;
use super::settings::{Format, Settings};
use super::value;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ByClaim, Claim, ClaimId, ClientHandle, Gone, Grant, Kind, Mode};

/// Where a claim's nodes are.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    /// The node of the name.
    pub(super) base: String,
    pub(super) guid: String,
    pub(super) recipe: Recipe,
    /// Of a semaphore.
    pub(super) permits: Option<Permits>,
}

/// How many permits a claim wants, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permits {
    pub(super) count: u32,
    pub(super) limit: u32,
}

/// The two nodes below that of a semaphore: the line of waiters, and the permits that are held.
pub(super) const LOCKS: &str = "locks";
pub(super) const LEASES: &str = "leases";

impl Seat {
    pub(super) fn of(settings: &Settings, claim: &Claim) -> Result<Seat> {
        let permits = match (claim.kind, claim.mode) {
            (Kind::Semaphore { limit }, Mode::Permits(count)) => Some(Permits { count, limit }),
            _ => None,
        };
        let recipe = match (settings.format, claim.kind, claim.mode) {
            (Format::Kazoo, Kind::RwLock, Mode::Shared) => Recipe::KazooRead,
            (Format::Kazoo, Kind::RwLock, _) => Recipe::KazooWrite,
            (Format::Kazoo, _, _) => Recipe::KazooLock,
            (_, Kind::RwLock, Mode::Shared) => Recipe::Read,
            (_, Kind::RwLock, _) => Recipe::Write,
            (_, Kind::Mutex | Kind::Semaphore { .. }, _) => Recipe::Mutex,
        };
        Ok(Seat { base: settings.dir(&claim.name)?, guid: queue_rules::guid(claim.id), recipe, permits })
    }

    /// The node whose children are the line.
    pub(super) fn line(&self) -> Cow<'_, str> {
        if self.permits.is_some() { format!("{}/{LOCKS}", self.base).into() } else { Cow::Borrowed(&self.base) }
    }

    /// The path of a node in the line.
    pub(super) fn node(&self, child: &str) -> String {
        [&self.line(), "/", child].concat()
    }

    /// The path of its own node in the line, to which the server appends its number.
    pub(super) fn own_node(&self) -> String {
        self.node(&self.recipe.prefix(&self.guid))
    }

    /// The node whose children are the permits that are held.
    pub(super) fn leases(&self) -> String {
        format!("{}/{LEASES}", self.base)
    }
}

/// A claim, where its nodes are, and the session that they hang on.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) claim: Arc<Claim>,
    pub(super) seat: Arc<Seat>,
    pub(super) session: LockSession,
}

impl Entry {
    /// The value of our node. A claim that may be carried elsewhere says how to take its session up, to the owner of the grant.
    pub(super) fn value(&self) -> Vec<u8> {
        let password = self.claim.detachable.then(|| self.session.password());
        value::of(&self.claim, password.as_deref(), None)
    }

    pub(super) fn grant(&self, fence: Fence) -> Grant {
        Grant { fence, lease: self.session.lease() }
    }
}

/// A claim of ours that is in the store, as far as we know.
pub(super) struct OwnClaim {
    pub(super) entry: Entry,
    pub(super) stage: Stage,
    /// Held while its position is looked up: of two that find permits for the same claim, the second would find its place gone.
    pub(super) looking: Arc<tokio::sync::Mutex<()>>,
    /// Until its nodes are deleted.
    pub(super) keep_open: KeepOpen,
}

#[derive(Clone)]
pub(super) enum Stage {
    Waiting(Waiting),
    Holding(Holding),
}

#[derive(Clone)]
pub(super) struct Waiting {
    /// Its node in the line, without the path.
    pub(super) child: String,
    /// The transaction that made its node.
    pub(super) czxid: i64,
    pub(super) watches: Option<Watched>,
}

/// A node whose end a claim is told of, and by which connection.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) path: String,
    pub(super) connection: u64,
}

#[derive(Clone)]
pub(super) struct Holding {
    /// The nodes that it holds by, with their paths: one, or one for each permit.
    pub(super) nodes: Vec<String>,
    pub(super) fence: Fence,
    /// The connection on which its nodes are watched; 0 when they are not.
    pub(super) watched_on: u64,
}

impl OwnClaim {
    /// Its nodes, with their paths.
    pub(super) fn nodes(&self) -> Cow<'_, [String]> {
        match &self.stage {
            Stage::Waiting(waiting) => vec![self.entry.seat.node(&waiting.child)].into(),
            Stage::Holding(holding) => Cow::Borrowed(&holding.nodes),
        }
    }

    /// One of its permits was taken away, and so it is lost: the others are given back.
    pub(super) fn give_up_rest(self) {
        let nodes = self.nodes().into_owned();
        if nodes.len() > 1 {
            Leftover::Nodes(nodes).delete_later(&self.entry.session);
        }
    }

    /// Whether `fence` identifies this grant. A waiter is named without a fence, or by the one that it will have.
    pub(super) fn is_meant_by(&self, fence: Option<Fence>) -> bool {
        let own = match &self.stage {
            Stage::Waiting(waiting) => fence_of(waiting.czxid),
            Stage::Holding(holding) => holding.fence,
        };
        fence.is_none_or(|fence| fence == own)
    }
}

pub(super) fn fence_of(czxid: i64) -> Fence {
    u64::try_from(czxid).ok().and_then(Fence::new).unwrap_or(Fence::NONE)
}

/// All claims of a client, and why those ended that may still be asked about.
#[derive(Default)]
pub(super) struct ClaimTable {
    table: Mutex<Table>,
    pub(super) client: OnceLock<ClientHandle>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) own: ByClaim<OwnClaim>,
    ended: ByClaim<Ended>,
    unconfirmed: ByClaim<Unconfirmed>,
}

struct Ended {
    why: Gone,
    /// Until when its owner may ask.
    until: Moment,
}

/// A claim that was sent without an answer: it may be there or not.
#[derive(Clone)]
struct Unconfirmed {
    session: LockSession,
    _open: KeepOpen,
}

impl ClaimTable {
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client that is told, once it is attached.
    pub(super) fn client(&self) -> Option<&ClientHandle> {
        self.client.get()
    }

    /// Whether the caller of a claim still waits for its answer.
    pub(super) fn is_wanted(&self, claim: ClaimId) -> bool {
        self.client().is_none_or(|client| client.wants(claim))
    }

    /// Notes where a claim stands.
    pub(super) fn insert(&self, entry: &Entry, stage: Stage) {
        let keep_open = entry.session.keep_open();
        let mut own = OwnClaim { entry: entry.clone(), stage, looking: Arc::default(), keep_open };
        let mut table = self.lock();
        if let Some(before) = table.own.get(&entry.claim.id) {
            own.looking = Arc::clone(&before.looking);
        }
        table.own.insert(entry.claim.id, own);
    }

    /// A claim has ended without us: its owner is told.
    pub(super) fn end(&self, claim: ClaimId, why: Gone) -> Option<OwnClaim> {
        let own = self.lock().end(claim, why)?;
        if let Some(client) = self.client() {
            client.gone(claim, why);
        }
        Some(own)
    }

    /// Takes up what an answer says of a new claim: whether it is known what became of it.
    pub(super) fn confirm<T>(&self, entry: &Entry, answer: &Result<T, Failed>) {
        let (id, mut table) = (entry.claim.id, self.lock());
        match answer {
            Err(Failed::Unsure(_)) => {
                let unconfirmed = Unconfirmed { session: entry.session.clone(), _open: entry.session.keep_open() };
                table.unconfirmed.insert(id, unconfirmed);
            }
            _ => drop(table.unconfirmed.remove(&id)),
        }
    }

    /// Removes a claim, unless its position is looked up just now: then with the lock that is held meanwhile.
    pub(super) fn remove_idle(&self, claim: ClaimId) -> Result<Option<OwnClaim>, Arc<tokio::sync::Mutex<()>>> {
        let mut table = self.lock();
        let Some(own) = table.own.get(&claim) else { return Ok(None) };
        if own.looking.try_lock().is_err() {
            return Err(Arc::clone(&own.looking));
        }
        Ok(table.own.remove(&claim))
    }

    /// Whether a claim of ours is named by a fence that is not its own: the caller means another grant.
    pub(super) fn is_misnamed(&self, claim: ClaimId, fence: Option<Fence>) -> bool {
        self.lock().own.get(&claim).is_some_and(|own| !own.is_meant_by(fence))
    }
}

impl Table {
    /// Forgets a claim, and records why, in one step: in between it would be taken for one that was never made.
    pub(super) fn end(&mut self, claim: ClaimId, why: Gone) -> Option<OwnClaim> {
        let own = self.own.remove(&claim)?;
        let now = BootClock.now();
        if self.ended.len() >= 1024 {
            self.ended.retain(|_, ended| ended.until > now);
        }
        self.ended.insert(claim, Ended { why, until: now + own.entry.claim.lease });
        Some(own)
    }

    /// The claim is made again: why its last life ended does not matter any more.
    pub(super) fn clear_end(&mut self, claim: ClaimId) {
        self.ended.remove(&claim);
    }

    pub(super) fn end_reason(&self, claim: ClaimId) -> Option<Gone> {
        self.ended.get(&claim).filter(|ended| ended.until > BootClock.now()).map(|ended| ended.why)
    }

    /// The session that a claim without an answer would hang on.
    pub(super) fn unconfirmed_on(&self, claim: ClaimId) -> Option<LockSession> {
        self.unconfirmed.get(&claim).map(|unconfirmed| unconfirmed.session.clone())
    }

    /// It is known what became of the claim.
    pub(super) fn confirmed(&mut self, claim: ClaimId) {
        self.unconfirmed.remove(&claim);
    }

    /// The claims that hang on this session.
    pub(super) fn of_session(&self, session: &Arc<Session>) -> Vec<ClaimId> {
        self.own.iter().filter(|(_, own)| Arc::ptr_eq(&own.entry.session, session)).map(|(id, _)| *id).collect()
    }

    pub(super) fn waiting_mut(&mut self, claim: ClaimId) -> Option<&mut Waiting> {
        match &mut self.own.get_mut(&claim)?.stage {
            Stage::Waiting(waiting) => Some(waiting),
            Stage::Holding(_) => None,
        }
    }
}
