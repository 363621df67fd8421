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
pub(crate) mod data;
pub(crate) mod endpoints;
mod failure;
mod idle_watches;
pub(crate) mod keep_alive;
pub(crate) mod leases;
mod login;
pub(crate) mod names;
pub(crate) mod proto;
pub(crate) mod rollback;
pub(crate) mod txn;
pub(crate) mod watch;

use crate::error::{Error, Result};

/// Starts a task in the current runtime, which is the client's: all that is asked of a store is polled inside it.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(task)),
        Err(_) => tracing::error!("etcd is used outside of a tokio runtime"),
    }
}

/// Runs `work` as a task of the current runtime. For work that others wait for as well, or that holds a lock across an await: a
/// caller that is not polled must not hold them up, and one that leaves must not stop it.
pub(crate) async fn in_task<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let runtime = tokio::runtime::Handle::try_current()
        .map_err(|_| Error::config("etcd is used outside of a tokio runtime"))?;
    runtime
        .spawn(work)
        .await
        .unwrap_or_else(|_| Err(Error::unavailable("the client has ended")))
}
