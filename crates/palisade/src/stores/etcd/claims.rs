//! What this client knows of its own claims: where each stands, what it hangs on, and which watches it has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::key_pool::{KeyPool, LockKey};
use super::queue_rules::Blocker;
use super::session::Session;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ByClaim, ClaimId, Gone, Kind, Lease, Mode};
use crate::stores::mailbox::Mailbox;

/// A claim of ours that is in the store, as far as we know.
pub(super) struct Known {
    pub(super) seat: Arc<LockKey>,
    /// When its key was made: its place in line, and its fence.
    pub(super) revision: i64,
    /// What its key hangs on.
    pub(super) session: Arc<Session>,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) lease: Duration,
    /// Until when it lives without another renewal.
    pub(super) until: Moment,
    /// The end of its minimum hold.
    pub(super) closed_until: Option<Moment>,
    /// Whether its session is as long as the minimum hold. Such a session is never renewed: it must end in time if we are gone.
    pub(super) is_span: bool,
    /// Set while it waits.
    pub(super) waiting: Option<Waiting>,
    /// Whether it holds with the short session of a waiter still: its next renewal moves it to the full one.
    pub(super) is_short: bool,
    /// The watch of its own key.
    pub(super) own_watch: Option<i64>,
    /// Whether that watch is open now.
    pub(super) opened: bool,
    /// Whether the key was seen after the watch was opened: then only the watch can tell of its end.
    pub(super) verified: bool,
}

pub(super) struct Waiting {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) blocker: Blocker,
    pub(super) watch: Option<i64>,
    /// The store's revision when the line was last read.
    pub(super) seen: i64,
    /// Whether it waits for a holder, and not only for another waiter.
    pub(super) is_near: bool,
    /// Whether the watch has told of something since.
    pub(super) told: bool,
    /// When the last of what the watch has told of was.
    pub(super) heard: i64,
}

impl Known {
    /// Takes up that its session was confirmed.
    pub(super) fn confirmed(&mut self) {
        self.until = (self.session.confirmed_at() + self.lease).min(self.session.end_of());
    }

    /// What it may count on once it was seen, from a question on that was asked then: its session, or as much of its lease as its
    /// minimum hold has left.
    pub(super) fn lease_from(&self, asked: Moment) -> Lease {
        if !self.is_span {
            return self.session.lease();
        }
        Lease::of(self.lease.min(self.session.end_of().since(asked)))
    }

    /// Whether its minimum hold is so nearly over that it must move to a session which is renewed.
    pub(super) fn needs_more(&self, now: Moment) -> bool {
        self.is_span && self.session.end_of().since(now) < self.lease * 2
    }

    /// Its watches, which nobody needs any more.
    pub(super) fn watches(&self) -> impl Iterator<Item = i64> {
        self.own_watch.into_iter().chain(self.waiting.as_ref().and_then(|waiting| waiting.watch))
    }
}

/// All claims of a client, and why those ended that are still asked about.
#[derive(Default)]
pub(super) struct Claims(Mutex<Book>);

#[derive(Default)]
pub(super) struct Book {
    pub(super) known: ByClaim<Known>,
    pub(super) seats: KeyPool,
    ended: HashMap<ClaimId, (Gone, Moment)>,
}

impl Claims {
    pub(super) fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Remembers why a claim ended, for as long as its owner may ask.
    pub(super) fn record_end(&mut self, claim: ClaimId, why: Gone, lease: Duration) {
        let now = BootClock.now();
        if self.ended.len() >= 1024 {
            self.ended.retain(|_, (_, until)| *until > now);
        }
        self.ended.insert(claim, (why, now + lease));
    }

    pub(super) fn clear_end(&mut self, claim: ClaimId) {
        self.ended.remove(&claim);
    }

    pub(super) fn end_reason(&self, claim: ClaimId) -> Option<Gone> {
        self.ended.get(&claim).filter(|(_, until)| *until > BootClock.now()).map(|(why, _)| *why)
    }

    /// Takes up that the sessions of these claims were confirmed for them.
    pub(super) fn confirmed(&mut self, claims: &[ClaimId]) {
        for claim in claims {
            if let Some(known) = self.known.get_mut(claim) {
                known.confirmed();
            }
        }
    }

    /// The claims of this session whose time was over before.
    pub(super) fn over(&self, session: &Session, before: Moment) -> Vec<(ClaimId, Arc<LockKey>, i64)> {
        let of_session = self.known.iter().filter(|(_, known)| std::ptr::eq(&*known.session, session));
        let over = of_session.filter(|(_, known)| known.until < before);
        over.map(|(claim, known)| (*claim, Arc::clone(&known.seat), known.revision)).collect()
    }

    /// Whether this claim, made at this revision, is one of ours.
    pub(super) fn knows(&self, claim: ClaimId, revision: i64) -> bool {
        self.known.get(&claim).is_some_and(|known| known.revision == revision)
    }

    /// Whether claims hang on this session.
    pub(super) fn uses(&self, session: &Session) -> bool {
        self.known.values().any(|known| std::ptr::eq(&*known.session, session))
    }

    /// The claims that hang on this session.
    pub(super) fn of_session(&self, session: &Session) -> Vec<ClaimId> {
        self.known.iter().filter(|(_, known)| std::ptr::eq(&*known.session, session)).map(|(id, _)| *id).collect()
    }
}
