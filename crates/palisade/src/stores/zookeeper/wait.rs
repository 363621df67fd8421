//! Waiting in line: each waiter watches the node that it waits for, and looks at the line when that
//! is gone.

use super::backend::Backend;
use super::claims::{ClaimLocation, Entry, Waiting, Watched, fence_of};
use super::client::proto::{Code, Request, Stat};
use super::client::{Failed, OrMissing};
use super::value::Value;
use crate::error::Result;
use crate::store::{Holder, Mode};

/// What a claim waits for.
pub(super) enum Blocker {
    /// Its end will be told. With the holder if that is its node.
    Watched(Option<Holder>),
    /// It left between our look at the line and our watch.
    Left,
}

impl Backend {
    /// Watches the node that a claim waits for. The answer names the holder if that is its node: to
    /// read another would be a request that hardly any wait has a use for.
    pub(super) async fn watch_blocker(
        &self,
        entry: &Entry,
        by: &str,
        is_holder: bool,
    ) -> Result<Blocker, Failed> {
        let (claim, location, session) = entry.parts();
        let path = location.node(by);
        let connection = session.connection();
        self.watch_path(session, &path, claim.id);
        let mut watched = session.ask(Request::get_data(&path).watched()).await;
        if let Err(Failed::Refused(Code::NoAuth)) = &watched {
            // We may not read it. Whether it exists may be asked without a right. Some servers do
            // not tell us of its end: the heartbeat does.
            if let Err(failed) = session.ask(Request::exists(&path).watched()).await {
                watched = Err(failed);
            }
        }
        match &watched {
            Ok(_) | Err(Failed::Refused(Code::NoAuth)) => {}
            Err(failed) => {
                self.watches.remove(session.id(), &path, claim.id);
                return if failed.is(Code::NoNode) {
                    Ok(Blocker::Left)
                } else {
                    Err(failed.clone())
                };
            }
        }
        self.claims
            .is_told_of(claim.id, Watched { path, connection });
        // Read in any case: a node of a newer version is not waited for as if it were understood.
        Ok(Blocker::Watched(
            holder_of(watched, location, by)?.filter(|_| is_holder),
        ))
    }

    /// Whether the end of this path will be told to a waiting claim.
    pub(super) fn is_told(&self, entry: &Entry, waiting: &Waiting, path: &str) -> bool {
        let now = Watched {
            path: path.to_owned(),
            connection: entry.session.connection(),
        };
        waiting.watches.as_ref() == Some(&now)
            && self
                .watches
                .is_watched(entry.session.id(), path, entry.claim.id)
    }
}

/// The owner of a node, for people to read; `None` when the node is gone meanwhile, or not ours to
/// read.
pub(super) fn holder_of(
    answer: Result<(Vec<u8>, Stat), Failed>,
    location: &ClaimLocation,
    node: &str,
) -> Result<Option<Holder>, Failed> {
    let (data, stat) = match answer.or_missing() {
        Ok(Some(there)) => there,
        Ok(None) | Err(Failed::Refused(Code::NoAuth)) => return Ok(None),
        Err(failed) => return Err(failed),
    };
    let value = Value::read(&data, node)?;
    let mode = match location.permits {
        Some(_) => Mode::Permits(1),
        None if location.recipe.is_shared(node) => Mode::Shared,
        None => Mode::Exclusive,
    };
    Ok(Some(Holder {
        owner: value.owner,
        reason: value.reason,
        fence: fence_of(stat.czxid),
        mode,
        held: None,
        lease_left: None,
    }))
}
