//! What an observer of an election hears, from the store to the user.

use std::fmt;

use tokio::sync::mpsc;

use crate::error::Result;
use crate::store::Leader;

/// The receiving side: what [`Observe::observe`](crate::store::Observe::observe) returns.
pub struct Observation {
    heard: mpsc::UnboundedReceiver<Result<Leader>>,
}

/// The sending side: how a store tells an [`Observation`].
pub struct Teller {
    tells: mpsc::UnboundedSender<Result<Leader>>,
    last: Option<Leader>,
}

impl Observation {
    /// An observation, and what the store tells it by.
    pub fn new() -> (Teller, Observation) {
        let (tells, heard) = mpsc::unbounded_channel();
        (Teller { tells, last: None }, Observation { heard })
    }

    /// The next leader, or the next value of the same one; `None` when the store tells nothing more.
    ///
    /// # Errors
    ///
    /// What the store cannot mend by itself: rights that were taken away. Nothing follows it.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point; nothing is missed by it.
    pub async fn next(&mut self) -> Option<Result<Leader>> {
        self.heard.recv().await
    }
}

impl Teller {
    /// Tells who leads, unless that was the last thing told.
    pub fn tell(&mut self, leader: Leader) {
        if self.last.as_ref() != Some(&leader) {
            self.last = Some(leader.clone());
            // If nobody hears it any more, `deserted` says so.
            let _ = self.tells.send(Ok(leader));
        }
    }

    /// Tells that nothing more will be told, and why.
    pub fn fail(self, error: crate::Error) {
        let _ = self.tells.send(Err(error));
    }

    /// Whether nobody hears any more.
    pub fn is_deserted(&self) -> bool {
        self.tells.is_closed()
    }

    /// Returns when nobody hears any more.
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

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Teller")
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
