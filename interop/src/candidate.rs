use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use palisade::blocking::Wait;
use palisade::{Client, ErrorKind, Leadership};

use crate::participant::{Acquired, Extended, Fault, Led, Participant, Proclaimed, Released};

/// Palisade's election, through its public API, over any store.
pub struct Candidate {
    locks: Client,
    value: String,
    held: Option<Leadership>,
    observing: Option<(String, Receiver<Result<String, Fault>>)>,
}

impl Candidate {
    /// Over the store at this URL, with the value that it proclaims.
    ///
    /// # Errors
    ///
    /// As [`palisade::connect`].
    pub fn connect(url: &str, value: String) -> Result<Self, Fault> {
        Ok(Self {
            locks: palisade::connect(url).wait().map_err(Fault::of)?,
            value,
            held: None,
            observing: None,
        })
    }

    /// A thread reads the next leader in a loop, because the blocking API waits without a limit.
    fn begin_observing(&self, name: &str) -> Result<Receiver<Result<String, Fault>>, Fault> {
        let mut observer = self
            .locks
            .election(name)
            .observe()
            .wait()
            .map_err(Fault::of)?;
        let (sender, told) = channel();
        thread::spawn(move || {
            loop {
                let next = observer
                    .next()
                    .wait()
                    .map(|leader| leader.value)
                    .map_err(Fault::of);
                let is_last = next.is_err();
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        });
        Ok(told)
    }
}

impl Participant for Candidate {
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault> {
        let lease = lease.ok_or_else(|| Fault::new("palisade has no lead without an end"))?;
        let election = self.locks.election(name).lease(lease);
        match election.campaign_timeout(&self.value, wait).wait() {
            Ok(leadership) => self.held = Some(leadership),
            Err(error) if matches!(error.kind(), ErrorKind::Timeout) => return Ok(Acquired::Busy),
            Err(error) => return Err(Fault::of(error)),
        }
        Ok(Acquired::Yes)
    }

    fn release(&mut self) -> Result<Released, Fault> {
        let Some(leadership) = self.held.take() else {
            return Ok(Released::NotHeld);
        };
        match leadership.resign().wait().map_err(Fault::of)? {
            palisade::Released::Done => Ok(Released::Yes),
            palisade::Released::AlreadyLost => Ok(Released::NotHeld),
            palisade::Released::Unknown => Ok(Released::Unsaid),
        }
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        let leads = self.held.as_ref().is_some_and(Leadership::is_held);
        Ok(if leads {
            Extended::Yes
        } else {
            Extended::NotHeld
        })
    }

    fn proclaim(&mut self, value: &str) -> Result<Proclaimed, Fault> {
        let Some(leadership) = &self.held else {
            return Ok(Proclaimed::NotHeld);
        };
        match leadership.proclaim(value).wait() {
            Ok(()) => Ok(Proclaimed::Yes),
            Err(error) if matches!(error.kind(), ErrorKind::Lost { .. }) => Ok(Proclaimed::NotHeld),
            Err(error) => Err(Fault::of(error)),
        }
    }

    fn leader(&mut self, name: &str) -> Result<Led, Fault> {
        let leader = self
            .locks
            .election(name)
            .leader()
            .wait()
            .map_err(Fault::of)?;
        Ok(leader.map_or(Led::NoLeader, |leader| Led::By(leader.value)))
    }

    fn observe(&mut self, name: &str, wait: Duration) -> Result<Led, Fault> {
        if self
            .observing
            .as_ref()
            .is_none_or(|(observed, _)| observed != name)
        {
            self.observing = Some((name.to_owned(), self.begin_observing(name)?));
        }
        let Some((_, told)) = &self.observing else {
            unreachable!("it was just begun")
        };
        match told.recv_timeout(wait) {
            Ok(next) => next.map(Led::By),
            Err(RecvTimeoutError::Timeout) => Ok(Led::NoLeader),
            Err(RecvTimeoutError::Disconnected) => Err(Fault::new("the observation has ended")),
        }
    }
}
