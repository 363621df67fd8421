use std::time::Duration;

use palisade::blocking::Wait;
use palisade::{Client, ErrorKind, Guard};

use crate::participant::{Acquired, Extended, Fault, Participant, Released};

/// Palisade, through its public API, over any store.
pub struct Ours {
    locks: Client,
    held: Option<Guard>,
}

impl Ours {
    /// Over the store at this URL.
    ///
    /// # Errors
    ///
    /// As [`palisade::connect`].
    pub fn connect(url: &str) -> Result<Self, Fault> {
        Ok(Self { locks: palisade::connect(url).wait().map_err(Fault::of)?, held: None })
    }
}

impl Participant for Ours {
    fn acquire(&mut self, name: &str, lease: Option<Duration>, wait: Duration) -> Result<Acquired, Fault> {
        let lease = lease.ok_or_else(|| Fault::new("palisade has no lock without an end"))?;
        let lock = self.locks.mutex(name).lease(lease);
        let guard = if wait.is_zero() {
            lock.try_acquire().wait()
        } else {
            match lock.acquire_timeout(wait).wait() {
                Ok(guard) => Ok(Some(guard)),
                Err(error) if matches!(error.kind(), ErrorKind::Timeout { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(guard) = guard.map_err(Fault::of)? else { return Ok(Acquired::Busy) };
        self.held = Some(guard);
        Ok(Acquired::Yes)
    }

    fn release(&mut self) -> Result<Released, Fault> {
        let Some(guard) = self.held.take() else { return Ok(Released::NotHeld) };
        match guard.release().wait().map_err(Fault::of)? {
            palisade::Released::Done => Ok(Released::Yes),
            palisade::Released::AlreadyLost => Ok(Released::NotHeld),
            palisade::Released::Unknown => Ok(Released::Unsaid),
        }
    }

    /// The keeper extends by itself, and there is no other way: this says whether it does.
    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        let held = self.held.as_ref().is_some_and(Guard::is_held);
        Ok(if held { Extended::Yes } else { Extended::NotHeld })
    }
}
