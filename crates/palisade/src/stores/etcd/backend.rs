//! The parts that all verbs of one client share.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use tokio::runtime::Handle;

use super::batch::{self, Batcher};
use super::claims::{ClaimTable, OwnClaim};
use super::cleanup::PendingDeletes;
use super::client::cluster::{Cluster, Failed, Sent};
use super::client::proto::{TxnRequest, TxnResponse};
use super::client::spawn;
use super::client::watch::{Contact, Watches};
use super::key_pool::{KeyPool, LockKey};
use super::lines::Lines;
use super::sessions::{Leases, Session, Sessions};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{
    Capability, Change, ClaimId, ClaimRef, Extensions, LockKeys, NameKeys, Observation, Observe,
    Page, Ping, Query, ServerInfo, Standing,
};
use crate::stores::in_task::in_task;
use crate::stores::kit::session::release::detach;
use crate::stores::kit::session::sessions::OpensSessions;
use crate::stores::kit::session::{self as kit, SessionBackend};

pub(super) struct Backend {
    pub(super) lines: Lines,
    pub(super) sessions: Arc<Sessions>,
    pub(super) watches: Arc<Watches>,
    pub(super) claims: Arc<ClaimTable>,
    pub(super) keys: KeyPool,
    pub(super) deletes: PendingDeletes,
    batcher: OnceLock<Arc<Batcher>>,
}

impl Backend {
    pub(super) fn new(settings: Settings) -> Result<Arc<Backend>> {
        let cluster = Cluster::new(&settings.endpoints)?;
        let claims = Arc::new(ClaimTable::default());
        let told = Arc::clone(&claims);
        let watches = Watches::new(&cluster, move |contact| match (told.client(), contact) {
            (Some(client), Contact::Lost) => client.contact_lost(),
            (Some(client), Contact::Restored) => client.contact_regained(),
            (None, _) => {}
        });
        let backend = Arc::new(Backend {
            sessions: Sessions::new(Leases::new(&cluster, &claims)),
            lines: Lines::new(settings.names, cluster),
            watches,
            claims,
            keys: KeyPool::default(),
            deletes: PendingDeletes::default(),
            batcher: OnceLock::new(),
        });
        let weak = Arc::downgrade(&backend);
        backend.lines.cluster.on_rollback(move || {
            if let Some(backend) = weak.upgrade() {
                backend.all_ended();
            }
        });
        Ok(backend)
    }

    /// Sends the transaction of a claim or a release, with others if some are in flight. That of a
    /// claim is not sent once its caller has left.
    pub(super) async fn send(
        &self,
        key: &LockKey,
        txn: TxnRequest,
        claim: Option<ClaimId>,
    ) -> Result<(TxnResponse, Sent), Failed> {
        let line = key.line.clone();
        let request = batch::Request { line, txn, claim };
        let batcher = self
            .batcher
            .get_or_init(|| batch::batcher(&self.lines.cluster, &self.claims, &Handle::current()));
        let batcher = Arc::clone(batcher);
        // As a task: no other request waits for this one's caller to be polled.
        let ended = || Err(Error::unavailable("the client has ended").into());
        in_task(async move { batcher.ask(request).await.unwrap_or_else(ended) }).await
    }

    /// The key of a claim that was made here. Else it follows from the claim alone, so that a
    /// process that adopts it finds it.
    pub(super) fn key(&self, name: &Name, claim: ClaimId) -> Arc<LockKey> {
        let known = self
            .claims
            .slot(claim)
            .map(|slot| slot.key)
            .or_else(|| self.keys.of(claim));
        known.unwrap_or_else(|| LockKey::named(&self.lines.names, name, claim))
    }

    /// Forgets a claim, with its watches.
    pub(super) fn forget(&self, claim: ClaimId) {
        let own = self.claims.lock().remove(claim);
        own.iter().for_each(|own| self.close_watches(own));
    }

    pub(super) fn close_watches(&self, own: &OwnClaim) {
        own.watches().for_each(|watch| self.watches.close(watch));
    }

    /// A session has ended, and with it all its claims.
    pub(super) fn session_ended(&self, session: &Session) {
        session.end();
        kit::session_ended(self, session.id);
    }

    /// The server has lost the lease of one of these sessions: finds out which.
    pub(super) async fn find_ended(&self, sessions: &[&Arc<Session>]) -> Result<(), Failed> {
        for session in self.sessions.ended_of(sessions).await? {
            self.session_ended(&session);
        }
        Ok(())
    }

    /// The cluster has lost what it confirmed, and with it all claims. Their sessions are ended, so
    /// that a key which has come back is not kept alive by us.
    fn all_ended(self: &Arc<Self>) {
        self.keys.clear();
        for session in self.sessions.end_all() {
            self.session_ended(&session);
            let sessions = Arc::clone(&self.sessions);
            spawn(async move { sessions.system.close(session).await });
        }
    }
}

impl kit::Entries for Backend {
    type Own = OwnClaim;
    type Opens = Leases;
    type Failed = Failed;

    fn claims(&self) -> &ClaimTable {
        &self.claims
    }

    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    fn dropped(&self, own: OwnClaim) {
        self.close_watches(&own);
        // Its key is gone, but not by our own deletion: it is not used again.
        self.keys.discard(&[own.claim.id]);
    }
}

#[async_trait]
impl SessionBackend for Backend {
    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.lines.inspect(query).await
    }

    async fn change(
        self: &Arc<Self>,
        claim: &ClaimRef,
        to: Change,
        _: &Capability,
    ) -> Result<Standing> {
        match to {
            Change::Downgrade => self.downgrade(claim).await,
            Change::Proclaim(value) => self.proclaim(claim, &value).await,
            Change::Detach => detach(self, claim).await,
        }
    }

    fn extensions(self: &Arc<Self>) -> Extensions<'_> {
        Extensions {
            observe: Some(self),
            lock_keys: Some(self),
            name_keys: Some(self),
            ping: Some(self),
            clear_marks: Some(self),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Observe for Arc<Backend> {
    async fn observe(&self, name: &Name) -> Result<Observation> {
        Backend::observe(self, name).await
    }
}

impl NameKeys for Arc<Backend> {
    fn key(&self, name: &Name) -> Result<String> {
        Ok(self.lines.names.line(name))
    }
}

#[async_trait]
impl Ping for Arc<Backend> {
    async fn ping(&self) -> Result<ServerInfo> {
        // Finds missing rights to read locks.
        self.inspect(&Query::Leader(Name::of_ping())).await?;
        self.lines.cluster.server_info().await
    }
}

impl LockKeys for Arc<Backend> {
    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        self.claims.slot(claim)?.key.end()
    }
}
