//! The client: carries scripts to the server that has their key. Knows nothing of locks.
//!
//! ```text
//! call, pipeline ─► topology (which server?) ─► servers (is it connected?) ─► server (does it have the script?) ─► connection ─► socket
//!                 ▲                            ▲                                                               │
//!          sentinel events             watchdog, reconnect                                PushHandler ◄────────┘
//! ```
//!
//! All connections, tasks and timers belong to the client's own runtime: every function here must
//! be called inside of it.

mod address;
mod call;
mod connection;
mod failure;
mod pipeline;
mod reconnect;
mod replicas;
mod script;
mod script_on_user_connection;
mod server;
mod servers;
mod settings;
mod shared_task;
mod subscription;
mod topology;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(in crate::stores) use self::address::Address;
pub(super) use self::call::{Called, Failed};
pub(in crate::stores) use self::failure::final_error;
pub(super) use self::pipeline::TimedCall;
pub(in crate::stores) use self::script::{Call, Script};
pub(crate) use self::script_on_user_connection::{UserScript, is_refusal};
pub(in crate::stores) use self::server::{Facts, Server, is_no_script};
pub(in crate::stores) use self::servers::Purpose;
use self::servers::Servers;
pub(in crate::stores) use self::settings::ClientSettings;
use self::subscription::Subscription;
use self::topology::Topology;

/// The payload of a message that no client has sent: the server has ended the subscription, because
/// the shard of the channel has moved.
pub(in crate::stores) const SHARD_MOVED: &[u8] = b"the shard has moved";

/// Takes the pushes of the servers. Called by the connections' tasks: must not block.
pub(in crate::stores) trait PushHandler: Send + Sync + 'static {
    /// A message on a subscribed channel.
    fn message(&self, channel: &[u8], payload: &[u8]);
    /// Contact with a server is lost. The client reconnects by itself.
    fn contact_lost(&self) {}
    /// Contact is back, or another server is the primary now. Pushes may have been missed.
    fn contact_regained(&self) {}
}

pub(in crate::stores) struct Client {
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
    pub(in crate::stores) fn new(
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

    pub(in crate::stores) fn settings(&self) -> &ClientSettings {
        &self.settings
    }
}
