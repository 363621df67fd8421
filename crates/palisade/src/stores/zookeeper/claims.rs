//! This client's own claims: where each stands, and the session that it hangs on.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::client::{Failed, KeepOpen};
use super::queue_rules::{self, Recipe};
use super::sessions::LockSession;
use super::settings::{Format, Settings};
use super::value;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::Moment;
use crate::store::{ByClaim, Claim, ClaimId, Grant, Kind, Mode};
use crate::stores::kit::session::claims as kit;

/// Where a claim's nodes are.
#[derive(Clone, Debug)]
pub(super) struct ClaimLocation {
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

impl ClaimLocation {
    pub(super) fn of(settings: &Settings, claim: &Claim) -> Result<ClaimLocation> {
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
        Ok(ClaimLocation {
            base: settings.dir(&claim.name)?,
            guid: queue_rules::guid(claim.id),
            recipe,
            permits,
        })
    }

    /// The node whose children are the line.
    pub(super) fn line(&self) -> Cow<'_, str> {
        if self.permits.is_some() {
            format!("{}/{LOCKS}", self.base).into()
        } else {
            Cow::Borrowed(&self.base)
        }
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
    pub(super) location: Arc<ClaimLocation>,
    pub(super) session: LockSession,
}

impl Entry {
    pub(super) fn parts(&self) -> (&Arc<Claim>, &ClaimLocation, &LockSession) {
        (&self.claim, &self.location, &self.session)
    }

    /// The value of our node. A claim that may be carried elsewhere says how to take its session
    /// up, to the owner of the grant.
    pub(super) fn value(&self) -> Vec<u8> {
        let password = self.claim.detachable.then(|| self.session.password());
        value::of(&self.claim, password.as_deref(), None)
    }

    pub(super) fn grant(&self, fence: Fence) -> Grant {
        Grant {
            fence,
            lease: self.session.lease(),
        }
    }
}

/// A claim of ours that is in the store, as far as we know.
pub(super) struct OwnClaim {
    pub(super) entry: Entry,
    pub(super) stage: Stage,
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
            Stage::Waiting(waiting) => vec![self.entry.location.node(&waiting.child)].into(),
            Stage::Holding(holding) => Cow::Borrowed(&holding.nodes),
        }
    }
}

pub(super) fn fence_of(czxid: i64) -> Fence {
    u64::try_from(czxid)
        .ok()
        .and_then(Fence::new)
        .unwrap_or(Fence::NONE)
}

impl kit::OwnClaim for OwnClaim {
    type Session = LockSession;

    fn claim(&self) -> &Arc<Claim> {
        &self.entry.claim
    }

    fn session(&self) -> &LockSession {
        &self.entry.session
    }

    fn session_id(&self) -> i64 {
        self.entry.session.id()
    }

    fn fence(&self) -> Fence {
        match &self.stage {
            Stage::Waiting(waiting) => fence_of(waiting.czxid),
            Stage::Holding(holding) => holding.fence,
        }
    }

    fn stage(&self, _: Moment) -> kit::Stage {
        match &self.stage {
            Stage::Waiting(_) => kit::Stage::Waiting,
            Stage::Holding(holding) if holding.watched_on == self.entry.session.connection() => {
                kit::Stage::Held
            }
            Stage::Holding(_) => kit::Stage::Unverified,
        }
    }

    fn grant(&self, _: Moment) -> Grant {
        self.entry.grant(self.fence())
    }
}

/// All claims of a client.
pub(super) type ClaimTable = kit::ClaimTable<OwnClaim>;

impl ClaimTable {
    /// Notes where a claim stands.
    pub(super) fn insert(&self, entry: &Entry, stage: Stage) {
        let (entry, keep_open) = (entry.clone(), entry.session.keep_open());
        let own = OwnClaim {
            entry,
            stage,
            keep_open,
        };
        self.lock().own.insert(own.entry.claim.id, own);
    }

    /// Notes that a waiting claim is told of the end of a node.
    pub(super) fn is_told_of(&self, claim: ClaimId, watched: Watched) {
        if let Some(Stage::Waiting(waiting)) =
            self.lock().own.get_mut(&claim).map(|own| &mut own.stage)
        {
            waiting.watches = Some(watched);
        }
    }
}

/// Claims that were sent without an answer: they may be there or not.
#[derive(Default)]
pub(super) struct Unconfirmed(Mutex<ByClaim<Sent>>);

/// The session that a claim was sent on, which stays open.
struct Sent {
    session: LockSession,
    _open: KeepOpen,
}

impl Unconfirmed {
    fn lock(&self) -> MutexGuard<'_, ByClaim<Sent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up whether an answer says what became of a claim.
    pub(super) fn take_up<T>(&self, entry: &Entry, answer: &Result<T, Failed>) {
        match answer {
            Err(Failed::Unsure(_)) => {
                let (session, _open) = (entry.session.clone(), entry.session.keep_open());
                self.lock().insert(entry.claim.id, Sent { session, _open });
            }
            _ => self.confirmed(entry.claim.id),
        }
    }

    /// It is known what became of the claim.
    pub(super) fn confirmed(&self, claim: ClaimId) {
        self.lock().remove(&claim);
    }

    /// The session that the claim would hang on.
    pub(super) fn session_of(&self, claim: ClaimId) -> Option<LockSession> {
        self.lock().get(&claim).map(|sent| sent.session.clone())
    }
}
