use std::thread;
use std::time::{Duration, Instant};

use palisade_testkit::resp::{Connection, Reply};

use super::connection::{call, open};
use crate::participant::{Acquired, Extended, Fault, Participant, Released};

const RETRY_DELAY: Duration = Duration::from_millis(10);

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// The bare format. It tells a fault of ours from a fault of a peer, and saboteurs are made of it.
#[derive(Debug)]
pub struct Raw {
    connection: Connection,
    /// Name and token of what it acquired last.
    held: Option<(String, String)>,
}

impl Raw {
    /// Connects to `redis://HOST:PORT`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn connect(url: &str) -> Result<Self, Fault> {
        Ok(Self {
            connection: open(url)?,
            held: None,
        })
    }

    /// Deletes the lock of any holder. For saboteurs.
    pub(crate) fn delete(&mut self, name: &str) -> Result<(), Fault> {
        call(&mut self.connection, &["DEL", name]).map(drop)
    }

    fn attempt(&mut self, name: &str, token: &str, lease: Option<Duration>) -> Result<bool, Fault> {
        let lease = lease.map(|lease| lease.as_millis().to_string());
        let mut words = vec!["SET", name, token, "NX"];
        if let Some(lease) = &lease {
            words.extend(["PX", lease]);
        }
        Ok(call(&mut self.connection, &words)? != Reply::Nil)
    }

    fn if_held(&mut self, script: &str, more: &[&str]) -> Result<bool, Fault> {
        let Some((name, token)) = &self.held else {
            return Ok(false);
        };
        let mut words = vec!["EVAL", script, "1", name, token];
        words.extend(more);
        Ok(call(&mut self.connection, &words)? == Reply::Int(1))
    }
}

impl Participant for Raw {
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault> {
        let token = format!("{:032x}", fastrand::u128(..));
        let end = Instant::now() + wait;
        while !self.attempt(name, &token, lease)? {
            if Instant::now() >= end {
                return Ok(Acquired::Busy);
            }
            thread::sleep(RETRY_DELAY);
        }
        self.held = Some((name.to_owned(), token));
        Ok(Acquired::Yes)
    }

    fn release(&mut self) -> Result<Released, Fault> {
        let released = self.if_held(RELEASE, &[])?;
        self.held = None;
        Ok(if released {
            Released::Yes
        } else {
            Released::NotHeld
        })
    }

    fn extend(&mut self, lease: Duration) -> Result<Extended, Fault> {
        let extended = self.if_held(EXTEND, &[&lease.as_millis().to_string()])?;
        Ok(if extended {
            Extended::Yes
        } else {
            Extended::NotHeld
        })
    }
}
