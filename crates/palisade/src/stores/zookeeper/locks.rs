//! What the verbs of one client share, and what it does when its sessions change.

use std::sync::{Arc, Weak};

use super::claims::{ClaimTable, Entry, Holding, Stage, Unconfirmed, Waiting};
use super::client::{Session, SessionListener};
use super::holder_watches::HolderWatches;
use super::inspect::Listing;
use super::parents::Parents;
use super::sessions::{ReadingSession, Servers, Sessions};
use super::settings::Settings;
use super::watches::Watches;
use crate::error::Result;
use crate::fence::Fence;
use crate::store::{ClaimId, Gone, Grant};
use crate::stores::kit::session::holders::watch_soon;

/// One client's locks.
pub(super) struct Locks {
    pub(super) settings: Settings,
    pub(super) sessions: Arc<Sessions>,
    reading: ReadingSession,
    pub(super) claims: Arc<ClaimTable>,
    pub(super) unconfirmed: Unconfirmed,
    pub(super) watches: Arc<Watches>,
    pub(super) holders: Arc<HolderWatches>,
    pub(super) parents: Parents,
    pub(super) listing: Listing,
}

impl Locks {
    pub(super) fn new(settings: Settings) -> Arc<Locks> {
        Arc::new_cyclic(|this: &Weak<Locks>| {
            let sessions = Sessions::new(Servers::new(&settings.client, this.clone()));
            let (claims, watches): (Arc<ClaimTable>, Arc<Watches>) = Default::default();
            let holders = HolderWatches::new(&claims, &watches);
            let (reading, unconfirmed, parents, listing) = Default::default();
            Locks {
                settings,
                sessions,
                reading,
                claims,
                unconfirmed,
                watches,
                holders,
                parents,
                listing,
            }
        })
    }

    /// A session to read by: that of a claim, or one of its own.
    pub(super) async fn any_session(&self) -> Result<Arc<Session>> {
        let used = {
            let table = self.claims.lock();
            let mut sessions = table.own.values().map(|own| &own.entry.session);
            sessions
                .find(|session| !session.is_gone())
                .map(|session| Arc::clone(session))
        };
        match used {
            Some(session) => Ok(session),
            None => self.reading.get(&self.sessions).await,
        }
    }

    /// Notes that a claim holds by these nodes.
    pub(super) fn holds(
        self: &Arc<Self>,
        entry: &Entry,
        nodes: Vec<String>,
        fence: Fence,
    ) -> Grant {
        self.claims.insert(
            entry,
            Stage::Holding(Holding {
                nodes,
                fence,
                watched_on: 0,
            }),
        );
        watch_soon(&self.holders, entry.claim.id);
        entry.grant(fence)
    }

    /// Notes that a claim waits, by this node of its line.
    pub(super) fn waits(&self, entry: &Entry, child: &str, czxid: i64) {
        self.claims.insert(
            entry,
            Stage::Waiting(Waiting {
                child: child.to_owned(),
                czxid,
                watches: None,
            }),
        );
    }

    /// Notes that a watch on this path is for this claim.
    pub(super) fn watch(&self, session: &Session, path: &str, claim: ClaimId) {
        self.watches.add(session.id(), path, claim, |claim| {
            self.claims.is_wanted(claim)
        });
    }

    /// Has claims asked for again whose watch has fired or is lost, if they have no node of their own: in the format plain.
    fn ask_again(&self, claims: impl IntoIterator<Item = ClaimId>) {
        let Some(client) = self.claims.client() else {
            return;
        };
        for claim in claims {
            let is_own = self.claims.lock().own.contains_key(&claim);
            if !is_own {
                client.ask_again(claim);
            }
        }
    }
}

impl SessionListener for Locks {
    fn watch_fired(self: Arc<Self>, session: &Arc<Session>, path: &str) {
        for claim in self.watches.fired(session.id(), path) {
            let mut table = self.claims.lock();
            match table.own.get_mut(&claim).map(|own| &mut own.stage) {
                Some(Stage::Waiting(_)) => self.look_again(claim),
                Some(Stage::Holding(holding)) if holding.nodes.iter().any(|node| node == path) => {
                    holding.watched_on = 0;
                    self.holders.check_later(claim);
                }
                Some(Stage::Holding(_)) => {}
                None => {
                    drop(table);
                    self.ask_again([claim]);
                }
            }
        }
    }

    fn connection_lost(self: Arc<Self>, session: &Arc<Session>) {
        self.ask_again(self.watches.lost(session.id()));
        if let Some(client) = self.claims.client() {
            client.contact_lost();
        }
    }

    fn reconnected(self: Arc<Self>, session: &Arc<Session>) {
        // What was watched may have happened meanwhile.
        let claims = self.claims.of_session(session.id());
        let mut table = self.claims.lock();
        for claim in claims {
            match table.own.get_mut(&claim).map(|own| &mut own.stage) {
                Some(Stage::Waiting(_)) => self.look_again(claim),
                Some(Stage::Holding(holding)) => holding.watched_on = 0,
                None => {}
            }
        }
        drop(table);
        if let Some(client) = self.claims.client() {
            client.contact_regained();
        }
    }

    fn ended(self: Arc<Self>, session: &Arc<Session>) {
        let watched = self.watches.lost(session.id());
        let claims = self.claims.of_session(session.id());
        for claim in &claims {
            self.claims.end(*claim, Gone::SessionEnded);
        }
        self.ask_again(watched.into_iter().filter(|claim| !claims.contains(claim)));
        self.sessions.forget(|other| other.is_gone());
    }

    fn given_up(self: Arc<Self>, session: i64) {
        self.ask_again(self.watches.lost(session));
    }
}
