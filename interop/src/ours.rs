use std::time::Duration;

use palisade::blocking::Wait;
use palisade::{Client, ErrorKind, Exclusive, Guard, GuardMode, Shared};

use crate::participant::{Acquired, Extended, Fault, Participant, Released};

/// Palisade, through its public API, over any store: alone with `Exclusive`, beside other readers with `Shared`.
pub struct Ours<M: GuardMode = Exclusive> {
    locks: Client,
    held: Option<Guard<M>>,
}

impl<M: GuardMode> Ours<M> {
    /// Over the store at this URL.
    ///
    /// # Errors
    ///
    /// As [`palisade::connect`].
    pub fn connect(url: &str) -> Result<Self, Fault> {
        Ok(Self { locks: palisade::connect(url).wait().map_err(Fault::of)?, held: None })
    }

    fn take(&mut self, guard: palisade::Result<Option<Guard<M>>>) -> Result<Acquired, Fault> {
        let Some(guard) = guard.map_err(Fault::of)? else { return Ok(Acquired::Busy) };
        self.held = Some(guard);
        Ok(Acquired::Yes)
    }

    fn give_back(&mut self) -> Result<Released, Fault> {
        let Some(guard) = self.held.take() else { return Ok(Released::NotHeld) };
        match guard.release().wait().map_err(Fault::of)? {
            palisade::Released::Done => Ok(Released::Yes),
            palisade::Released::AlreadyLost => Ok(Released::NotHeld),
            palisade::Released::Unknown => Ok(Released::Unsaid),
        }
    }

    /// The keeper extends by itself, and there is no other way: this says whether it does.
    fn extended(&self) -> Extended {
        if self.held.as_ref().is_some_and(Guard::is_held) { Extended::Yes } else { Extended::NotHeld }
    }
}

fn finite(lease: Option<Duration>) -> Result<Duration, Fault> {
    lease.ok_or_else(|| Fault::new("palisade has no lock without an end"))
}

/// A wait that ended in vain is no error here.
fn in_time<G>(waited: palisade::Result<G>) -> palisade::Result<Option<G>> {
    match waited {
        Ok(guard) => Ok(Some(guard)),
        Err(error) if matches!(error.kind(), ErrorKind::Timeout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Participant for Ours<Exclusive> {
    fn acquire(&mut self, name: &str, lease: Option<Duration>, wait: Duration) -> Result<Acquired, Fault> {
        let lock = self.locks.mutex(name).lease(finite(lease)?);
        let guard = if wait.is_zero() { lock.try_acquire().wait() } else { in_time(lock.acquire_timeout(wait).wait()) };
        self.take(guard)
    }

    fn release(&mut self) -> Result<Released, Fault> {
        self.give_back()
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        Ok(self.extended())
    }
}

impl Participant for Ours<Shared> {
    fn acquire(&mut self, name: &str, lease: Option<Duration>, wait: Duration) -> Result<Acquired, Fault> {
        let lock = self.locks.rwlock(name).lease(finite(lease)?);
        let guard = if wait.is_zero() { lock.try_read().wait() } else { in_time(lock.read_timeout(wait).wait()) };
        self.take(guard)
    }

    fn release(&mut self) -> Result<Released, Fault> {
        self.give_back()
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        Ok(self.extended())
    }
}
