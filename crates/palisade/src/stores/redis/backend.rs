//! The state that the formats share: the client, and the knowledge about its own claims.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::channels::Channels;
use super::client::{Call, Called, Client};
use super::release::RecentReleases;
use super::rollback::Rollback;
use super::settings::{Format, Settings};
use super::wait::Inbox;
use crate::error::{Error, Result};
use crate::store::{ByClaim, Claim, ClaimId, ClientHandle};
use crate::url::StoreUrl;

pub(super) struct Backend {
    pub(super) settings: Settings,
    pub(super) client: Arc<Client>,
    /// The core, to push to.
    pub(super) handle: OnceLock<ClientHandle>,
    /// The claims that may be in line: a push names only the id.
    waiting: Mutex<ByClaim<Arc<Claim>>>,
    pub(super) rollback: Rollback,
    pub(super) recent_releases: RecentReleases,
    /// For the formats that are shared with peers.
    pub(super) channels: Channels,
}

impl Backend {
    /// Nothing is connected.
    pub(super) fn open(url: StoreUrl) -> Result<Arc<Backend>> {
        let (settings, client) = Settings::read(url)?;
        // A random channel: no other client can guess it.
        let inbox = settings.inbox(&ClaimId::random()?.reveal());
        Ok(Arc::new_cyclic(|backend| Backend {
            settings,
            client: Client::new(client, inbox, Arc::new(Inbox::of(backend))),
            handle: OnceLock::new(),
            waiting: Mutex::default(),
            rollback: Rollback::default(),
            recent_releases: RecentReleases::default(),
            channels: Channels::default(),
        }))
    }

    pub(super) fn attach(&self, client: ClientHandle) {
        // Told once.
        let _ = self.handle.set(client);
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, ByClaim<Arc<Claim>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim is still to be sent. Its caller may have left while it waited for a
    /// connection, or in a queue.
    pub(super) fn wants(&self, claim: ClaimId) -> bool {
        self.handle.get().is_none_or(|client| client.wants(claim))
    }

    /// Whether peers may publish to the shard of a key alone.
    pub(super) fn is_sharded(&self) -> bool {
        self.settings.format == Format::Redisson && self.client.settings().is_cluster()
    }

    /// Calls a script after which nothing is pushed to us.
    pub(super) async fn call(&self, call: &Call) -> Result<Called> {
        self.client.call(call, false).await
    }
}

/// The error of a claim whose caller has left before it was sent.
pub(in crate::stores) fn unwanted() -> Error {
    Error::unavailable("the caller has left before the claim was sent").with_nothing_sent()
}
