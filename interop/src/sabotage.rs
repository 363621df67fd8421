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

/// [`Raw`] with a [`Mistake`].
#[derive(Debug)]
pub struct Saboteur {
    raw: Raw,
    mistake: Mistake,
}

impl Saboteur {
    /// Makes this mistake at `redis://HOST:PORT`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn connect(url: &str, mistake: Mistake) -> Result<Self, Fault> {
        Ok(Self {
            raw: Raw::connect(url)?,
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
        let wait = Duration::ZERO;
        match self.mistake {
            Mistake::IgnoresTheAnswer => self.raw.acquire(name, lease, wait).map(|_| Acquired::Yes),
            Mistake::DeletesWithoutComparing => {
                let answer = self.raw.acquire(name, lease, wait)?;
                if answer == Acquired::Busy {
                    self.raw.delete(name)?;
                }
                Ok(answer)
            }
            Mistake::LeaseTooShort => self.raw.acquire(name, Some(Duration::from_millis(1)), wait),
        }
    }

    fn release(&mut self) -> Result<Released, Fault> {
        // It ignores this answer, too.
        self.raw.release().map(|_| Released::Unsaid)
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        Ok(Extended::Yes)
    }
}
