//! The leaders of an election, from the store to an observer.

use std::fmt;

use tokio::sync::mpsc;

use crate::error::Result;
use crate::lease::wake;
use crate::store::Leader;

/// The receiving side, returned by [`Observe::observe`](crate::store::Observe::observe).
pub struct Observation {
    heard: mpsc::UnboundedReceiver<Result<Leader>>,
}

/// The sending side, for a store.
pub struct ObservationSender {
    tells: mpsc::UnboundedSender<Result<Leader>>,
    last: Option<Leader>,
}

impl Observation {
    /// A connected pair.
    pub fn new() -> (ObservationSender, Observation) {
        let (tells, heard) = mpsc::unbounded_channel();
        (
            ObservationSender { tells, last: None },
            Observation { heard },
        )
    }

    /// The next leader, or the next value of the same one; `None` when the store tells nothing
    /// more.
    ///
    /// # Errors
    ///
    /// Errors that the store cannot mend by itself, such as rights that were taken away. Nothing
    /// follows.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point; nothing is missed by it.
    pub async fn next(&mut self) -> Option<Result<Leader>> {
        self.heard.recv().await
    }
}

impl ObservationSender {
    /// Tells who leads, unless that was the last thing told.
    pub fn tell(&mut self, leader: Leader) {
        if self.last.as_ref() != Some(&leader) {
            self.last = Some(leader.clone());
            // Without a receiver, `deserted` says so.
            wake(|| drop(self.tells.send(Ok(leader))));
        }
    }

    /// Ends the observation with an error.
    pub fn fail(self, error: crate::Error) {
        wake(|| drop(self.tells.send(Err(error))));
    }

    /// Whether the receiver is gone.
    pub fn is_deserted(&self) -> bool {
        self.tells.is_closed()
    }

    /// Returns when the receiver is gone.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn deserted(&self) {
        self.tells.closed().await;
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").finish_non_exhaustive()
    }
}

impl fmt::Debug for ObservationSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservationSender")
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::fence::Fence;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("in a waker");
        }
    }

    /// A store may tell all observers in one task.
    #[test]
    fn the_waker_of_an_observer_does_not_panic_in_the_store() {
        let (mut sender, mut observation) = Observation::new();
        let leader = Leader {
            value: "one".into(),
            fence: Fence::NONE,
        };
        let waker = Waker::from(Arc::new(Panics));
        let mut context = Context::from_waker(&waker);
        assert!(pin!(observation.next()).poll(&mut context).is_pending());
        sender.tell(leader.clone());
        let mut context = Context::from_waker(Waker::noop());
        let heard = pin!(observation.next()).poll(&mut context);
        assert!(
            matches!(heard, std::task::Poll::Ready(Some(Ok(heard))) if heard == leader),
            "it is told all the same"
        );
    }
}
