use std::time::Duration;

use rslock::{Lock, LockError, LockManager};
use tokio::runtime::{Builder, Runtime};

use crate::participant::{Acquired, Extended, Fault, Participant, Released};

/// Twice what the others pause: it pauses half of it on average.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The crate rslock.
pub struct Rslock {
    runtime: Runtime,
    manager: LockManager,
    held: Option<Lock>,
}

impl Rslock {
    /// At `redis://HOST:PORT`, or at several, with commas between. It connects when it is used.
    ///
    /// # Errors
    ///
    /// When there is no runtime to be had.
    pub fn connect(url: &str) -> Result<Self, Fault> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Fault::of)?;
        Ok(Self {
            runtime,
            manager: LockManager::new(url.split(',').collect::<Vec<_>>()),
            held: None,
        })
    }
}

impl Participant for Rslock {
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault> {
        let lease = lease.ok_or_else(|| Fault::new("rslock has no lock without an end"))?;
        // It waits by tries and pauses, not by a time; `acquire` of its own would wait for ever.
        let tries = 1 + wait.as_millis() / (RETRY_DELAY.as_millis() / 2);
        self.manager
            .set_retry(u32::try_from(tries).map_err(Fault::of)?, RETRY_DELAY);
        match self.runtime.block_on(self.manager.lock(name, lease)) {
            Ok(lock) => {
                self.held = Some(lock);
                Ok(Acquired::Yes)
            }
            Err(LockError::Unavailable) => Ok(Acquired::Busy),
            Err(error) => Err(Fault::of(error)),
        }
    }

    fn release(&mut self) -> Result<Released, Fault> {
        let Some(lock) = self.held.take() else {
            return Ok(Released::NotHeld);
        };
        self.runtime.block_on(self.manager.unlock(&lock));
        Ok(Released::Unsaid)
    }

    fn extend(&mut self, lease: Duration) -> Result<Extended, Fault> {
        let Some(lock) = &self.held else {
            return Ok(Extended::NotHeld);
        };
        self.manager.set_retry(1, RETRY_DELAY);
        match self.runtime.block_on(self.manager.extend(lock, lease)) {
            Ok(extended) => {
                self.held = Some(extended);
                Ok(Extended::Yes)
            }
            Err(LockError::Unavailable) => Ok(Extended::NotHeld),
            Err(error) => Err(Fault::of(error)),
        }
    }
}
