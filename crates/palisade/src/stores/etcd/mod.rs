//! `etcd:` — the line in etcd, in the format of its own Go client and of `etcdctl lock`.
//!
//! A claim is a key under the name's prefix, and its create revision is its place in line and its
//! fence. The claim with the lowest one holds; a waiter watches the key before its own.
//!
//! ```text
//! locks/mixed/694d9c3f2a1b…        create revision 12        holds, fence 12
//! locks/mixed/01f3…                create revision 15        waits, watches the key above and its own
//! ```
//!
//! # How a request flows
//!
//! ```text
//! SessionStore ─► kit: claim, renew, wait, release ─► claim, renew, wait, release ─► batch ─► client: cluster ─► server
//!                            ▲                                   ▲
//! core ◄── ClientHandle ◄────┴──── wait, watch_held ◄── client: watch ◄── server        sessions ─► client: keep_alive
//! ```
//!
//! `client` is how bytes get to the server, and knows nothing of locks; `fence::etcd` and
//! `versioned::etcd` use it, too. The flow is that of `stores/kit/session`,
//! and each verb has its file here. `backend` has the parts that they share:
//!
//! | file | |
//! |---|---|
//! | `claims` | this client's own claims: key, mode, watches |
//! | `key_pool` | the keys of claims, which are used again |
//! | `sessions` | the leases of etcd that keys are attached to |
//! | `entry` | what a key says |
//! | `queue_rules` | which keys of a line hold, and what the others wait for |
//! | `position` | reads as much of a line as decides that |
//! | `watch_held` | watches the keys of holders |
//! | `cleanup` | deletes keys until that is answered |
//! | `batch` | claims and releases as one transaction, when others are in flight |
//! | `change` | downgrades and proclamations |
//! | `marks` | what `min_hold` and `once` leave of a line |
//! | `election` | observers of elections |
//! | `plain` | the format without a line |
//!
//! # What a verb costs
//!
//! | verb | requests |
//! |---|---|
//! | acquire, free | 1 transaction |
//! | acquire, in line | 1 transaction, 1 watch unless an idle one is reused, 1 more after a while; 1 read more if something was written meanwhile |
//! | hand-off | the release, and 1 read by the next in line; permits are written as well, and then the one behind them reads |
//! | release | 1 transaction |
//! | a hold longer than 100 ms | 1 watch, and 1 read for a hundred keys |
//! | renewal | 1 keep-alive and 1 read for all claims of one length, and 1 message that asks the watches for a sign of life |

mod backend;
mod batch;
mod change;
mod claim;
mod claims;
mod cleanup;
pub(crate) mod client;
mod election;
mod entry;
mod inspect;
mod key_pool;
mod lines;
mod marks;
mod plain;
mod position;
mod queue_rules;
mod release;
mod renew;
mod sessions;
mod settings;
mod wait;
mod watch_held;

use std::sync::Arc;
use std::time::Duration;

use self::backend::Backend;
pub use self::plain::PLAIN;
use self::settings::{Format, Settings};
use crate::error::Result;
use crate::store::{Capability, Store};
use crate::stores::kit::session::SessionStore;
use crate::stores::kit::token::TokenStore;
use crate::url::StoreUrl;

/// What the format `mutex` can do. It has no `once_per`: etcd has no clock that a transaction could
/// read.
pub const CAPABILITY: Capability = Capability {
    store: "etcd",
    format: "mutex",
    // The shortest lease of a server with the default election time-out.
    min_lease: Duration::from_secs(2),
    observe: true,
    ..Capability::SESSION
};

/// Opens a URL of etcd. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    let settings = Settings::read(&url)?;
    Ok(match settings.format {
        Format::Mutex => Arc::new(SessionStore {
            backend: Backend::new(settings)?,
            capability: &CAPABILITY,
        }),
        Format::Plain => Arc::new(TokenStore(plain::Plain(Backend::new(settings)?))),
    })
}
