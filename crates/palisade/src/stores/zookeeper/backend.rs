//! What the verbs of one client share, and what it does when its sessions change.

use std::sync::{Arc, Weak};

use async_trait::async_trait;

use super::claims::{ClaimTable, Entry, Holding, OwnClaim, Stage, Unconfirmed, Waiting};
use super::cleanup::Leftover;
use super::client::{Failed, Session, SessionListener};
use super::inspect::Listing;
use super::parents::Parents;
use super::sessions::{ReadingSession, Servers, Sessions};
use super::settings::Settings;
use super::watches::Watches;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimId, Extensions, Grant, LockKeys, NameKeys, Page, Ping, Query, ServerInfo};
use crate::stores::kit::session::wait::look_soon;
use crate::stores::kit::session::watch_held::{verify_soon, watch_soon};
use crate::stores::kit::session::{Entries, SessionBackend, session_ended};

/// One client's locks.
pub(super) struct Backend {
    pub(super) settings: Settings,
    pub(super) sessions: Arc<Sessions>,
    reading: ReadingSession,
    pub(super) claims: ClaimTable,
    pub(super) unconfirmed: Unconfirmed,
    pub(super) watches: Watches,
    pub(super) parents: Parents,
    pub(super) listing: Listing,
}

impl Backend {
    pub(super) fn new(settings: Settings) -> Arc<Backend> {
        Arc::new_cyclic(|this: &Weak<Backend>| {
            let sessions = Sessions::new(Servers::new(&settings.client, this.clone()));
            Backend {
                settings,
                sessions,
                reading: ReadingSession::default(),
                claims: ClaimTable::default(),
                unconfirmed: Unconfirmed::default(),
                watches: Watches::default(),
                parents: Parents::default(),
                listing: Listing::default(),
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
        watch_soon(self, entry.claim.id);
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
    pub(super) fn watch_path(&self, session: &Session, path: &str, claim: ClaimId) {
        self.watches.add(session.id(), path, claim, |claim| {
            self.claims.is_wanted(claim)
        });
    }

    /// Has claims asked for again whose watch has fired or is lost, if they have no node of their
    /// own: in the format plain.
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

impl Entries for Backend {
    type Own = OwnClaim;
    type Opens = Servers;
    type Failed = Failed;

    fn claims(&self) -> &ClaimTable {
        &self.claims
    }

    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// If one of its permits was taken away, it is lost: the others are given back.
    fn dropped(&self, own: OwnClaim) {
        let nodes = own.nodes().into_owned();
        if nodes.len() > 1 {
            Leftover::Nodes(nodes).delete_later(&own.entry.session);
        }
    }
}

#[async_trait]
impl SessionBackend for Backend {
    async fn inspect(&self, query: &Query) -> Result<Page> {
        Backend::inspect(self, query).await
    }

    fn extensions(self: &Arc<Self>) -> Extensions<'_> {
        Extensions {
            lock_keys: Some(&**self),
            name_keys: Some(&**self),
            ping: Some(&**self),
            ..Extensions::default()
        }
    }
}

impl NameKeys for Backend {
    fn key(&self, name: &Name) -> Result<String> {
        self.settings.dir(name)
    }
}

#[async_trait]
impl Ping for Backend {
    async fn ping(&self) -> Result<ServerInfo> {
        // Opens a session, and finds missing rights to read locks.
        self.inspect(&Query::Leader(Name::of_ping())).await?;
        Ok(self.settings.client.server_info().await)
    }
}

impl LockKeys for Backend {
    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        match &self.claims.lock().own.get(&claim)?.stage {
            Stage::Holding(holding) => holding.nodes.first().cloned(),
            Stage::Waiting(_) => None,
        }
    }
}

impl SessionListener for Backend {
    fn watch_fired(self: Arc<Self>, session: &Arc<Session>, path: &str) {
        for claim in self.watches.fired(session.id(), path) {
            let mut claims = self.claims.lock();
            let Some(own) = claims.own.get_mut(&claim) else {
                drop(claims);
                self.ask_again([claim]);
                continue;
            };
            match &mut own.stage {
                Stage::Waiting(_) => {
                    let claim = Arc::clone(&own.entry.claim);
                    look_soon(&self, &mut claims, &claim);
                }
                Stage::Holding(holding) if holding.nodes.iter().any(|node| node == path) => {
                    holding.watched_on = 0;
                    verify_soon(&self, claim);
                }
                Stage::Holding(_) => {}
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
        for claim in self.claims.of_session(session.id()) {
            let mut claims = self.claims.lock();
            let Some(own) = claims.own.get_mut(&claim) else {
                continue;
            };
            match &mut own.stage {
                Stage::Waiting(_) => {
                    let claim = Arc::clone(&own.entry.claim);
                    look_soon(&self, &mut claims, &claim);
                }
                Stage::Holding(holding) => holding.watched_on = 0,
            }
        }
        if let Some(client) = self.claims.client() {
            client.contact_regained();
        }
    }

    fn ended(self: Arc<Self>, session: &Arc<Session>) {
        let watched = self.watches.lost(session.id());
        let claims = self.claims.of_session(session.id());
        session_ended(&*self, session.id());
        self.ask_again(watched.into_iter().filter(|claim| !claims.contains(claim)));
        self.sessions.forget(|other| other.is_gone());
    }

    fn given_up(self: Arc<Self>, session: i64) {
        self.ask_again(self.watches.lost(session));
    }
}
