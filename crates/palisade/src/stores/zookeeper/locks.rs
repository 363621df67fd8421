//! What the verbs of one client share, and what it does when its sessions change.

use std::sync::{Arc, Weak};

use super::claims::{ClaimTable, Entry, Holding, Stage, Waiting};
use super::client::{Session, SessionListener};
use super::holder_watches::HolderWatches;
use super::janitor::Janitor;
use super::parents::Parents;
use super::sessions::Sessions;
use super::settings::Settings;
use super::watches::Watches;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{Event, Gone, Grant};

/// One client's locks.
pub(super) struct Locks {
    pub(super) settings: Settings,
    pub(super) sessions: Arc<Sessions>,
    pub(super) claims: Arc<ClaimTable>,
    pub(super) watches: Arc<Watches>,
    pub(super) holders: Arc<HolderWatches>,
    pub(super) parents: Parents,
    pub(super) janitor: Janitor,
}

impl Locks {
    pub(super) fn new(settings: Settings) -> Arc<Locks> {
        Arc::new_cyclic(|this: &Weak<Locks>| {
            let sessions = Sessions::new(Arc::clone(&settings.client), this.clone());
            let (claims, watches): (Arc<ClaimTable>, Arc<Watches>) = Default::default();
            let holders = HolderWatches::new(&claims, &watches);
            Locks { settings, sessions, claims, watches, holders, parents: Parents::default(), janitor: Janitor::default() }
        })
    }

    /// A session to read by: that of a claim, or one of its own.
    pub(super) async fn any_session(&self) -> Result<Arc<Session>> {
        let used = {
            let table = self.claims.lock();
            let mut sessions = table.own.values().map(|own| &own.entry.session);
            sessions.find(|session| !session.is_gone()).map(|session| Arc::clone(session))
        };
        match used {
            Some(session) => Ok(session),
            None => self.sessions.to_read().await,
        }
    }

    /// Notes that a claim holds by these nodes.
    pub(super) fn holds(self: &Arc<Self>, entry: &Entry, nodes: Vec<String>, fence: Fence) -> Grant {
        let stage = Stage::Holding(Holding { nodes, fence, watched_on: 0 });
        self.lives_until(self.claims.insert(entry, stage, BootClock.now()));
        self.holders.watch_soon(entry.claim.id);
        entry.grant(fence)
    }

    /// Notes that a claim waits, by this node of its line.
    pub(super) fn waits(self: &Arc<Self>, entry: &Entry, child: &str, czxid: i64, sent: Moment) {
        let mailbox = self.claims.lock().waiting_mut(entry.claim.id).map(|waiting| Arc::clone(&waiting.mailbox));
        let waiting = Waiting { child: child.to_owned(), czxid, mailbox: mailbox.unwrap_or_default(), watches: None };
        self.lives_until(self.claims.insert(entry, Stage::Waiting(waiting), sent));
    }
}

impl SessionListener for Locks {
    fn watch_fired(self: Arc<Self>, session: &Arc<Session>, path: &str) {
        for claim in self.watches.fired(session.id(), path) {
            let mut table = self.claims.lock();
            match table.own.get_mut(&claim).map(|own| &mut own.stage) {
                Some(Stage::Waiting(waiting)) => self.look_again(claim, waiting),
                Some(Stage::Holding(holding)) if holding.nodes.iter().any(|node| node == path) => {
                    holding.watched_on = 0;
                    self.holders.check_later(claim);
                }
                _ => {}
            }
        }
    }

    fn connection_lost(self: Arc<Self>, session: &Arc<Session>) {
        self.watches.lost(session.id());
        self.claims.events.push(Event::CutOff);
    }

    fn reconnected(self: Arc<Self>, session: &Arc<Session>) {
        // What was watched may have happened meanwhile.
        let mut table = self.claims.lock();
        for claim in table.of_session(session) {
            match table.own.get_mut(&claim).map(|own| &mut own.stage) {
                Some(Stage::Waiting(waiting)) => self.look_again(claim, waiting),
                Some(Stage::Holding(holding)) => holding.watched_on = 0,
                None => {}
            }
        }
        drop(table);
        self.claims.events.push(Event::Restored);
    }

    fn ended(self: Arc<Self>, session: &Arc<Session>) {
        self.watches.lost(session.id());
        let claims = self.claims.lock().of_session(session);
        for claim in claims {
            self.claims.end(claim, Gone::SessionEnded);
        }
        self.sessions.ended(session);
    }

    fn given_up(self: Arc<Self>, session: i64) {
        self.watches.lost(session);
    }
}
