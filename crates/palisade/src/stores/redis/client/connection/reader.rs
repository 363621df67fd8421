//! Who reads for all who do not read themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use redis::RedisError;

use super::{Shared, locked};

/// Reads for all who do not, and writes what others could not.
pub(super) struct Porter {
    shared: Arc<Shared>,
    ended_by_server: bool,
}

impl Porter {
    pub(super) fn of(shared: &Arc<Shared>) -> Porter {
        Porter { shared: Arc::clone(shared), ended_by_server: false }
    }

    /// Until the end of the connection.
    pub(super) fn work(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.shared.bell.is_porters(context.waker());
        while !self.shared.is_closed.load(Ordering::Acquire) {
            if let Err(error) = ready!(self.carry(context)) {
                tracing::debug!(%error, "a connection has ended");
                self.ended_by_server = true;
                break;
            }
        }
        Poll::Ready(())
    }

    /// Writes what was left, and reads once.
    fn carry(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RedisError>> {
        if self.shared.is_left.load(Ordering::Acquire) {
            let mut outward = locked(&self.shared.outward);
            if let Poll::Ready(written) = outward.write_rest(context) {
                self.shared.is_left.store(false, Ordering::Release);
                written?;
            }
        }
        let read = self.shared.read(&mut locked(&self.shared.inward));
        if read.is_ready() {
            self.shared.bell.wake_asker(None);
        }
        read
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        let closed_here = self.shared.is_closed.load(Ordering::Acquire);
        self.shared.close();
        locked(&self.shared.inward).reader = None;
        self.shared.listens.over();
        if !closed_here {
            self.shared.listens.ended(self.ended_by_server);
        }
    }
}
