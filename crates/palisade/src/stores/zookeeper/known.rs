//! What this client knows of its own claims: where each stands, what it hangs on, and what it watches.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::recipe::Recipe;
use super::session::{Debt, Session};
use super::settings::Format;
use super::shared::{delete_in_the_end, fence_of};
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ByClaim, Claim, ClaimId, Gone, Kind, Mode};
use crate::stores::mailbox::Mailbox;

/// Where a claim's nodes are.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    /// The node of the name.
    pub(super) base: String,
    pub(super) guid: String,
    pub(super) recipe: Recipe,
    /// Of a semaphore: how many permits it wants, of how many.
    pub(super) permits: Option<(u32, u32)>,
}

/// The two nodes below that of a semaphore: who waits, and who holds.
pub(super) const LOCKS: &str = "locks";
pub(super) const LEASES: &str = "leases";

impl Seat {
    /// The node whose children are the line.
    pub(super) fn line(&self) -> Cow<'_, str> {
        if self.permits.is_some() { format!("{}/{LOCKS}", self.base).into() } else { Cow::Borrowed(&self.base) }
    }

    /// What the path of its node in the line begins with. The server appends its number.
    pub(super) fn wanted(&self) -> String {
        [&self.line(), "/", &self.recipe.prefix(&self.guid)].concat()
    }

    /// The node whose children are the permits that are held.
    pub(super) fn leases(&self) -> String {
        format!("{}/{LEASES}", self.base)
    }
}

/// Which line a claim stands in.
pub(super) fn recipe_of(format: Format, kind: Kind, mode: Mode) -> Recipe {
    match (format, kind, mode) {
        (Format::Kazoo, Kind::RwLock, Mode::Shared) => Recipe::KazooRead,
        (Format::Kazoo, Kind::RwLock, _) => Recipe::KazooWrite,
        (Format::Kazoo, _, _) => Recipe::KazooLock,
        (_, Kind::RwLock, Mode::Shared) => Recipe::Read,
        (_, Kind::RwLock, _) => Recipe::Write,
        (_, Kind::Mutex | Kind::Semaphore { .. }, _) => Recipe::Mutex,
    }
}

/// A claim of ours that is in the store, as far as we know.
pub(super) struct Known {
    pub(super) seat: Arc<Seat>,
    pub(super) session: Arc<Session>,
    pub(super) stage: Stage,
    /// How long it lives without renewal once it holds, and while it waits.
    pub(super) lease: Duration,
    pub(super) wait_lease: Duration,
    /// Until when it lives without another renewal.
    pub(super) until: Moment,
    /// One looks at a time: of two that find permits for the same claim, the second would find its place gone.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    /// Kept by whoever ends it, until its nodes are gone.
    pub(super) debt: Debt,
}

pub(super) enum Stage {
    Waiting(Waiting),
    Holding(Holding),
}

#[derive(Clone)]
pub(super) struct Waiting {
    /// Its node in the line, without the path.
    pub(super) child: String,
    /// The transaction that made its node.
    pub(super) made: i64,
    pub(super) mailbox: Arc<Mailbox>,
    /// What was asked for, to look where it stands.
    pub(super) claim: Arc<Claim>,
    /// The node whose end it is told of, and by which connection.
    pub(super) watches: Option<(String, u64)>,
    /// Of a semaphore: whether it is the one that waits for permits to be given back.
    pub(super) is_first: bool,
}

#[derive(Clone)]
pub(super) struct Holding {
    /// The nodes that it holds by, with their paths: one, or one for each permit.
    pub(super) nodes: Vec<String>,
    pub(super) fence: Fence,
    /// The connection on which its nodes are watched; 0 when they are not.
    pub(super) watched_on: u64,
}

impl Known {
    /// Takes up that it was renewed by a request of this time.
    pub(super) fn renewed(&mut self, sent: Moment) {
        self.until = match self.stage {
            Stage::Waiting(_) => sent + self.wait_lease,
            Stage::Holding(_) => self.session.counted_from() + self.lease.min(self.session.length()),
        };
    }

