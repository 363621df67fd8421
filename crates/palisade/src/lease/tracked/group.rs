//! The members of a multi-lock: one lost, all lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

use super::TrackedClaim;
use crate::lease::{Moment, wake};

/// Several claims that are lost together.
pub(crate) struct Group {
    pub(super) members: Vec<Weak<TrackedClaim>>,
    /// Set when every member has been told of the loss of one.
    pub(super) told: AtomicBool,
    /// Fires with the stop margin of the first member to end.
    pub(crate) stop: CancellationToken,
}

impl Group {
    /// Binds the members of a multi-lock: one lost, all lost.
    pub(crate) fn bind(members: &[&Arc<TrackedClaim>], now: Moment) -> Arc<Group> {
        let weak = members
            .iter()
            .map(|member| Arc::downgrade(member))
            .collect();
        let group = Arc::new(Group {
            members: weak,
            told: AtomicBool::new(false),
            stop: CancellationToken::new(),
        });
        for member in members {
            // Set once: a claim belongs to one group.
            let _ = member.group.set(Arc::clone(&group));
        }
        // A member may have been lost, or be close to it, before it was bound: this tells the
        // group.
        for member in members {
            member.watch(now);
        }
        group
    }

    /// One member was lost. Not recursive: members that are lost with it do not tell the group
    /// again.
    pub(super) fn lost(&self) {
        if self.told.load(Ordering::Acquire) {
            return;
        }
        wake(|| self.stop.cancel());
        for member in self.members.iter().filter_map(Weak::upgrade) {
            member.member_lost();
        }
        // Only now: until then every call that sees the loss tells all of them.
        self.told.store(true, Ordering::Release);
    }
}
