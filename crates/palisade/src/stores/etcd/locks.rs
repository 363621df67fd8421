//! The parts that all verbs of one client share, and how claims end without their owner.

use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::batch::{self, Batcher};
use super::claims::{ClaimTable, OwnClaim, Slot};
use super::client::cluster::{Cluster, Failed, Resend, Sent};
use super::client::names::Names;
use super::client::proto::{TXN, TxnRequest, TxnResponse};
use super::client::watch::{Contact, Watches};
use super::client::{in_task, spawn, txn};
use super::entry::Snapshot;
use super::key_pool::{KeyPool, LockKey};
use super::pending_deletes::PendingDeletes;
use super::session::{Leases, Session, Sessions};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{ClaimId, Gone};
use crate::stores::kit::session::holders::FreshHolders;
use crate::stores::kit::session::sessions::OpensSessions;

pub(super) struct Locks {
    pub(super) names: Names,
    pub(super) cluster: Arc<Cluster>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) watches: Arc<Watches>,
    pub(super) claims: Arc<ClaimTable>,
    pub(super) keys: KeyPool,
    /// Claims whose keys are not watched yet.
    pub(super) fresh: FreshHolders,
    pub(super) deletes: PendingDeletes,
    batcher: OnceLock<Arc<Batcher>>,
    others: Semaphore,
}

/// How many transactions beside claims and releases are in flight at the most. Others wait, in order.
const OTHERS: usize = 64;

impl Locks {
    pub(super) fn new(settings: Settings) -> Result<Arc<Locks>> {
        let cluster = Cluster::new(&settings.endpoints)?;
        let claims = Arc::new(ClaimTable::default());
        let told = Arc::clone(&claims);
        let watches = Watches::new(&cluster, move |contact| match (told.client(), contact) {
            (Some(client), Contact::Lost) => client.contact_lost(),
            (Some(client), Contact::Restored) => client.contact_regained(),
            (None, _) => {}
        });
        let locks = Arc::new(Locks {
            names: settings.names,
            sessions: Sessions::new(Leases::new(&cluster, &claims)),
            cluster,
            watches,
            claims,
            keys: KeyPool::default(),
            fresh: FreshHolders::default(),
            deletes: PendingDeletes::default(),
            batcher: OnceLock::new(),
            others: Semaphore::new(OTHERS),
        });
        let weak = Arc::downgrade(&locks);
        locks.cluster.on_rollback(move || {
            if let Some(locks) = weak.upgrade() {
                locks.all_ended();
            }
        });
        Ok(locks)
    }

    pub(super) async fn txn(&self, txn: TxnRequest, resend: Resend) -> Result<TxnResponse, Failed> {
        let _permit = self.others.acquire().await;
        self.cluster.call(TXN, txn, resend).await
    }

    /// Sends the request of a claim, with others if some are in flight; unless its caller has left before.
    pub(super) async fn send_claim(
        &self,
        claim: ClaimId,
        key: &LockKey,
        txn: TxnRequest,
    ) -> Result<(TxnResponse, Sent), Failed> {
        let request = batch::Request {
            line: key.line.clone(),
            txn,
            resend: Resend::IfUnsure,
            claim: Some(claim),
        };
        self.send(request).await
    }

    /// Sends the deletion of a claim's key, with others if some are in flight.
    pub(super) async fn send_release(
        &self,
        key: &LockKey,
        txn: TxnRequest,
    ) -> Result<(TxnResponse, Sent), Failed> {
        let request = batch::Request {
            line: key.line.clone(),
            txn,
            resend: Resend::Never,
            claim: None,
        };
        self.send(request).await
    }

    async fn send(&self, request: batch::Request) -> Result<(TxnResponse, Sent), Failed> {
        let batcher = self
            .batcher
            .get_or_init(|| batch::batcher(&self.cluster, &self.claims, &Handle::current()));
        let batcher = Arc::clone(batcher);
        // As a task: no other request waits for this one's caller to be polled.
        let sending = in_task(async move { Ok(batcher.ask(request).await) });
        sending
            .await?
            .unwrap_or_else(|| Err(Error::unavailable("the client has ended").into()))
    }

