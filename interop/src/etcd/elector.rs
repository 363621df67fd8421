use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::etcdctl::{Turn, etcdctl};
use crate::participant::{Acquired, Extended, Fault, Led, Participant, Released};

/// `etcdctl elect`: a process for each candidacy, and one more to observe. Its lease is always a
/// minute.
#[derive(Debug)]
pub struct Elector {
    url: String,
    value: String,
    held: Option<Turn>,
    observing: Option<(String, Turn)>,
}

impl Elector {
    /// At `http://HOST:PORT`, with the value that it proclaims.
    #[must_use]
    pub fn new(url: &str, value: String) -> Self {
        Self {
            url: url.to_owned(),
            value,
            held: None,
            observing: None,
        }
    }

    fn elect(&self, words: &[&str]) -> Result<Turn, Fault> {
        let mut elect = etcdctl(&self.url);
        elect.arg("elect").args(words);
        Turn::begin(elect, None)
    }
}

impl Participant for Elector {
    fn acquire(
        &mut self,
        name: &str,
        _: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault> {
        if wait.is_zero() {
            return Err(Fault::new("etcdctl cannot ask without a wait"));
        }
        let mut turn = self.elect(&[name, &self.value])?;
        if !turn.holds_within(wait)? {
            return Ok(Acquired::Busy);
        }
        self.held = Some(turn);
        Ok(Acquired::Yes)
    }

    /// It deletes its key if that is still there, and prints nothing about it.
    fn release(&mut self) -> Result<Released, Fault> {
        let Some(mut turn) = self.held.take() else {
            return Ok(Released::NotHeld);
        };
        if turn.has_ended()? {
            return Ok(Released::NotHeld);
        }
        turn.interrupt().map(|_| Released::Unsaid)
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        let ended = self.held.as_mut().map_or(Ok(true), Turn::has_ended)?;
        Ok(if ended {
            Extended::NotHeld
        } else {
            Extended::Yes
        })
    }

    /// It says the key and the value of each leader, in a line each.
    fn observe(&mut self, name: &str, wait: Duration) -> Result<Led, Fault> {
        if self
            .observing
            .as_ref()
            .is_none_or(|(observed, _)| observed != name)
        {
            self.observing = Some((name.to_owned(), self.elect(&["--listen", name])?));
        }
        let Some((_, turn)) = &self.observing else {
            unreachable!("it was just begun")
        };
        match turn.said.recv_timeout(wait) {
            Ok(_key) => turn.said.recv_timeout(wait).map(Led::By).map_err(Fault::of),
            Err(RecvTimeoutError::Timeout) => Ok(Led::NoLeader),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Fault::new("etcdctl elect --listen has ended"))
            }
        }
    }
}
