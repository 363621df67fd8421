//! Who waits for an answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use redis::Value;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::Shared;
use super::wakeups::Turn;

/// One who waits for an answer, and reads it himself as long as nobody else waits.
pub(super) struct Asker<'a> {
    shared: &'a Shared,
    turn: Turn,
    answer: oneshot::Receiver<Value>,
    /// Whether the bell may have been told to ring for this one.
    is_rung_for: bool,
    is_answered: bool,
}

impl<'a> Asker<'a> {
    pub(super) fn of(shared: &'a Shared, turn: Turn, answer: oneshot::Receiver<Value>) -> Asker<'a> {
        Asker { shared, turn, answer, is_rung_for: false, is_answered: false }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Value, Closed>> {
        // Perhaps it was the bell that woke us: then somebody must look, though others may wait by now.
        let mut looks = self.is_rung_for;
        loop {
            let has_read = looks && self.shared.read_for_asker(self.turn);
            if let Some(answer) = self.taken() {
                return Poll::Ready(answer);
            }
            if !has_read {
                self.is_rung_for = self.shared.bell.rings_for(self.turn, context.waker());
                if !self.is_rung_for {
                    // Somebody else reads.
                    return Pin::new(&mut self.answer).poll(context).map_err(|_| Closed);
                }
                // Once more: what came before has not rung for us, and of what somebody else has read since nobody has told us.
                if !self.shared.read_for_asker(self.turn) {
                    return self.taken().map_or(Poll::Pending, Poll::Ready);
                }
            }
            looks = true;
        }
    }

    /// The answer, if it is here, or will never be.
    fn taken(&mut self) -> Option<Result<Value, Closed>> {
        match self.answer.try_recv() {
            Err(TryRecvError::Empty) => None,
            answer => {
                self.is_answered = true;
                Some(answer.map_err(|_| Closed))
            }
        }
    }
}

/// The connection has ended before the answer came.
pub(super) struct Closed;

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        if self.is_rung_for {
            self.shared.bell.forget(self.turn);
            // It may have rung for us, and nobody has looked.
            if !self.is_answered {
                self.shared.bell.call_porter();
            }
        }
    }
}
