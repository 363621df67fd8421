//! Work in a task of its own.

use tokio::runtime::Handle;

use crate::error::Error;

/// Runs `work` as a task of the current runtime. For work that others wait for as well, or that
/// holds a lock across an await: a caller that is not polled must not hold them up, and one that
/// leaves must not stop it.
///
/// # Cancel safety
///
/// Dropped half-way, the work goes on.
pub(crate) async fn in_task<T, E>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    let runtime = Handle::try_current().map_err(|_| {
        Error::config("this store is used outside of a tokio runtime; call it inside one")
    })?;
    runtime.spawn(work).await.unwrap_or_else(|_| {
        Err(Error::unavailable("the client has ended while it asked the store").into())
    })
}
