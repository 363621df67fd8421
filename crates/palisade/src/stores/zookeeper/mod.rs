//! `zk:` — the line in ZooKeeper, as Apache Curator or kazoo keep it.
//!
//! A claim is an ephemeral node below that of the name, and the number that the server gives it is
//! its place in line. The first node holds, and its fence is the transaction that made the node;
//! each waiter watches the node before its own.
//!
//! ```text
//! /locks/mixed/_c_5f0c…-lock-0000000012      made by transaction 0x300000a41      holds, with that as its fence
//! /locks/mixed/_c_9be1…-lock-0000000013      waits, watches the node above
//! ```
//!
//! # How a request flows
//!
//! ```text
//! SessionStore ─► kit: claim, renew, wait, release ─► claim, renew, wait, release ─► batch ─► client: session ─► requests ─► server
//!                            ▲                                   ▲                                                            │
//! core ◄── ClientHandle ◄────┴────────── backend ◄── watches ◄───┴──────────────────── client: connection_task ◄──────────────┘
//! ```
//!
//! `client` is how bytes get to the server, and knows nothing of locks. The flow is that of
//! `stores/kit/session`, and each verb has its file here. `backend` has the
//! parts that they share, and hears of the sessions:
//!
//! | file | |
//! |---|---|
//! | `claims` | this client's own claims: where each stands, and those whose outcome is not known |
//! | `sessions` | the sessions that claims hang on, and one to read by |
//! | `value` | what a node says |
//! | `queue_rules` | the names of nodes, and which nodes of a line hold |
//! | `position` | applies these rules to one claim |
//! | `search` | finds the nodes of a claim that is not known |
//! | `semaphore` | permits, in two lines |
//! | `parents` | the nodes above a line |
//! | `watch_held`, `watches` | watch the nodes of holders; the claims that each watch is for |
//! | `cleanup` | deletes nodes until that is answered |
//! | `batch` | claims and releases as one transaction, when others are in flight |
//! | `plain` | the format without a line |
//!
//! # What a verb costs
//!
//! | verb | requests at most |
//! |---|---|
//! | acquire, free | `create` and `getChildren`, in one round trip |
//! | acquire, in line | the same, and `getData` with a watch |
//! | hand-off | the release; `getChildren` by the next in line |
//! | time-out | `delete`; `getChildren` and `getData` before it, to name the holder |
//! | release | `delete` |
//! | renewal | one `multi`, which checks a node, for all claims of one length |
//! | a waiter's heartbeat | the same, and `exists` of its own node and of the one before it |

mod backend;
mod batch;
mod claim;
mod claims;
mod cleanup;
pub(crate) mod client;
mod failure;
mod inspect;
mod parents;
mod plain;
mod position;
mod queue_rules;
mod release;
mod renew;
mod search;
mod semaphore;
mod sessions;
mod settings;
mod value;
mod wait;
mod watch_held;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use self::backend::Backend;
use self::settings::{Format, Settings};
use crate::error::Result;
use crate::store::{Capability, Store};
use crate::stores::kit::session::SessionStore;
use crate::stores::kit::token::TokenStore;
use crate::url::StoreUrl;

/// What the format `curator` can do.
pub const CURATOR: Capability = Capability {
    store: "zookeeper",
    format: "curator",
    // The least that a server with the usual tick of two seconds grants; the most is ten times
    // that.
    min_lease: Duration::from_secs(4),
    mutex_is_write_side: false,
    // The name of a node says that it is a writer's, and cannot be changed.
    downgrade: false,
    // Nodes end with their session, and the server has no clock that a request could read.
    min_hold: false,
    once: false,
    proclaim: false,
    // A node hangs on the session that made it.
    short_waits: false,
    ..Capability::SESSION
};

/// What the format `kazoo` can do.
pub const KAZOO: Capability = Capability {
    format: "kazoo",
    semaphore: false,
    ..CURATOR
};

pub use self::plain::PLAIN;

/// Opens a URL of ZooKeeper. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let settings = Settings::read(url)?;
    Ok(match settings.format {
        Format::Curator => Arc::new(SessionStore {
            backend: Backend::new(settings),
            capability: &CURATOR,
        }),
        Format::Kazoo => Arc::new(SessionStore {
            backend: Backend::new(settings),
            capability: &KAZOO,
        }),
        Format::Plain => Arc::new(TokenStore(plain::Plain(Backend::new(settings)))),
    })
}