    /// Its nodes, with their paths.
    pub(super) fn nodes(&self) -> Cow<'_, [String]> {
        match &self.stage {
            Stage::Waiting(waiting) => vec![format!("{}/{}", self.seat.line(), waiting.child)].into(),
            Stage::Holding(holding) => Cow::Borrowed(&holding.nodes),
        }
    }

    /// One of its permits was taken away, and so it is lost: the others are given back.
    pub(super) fn give_up_the_rest(self) {
        if self.nodes().len() > 1 {
            tokio::spawn(async move { delete_in_the_end(Arc::downgrade(&self.session), &self.nodes()).await });
        }
    }

    /// Whether whoever names it by this fence means it. One that waits is named without a fence, or by the one that it will have.
    pub(super) fn is_meant_by(&self, fence: Option<Fence>) -> bool {
        let own = match &self.stage {
            Stage::Waiting(waiting) => fence_of(waiting.made),
            Stage::Holding(holding) => holding.fence,
        };
        fence.is_none_or(|fence| fence == own)
    }

    pub(super) fn fence(&self) -> Option<Fence> {
        match &self.stage {
            Stage::Waiting(_) => None,
            Stage::Holding(holding) => Some(holding.fence),
        }
    }
}

/// All claims of a client, and why those ended that are still asked about.
#[derive(Default)]
pub(super) struct Claims(Mutex<Book>);

#[derive(Default)]
pub(super) struct Book {
    pub(super) known: ByClaim<Known>,
    buried: ByClaim<(Gone, Moment)>,
    /// Whom a watch on a path tells, by session.
    watches: HashMap<(i64, String), Vec<ClaimId>>,
}

impl Claims {
    pub(super) fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Remembers why a claim ended, for as long as its owner may ask.
    pub(super) fn bury(&mut self, claim: ClaimId, why: Gone, lease: Duration) {
        let now = BootClock.now();
        if self.buried.len() >= 1024 {
            self.buried.retain(|_, (_, until)| *until > now);
        }
        self.buried.insert(claim, (why, now + lease));
    }

    pub(super) fn exhume(&mut self, claim: ClaimId) {
        self.buried.remove(&claim);
    }

    pub(super) fn grave(&self, claim: ClaimId) -> Option<Gone> {
        self.buried.get(&claim).filter(|(_, until)| *until > BootClock.now()).map(|(why, _)| *why)
    }

    /// Whether claims hang on this session.
    pub(super) fn uses(&self, session: &Session) -> bool {
        self.known.values().any(|known| std::ptr::eq(&*known.session, session))
    }

    /// The claims that hang on this session.
    pub(super) fn of_session(&self, session: &Session) -> Vec<ClaimId> {
        self.known.iter().filter(|(_, known)| std::ptr::eq(&*known.session, session)).map(|(id, _)| *id).collect()
    }

    /// Notes whom a watch is for. Before it is asked for, so that it cannot fire unheard.
    pub(super) fn watch(&mut self, session: i64, path: &str, claim: ClaimId) {
        let watchers = self.watches.entry((session, path.to_owned())).or_default();
        // Not each time: it would be a look at all of them for each of them.
        if watchers.len() >= 32 && watchers.len().is_power_of_two() {
            // Those who gave up: their watch fires once more, for nobody.
            watchers.retain(|watcher| self.known.contains_key(watcher));
        }
        if !watchers.contains(&claim) {
            watchers.push(claim);
        }
    }

    /// Whether a watch for this claim is set.
    pub(super) fn is_watched(&self, session: i64, path: &str, claim: ClaimId) -> bool {
        self.watches.get(&(session, path.to_owned())).is_some_and(|watchers| watchers.contains(&claim))
    }

    /// No watch was set for this claim after all.
    pub(super) fn is_not_watched(&mut self, session: i64, path: &str, claim: ClaimId) {
        let at = (session, path.to_owned());
        let Some(watchers) = self.watches.get_mut(&at) else { return };
        watchers.retain(|watcher| *watcher != claim);
        if watchers.is_empty() {
            self.watches.remove(&at);
        }
    }

    /// A watch has fired, which it does once.
    pub(super) fn fired(&mut self, session: i64, path: &str) -> Vec<ClaimId> {
        self.watches.remove(&(session, path.to_owned())).unwrap_or_default()
    }

    /// The watches of a session are gone with its connection.
    pub(super) fn unwatch(&mut self, session: i64) {
        self.watches.retain(|(of, _), _| *of != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_was_not_set_is_forgotten() {
        let (mut book, claims) = (Book::default(), [ClaimId::from_bits(1), ClaimId::from_bits(2)]);
        claims.iter().for_each(|claim| book.watch(7, "/a", *claim));
        book.is_not_watched(7, "/a", claims[0]);
        assert!(!book.is_watched(7, "/a", claims[0]) && book.is_watched(7, "/a", claims[1]));
        book.is_not_watched(7, "/a", claims[1]);
        book.is_not_watched(7, "/a", claims[1]);
        assert!(book.watches.is_empty(), "nothing is left behind");
    }
}
