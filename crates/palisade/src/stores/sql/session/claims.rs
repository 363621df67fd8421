//! A client's own claims, as the kit wants them.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::sessions::Session;
use crate::fence::Fence;
use crate::lease::Moment;
use crate::store::{Claim, Grant, Lease, Mode, Place};
use crate::stores::kit::session::claims::{OwnClaim, Stage};

pub(crate) struct Own<E: Engine> {
    pub(super) claim: Arc<Claim>,
    pub(super) key: E::Key,
    /// The session that holds the lock. Of a waiter, the one that it asks by: it lives as long as
    /// the client renews its waiters.
    pub(super) session: Arc<Session<E>>,
    pub(super) position: Position<E>,
}

pub(super) enum Position<E: Engine> {
    Waiting(Waiting<E>),
    Held { fence: Fence, mode: Mode },
}

/// A claim that a task of its own waits for.
pub(super) struct Waiting<E: Engine> {
    /// Ends the task.
    pub(super) cancel: CancellationToken,
    /// Cancelled when the task has ended, and nothing of it is left on the server.
    pub(super) over: CancellationToken,
    /// The session that waits; `None` while the task queues for a connection.
    pub(super) on: Option<Arc<Session<E>>>,
    /// When the last request was sent that found it waiting.
    pub(super) seen: Moment,
    /// Whether the last request did not find it waiting.
    pub(super) was_missing: bool,
}

impl<E: Engine> Waiting<E> {
    pub(super) fn place(&self, claim: &Claim) -> Place {
        Place {
            ahead: None,
            ask_in: None,
            lease: Lease {
                length: claim.wait_lease(),
                counted_from: Some(self.seen),
            },
            holder: None,
        }
    }
}

impl<E: Engine> OwnClaim for Own<E> {
    type Session = Arc<Session<E>>;

    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    fn session(&self) -> &Arc<Session<E>> {
        &self.session
    }

    fn session_id(&self) -> i64 {
        self.session.id
    }

    fn fence(&self) -> Fence {
        match &self.position {
            Position::Waiting(_) => Fence::NONE,
            Position::Held { fence, .. } => *fence,
        }
    }

    fn stage(&self, _: Moment) -> Stage {
        match &self.position {
            Position::Waiting(_) => Stage::Waiting,
            Position::Held { .. } => Stage::Held,
        }
    }

    fn grant(&self, _: Moment) -> Grant {
        Grant {
            fence: self.fence(),
            lease: self.session.lease(),
        }
    }

    /// A waiter has no fence yet.
    fn is_meant_by(&self, fence: Option<Fence>) -> bool {
        match &self.position {
            Position::Waiting(_) => fence.is_none(),
            Position::Held { fence: own, .. } => fence.is_none_or(|fence| fence == *own),
        }
    }
}
