//! The kit for stores with sessions of their own: each claim is an entry in the store that hangs on a session.
//!
//! | part | what it does |
//! |---|---|
//! | [`claims`] | the client's own claims, and why those ended that may still be asked about |
//! | [`sessions`] | one session for each length of lease, opened at first use; or one that belongs to a single claim |
//! | [`holders`] | has the entries of holders watched, a while after their grant |
//! | [`cleanup`] | repeats a deletion until it is done |

pub(crate) mod claims;
pub(crate) mod cleanup;
pub(crate) mod holders;
pub(crate) mod sessions;

use crate::error::Error;

/// Runs `work` as a task of the client's runtime, so that a caller that is not polled cannot hold a lock that others wait for.
pub(crate) async fn in_task<T, E>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    tokio::spawn(work).await.unwrap_or_else(|_| {
        Err(Error::unavailable("the client has ended while it asked the store").into())
    })
}
