//! The client: how a script gets to the server that has its key. Knows nothing of locks.
//!
//! ```text
//! request ─► topology (which server?) ─► servers (is it connected?) ─► server (does it have the script?) ─► connection ─► socket
//!                 ▲                            ▲                                                               │
//!          sentinel_events             watchdog, reconnect                                PushHandler ◄────────┘
//! ```
//!
//! All connections, tasks and timers belong to the client's own runtime: every function here must be called inside of it.

mod address;
mod connection;
mod failure;
mod reconnect;
mod replica_wait;
mod request;
mod script;
mod server;
mod servers;
mod settings;
mod shared_task;
mod subscription;
mod topology;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[cfg(test)]
pub(super) use self::address::Address;
pub(super) use self::failure::final_error;
pub(super) use self::request::{Called, Failed};
pub(super) use self::script::{
    Call, EncodeCall, Script, digits, push_count, push_number, push_text,
};
pub(super) use self::server::Server;
pub(super) use self::servers::Purpose;
use self::servers::Servers;
pub(super) use self::settings::ClientSettings;
use self::subscription::Subscription;
use self::topology::Topology;

/// Hears what the servers say without being asked. Called by the connections' tasks: must not block.
pub(super) trait PushHandler: Send + Sync + 'static {
    /// A message came on a channel that a server was asked to subscribe.
    fn message(&self, channel: &[u8], payload: &[u8]);
    /// Contact with a server is lost. The client reconnects by itself.
    fn contact_lost(&self) {}
    /// Contact is back, or another server is the primary now. Pushes may have been missed.
    fn contact_regained(&self, client: &Arc<Client>) {
        let _ = client;
    }
}

pub(super) struct Client {
    settings: ClientSettings,
    topology: Topology,
    servers: Servers,
    subscription: Subscription,
    handler: Arc<dyn PushHandler>,
    reconnect: reconnect::State,
    /// Whether the sentinels are subscribed to.
    hears_sentinels: AtomicBool,
}

impl Client {
    /// A client of these servers, with an inbox of this name. Nothing is connected.
    pub(super) fn new(
        settings: ClientSettings,
        inbox: String,
        handler: Arc<dyn PushHandler>,
    ) -> Arc<Client> {
        Arc::new(Client {
            topology: Topology::new(&settings),
            settings,
            servers: Servers::default(),
            subscription: Subscription::new(inbox),
            handler,
            reconnect: reconnect::State::default(),
            hears_sentinels: AtomicBool::new(false),
        })
    }

    pub(super) fn settings(&self) -> &ClientSettings {
        &self.settings
    }
}
