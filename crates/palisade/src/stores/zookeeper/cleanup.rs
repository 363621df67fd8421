//! Nodes that must not stay behind: deleted, and tried again until they are gone or their session
//! is.

use std::sync::Arc;

use super::claims::{ClaimLocation, fence_of};
use super::client::proto::Request;
use super::client::{Failed, OrMissing, Session};
use super::plain;
use super::search::search;
use super::sessions::LockSession;
use crate::fence::Fence;
use crate::stores::kit::session::cleanup::{Attempt, until_done};

/// What may be left of a claim in the store.
pub(super) enum Leftover {
    Nodes(Vec<String>),
    /// Every node of the claim, though none may be there, or arrive only now.
    Claim(Arc<ClaimLocation>),
    /// The one node of the format plain, if it is the claim's.
    Plain(Arc<ClaimLocation>),
}

impl Leftover {
    /// Deletes it; whether it was there, all of it.
    pub(super) async fn delete(&self, session: &Arc<Session>) -> Result<bool, Failed> {
        match self {
            Leftover::Nodes(paths) => delete_all(session, paths).await,
            Leftover::Claim(location) => delete_claim(session, location, None).await,
            Leftover::Plain(location) => plain::delete_own(session, location, false).await,
        }
    }

    /// Deletes it in the background.
    pub(super) fn delete_later(self, session: &Arc<Session>) {
        tokio::spawn(self.delete_with_retry(session));
    }

    /// Deletes it, however long it takes. Does not keep the session alive: its end deletes the
    /// nodes, too.
    pub(super) fn delete_with_retry(
        self,
        session: &Arc<Session>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (keep_open, session) = (session.keep_open(), Arc::downgrade(session));
        async move {
            let _open = keep_open;
            until_done(async || {
                let Some(session) = session.upgrade().filter(|session| !session.is_gone()) else {
                    return Attempt::Done;
                };
                match self.delete(&session).await {
                    Err(Failed::Unsure(_)) => Attempt::Again,
                    Ok(_) | Err(_) => Attempt::Done,
                }
            })
            .await;
        }
    }
}

async fn delete_all(session: &Arc<Session>, paths: &[String]) -> Result<bool, Failed> {
    let sent: Vec<_> = paths
        .iter()
        .map(|path| session.send(Request::delete(path)))
        .collect();
    let (mut all, mut failure) = (true, None);
    for sent in sent {
        match sent.answer().await.or_missing() {
            Ok(deleted) => all &= deleted.is_some(),
            Err(Failed::Ended) => all = false,
            // The one that must be tried again counts.
            Err(failed) => {
                failure = failure
                    .filter(|before| matches!(before, Failed::Unsure(_)))
                    .or(Some(failed))
            }
        }
    }
    failure.map_or(Ok(all), Err)
}

/// Deletes every node of a claim, with this fence if one is given; whether there was one.
pub(super) async fn delete_claim(
    session: &Arc<Session>,
    location: &ClaimLocation,
    fence: Option<Fence>,
) -> Result<bool, Failed> {
    let mut any = false;
    for found in search(session, location).await? {
        if fence.is_none_or(|fence| fence == fence_of(found.stat.czxid)) {
            any |= session
                .ask(Request::delete(&found.path))
                .await
                .or_missing()?
                .is_some();
        }
    }
    Ok(any)
}

impl LockSession {
    /// Deletes nodes; whether all were there. What was not answered is tried again in the
    /// background.
    pub(super) async fn delete(&self, paths: &[String]) -> Result<bool, Failed> {
        let deleted = match paths {
            [path] => Box::pin(self.batcher.delete(path.clone()))
                .await
                .or_missing()
                .map(|deleted| deleted.is_some()),
            paths => Box::pin(delete_all(self, paths)).await,
        };
        match deleted {
            Err(Failed::Ended) => Ok(false),
            Err(failed @ Failed::Unsure(_)) => {
                Leftover::Nodes(paths.to_vec()).delete_later(self);
                Err(failed)
            }
            deleted => deleted,
        }
    }
}