    /// Reads a whole line.
    pub(super) async fn read_line(&self, line: &[u8]) -> Result<Snapshot, Failed> {
        let response = self
            .txn(txn::always(vec![txn::read_line(line)]), Resend::IfUnsure)
            .await?;
        Ok(Snapshot::of(response)?)
    }

    /// Deletes a key, if it was created at this revision; whether it was.
    pub(super) async fn delete(&self, key: &[u8], revision: i64) -> Result<bool, Failed> {
        let deleting = txn::only_if(txn::created_at(key, revision), txn::delete(key));
        Ok(self.txn(deleting, Resend::IfUnsure).await?.succeeded)
    }

    /// The key of a claim that was made here. Else it follows from the claim alone, so that a process that adopts it finds it.
    pub(super) fn key(&self, name: &Name, claim: ClaimId) -> Arc<LockKey> {
        let known = self
            .claims
            .slot(claim)
            .map(|slot| slot.key)
            .or_else(|| self.keys.of(claim));
        known.unwrap_or_else(|| LockKey::named(&self.names, name, claim))
    }

    /// The end of the key of a claim that is in the store.
    pub(super) fn key_end(&self, claim: ClaimId) -> Option<String> {
        self.claims.slot(claim)?.key.end()
    }

    /// Attaches a key to another session, which must last as long as the claim counts on the present one.
    pub(super) async fn move_key(&self, slot: &Slot, to: &Arc<Session>) -> Result<(), Failed> {
        let moving = txn::only_if(slot.is_there(), txn::move_to(&slot.key.bytes, to.id));
        if self.txn(moving, Resend::IfUnsure).await?.succeeded {
            Ok(())
        } else {
            Err(gone().into())
        }
    }

    /// Forgets a claim, with its watches.
    pub(super) fn forget(&self, claim: ClaimId) -> Option<OwnClaim> {
        let own = self.claims.lock().own.remove(&claim)?;
        own.watches().for_each(|watch| self.watches.close(watch));
        Some(own)
    }

    /// Forgets a claim that has ended, and remembers why.
    pub(super) fn record_end(&self, claim: ClaimId, why: Gone) -> Option<OwnClaim> {
        let own = self.claims.lock().end(claim, why);
        self.clean_up(claim, own)
    }

    fn clean_up(&self, claim: ClaimId, own: Option<OwnClaim>) -> Option<OwnClaim> {
        let own = own?;
        own.watches().for_each(|watch| self.watches.close(watch));
        // Its key is gone, but not by our own deletion: it is not used again.
        self.keys.discard(&[claim]);
        Some(own)
    }

    /// A claim has ended without its owner, which is told.
    pub(super) fn ended(&self, claim: ClaimId, why: Gone) {
        let own = self.claims.end(claim, why);
        drop(self.clean_up(claim, own));
    }

    /// A session has ended, and with it all its claims.
    pub(super) fn session_ended(&self, session: &Session) {
        session.end();
        for claim in self.claims.of_session(session.id) {
            self.ended(claim, Gone::SessionEnded);
        }
    }

    /// The server has lost the lease of one of these sessions: finds out which.
    pub(super) async fn find_ended(&self, sessions: &[&Arc<Session>]) -> Result<(), Failed> {
        for session in self.sessions.ended_of(sessions).await? {
            self.session_ended(&session);
        }
        Ok(())
    }

    /// The cluster has lost what it confirmed, and with it all claims. Their sessions are ended, so that a key which has come
    /// back is not kept alive by us.
    fn all_ended(self: &Arc<Self>) {
        self.keys.clear();
        for session in self.sessions.end_all() {
            self.session_ended(&session);
            let sessions = Arc::clone(&self.sessions);
            spawn(async move { sessions.system.close(session).await });
        }
    }
}

/// The claim was gone before its position could be read.
pub(super) fn gone() -> Error {
    Error::unavailable("the claim was gone before the store could say where it stands")
}
