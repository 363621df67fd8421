//! How bytes get to etcd: messages, members, login, TLS, streams. Nothing here knows of locks.
//!
//! ```text
//! call ─► cluster (which member?) ─► channels (tonic, one per member) ─► server
//!            │ ▲
//!            │ └── login (token)       rollback (does the cluster still know what it confirmed?)
//!            └──► watch, keep_alive: one stream each
//! ```

mod channels;
pub(crate) mod cluster;
mod failure;
mod idle_watches;
pub(crate) mod keep_alive;
pub(crate) mod leases;
mod login;
pub(crate) mod names;
pub(crate) mod proto;
pub(crate) mod rollback;
mod server_info;
pub(crate) mod settings;
pub(crate) mod txn;
pub(crate) mod user_keys;
pub(crate) mod watch;

/// Starts a task in the current runtime, which is the client's: all that is asked of a store is
/// polled inside it.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(task)),
        Err(_) => tracing::error!("etcd is used outside of a tokio runtime"),
    }
}
