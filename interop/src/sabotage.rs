//! Participants with the usual mistakes. A contest with one of them must show violations, or the
//! judge is blind.

use std::time::Duration;

use crate::participant::{Acquired, Extended, Fault, Participant, Released};
use crate::redis::Raw;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Enters whatever the answer was.
    IgnoresTheAnswer,
    /// Deletes the lock at the end without a comparison, also when it never got it.
    DeletesWithoutComparing,
    /// Asks for a lease that ends before the work does, and does not extend it.
    LeaseTooShort,
}

/// [`Raw`] with a [`Mistake`], on one server, or on several of which it wants a majority.
#[derive(Debug)]
pub struct Saboteur {
    servers: Vec<Raw>,
    mistake: Mistake,
}

impl Saboteur {
    /// Makes this mistake at `redis://HOST:PORT`, or at several, with commas between.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn connect(url: &str, mistake: Mistake) -> Result<Self, Fault> {
        Ok(Self {
            servers: url.split(',').map(Raw::connect).collect::<Result<_, _>>()?,
            mistake,
        })
    }
}

impl Participant for Saboteur {
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        _: Duration,
    ) -> Result<Acquired, Fault> {
        // Waiting would hide the mistakes: it always asks once.
        let (wait, lease) = match self.mistake {
            Mistake::LeaseTooShort => (Duration::ZERO, Some(Duration::from_millis(1))),
            _ => (Duration::ZERO, lease),
        };
        let (majority, mut votes) = (self.servers.len() / 2 + 1, 0);
        for server in &mut self.servers {
            match server.acquire(name, lease, wait)? {
                Acquired::Yes => votes += 1,
                Acquired::Busy if self.mistake == Mistake::DeletesWithoutComparing => {
                    server.delete(name)?;
                }
                Acquired::Busy => {}
            }
        }
        if votes >= majority || self.mistake == Mistake::IgnoresTheAnswer {
            return Ok(Acquired::Yes);
        }
        self.release()?;
        Ok(Acquired::Busy)
    }

    fn release(&mut self) -> Result<Released, Fault> {
        // It ignores these answers, too.
        for server in &mut self.servers {
            server.release()?;
        }
        Ok(Released::Unsaid)
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        Ok(Extended::Yes)
    }
}
