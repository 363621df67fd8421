use std::time::Duration;

use palisade_testkit::resp::{Connection, Reply};

use super::library::Lock;
use crate::participant::{Acquired, Extended, Fault, Participant, Released};
use crate::redis::connection::{call, open};

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Enters whatever the answer was.
    IgnoresTheAnswer,
    /// Deletes the lock of any holder, and enters.
    DeletesTheLock,
    /// Calls itself by the same name in every process: each re-enters the lock of the others.
    HasOneOwner,
}

/// The hash of an `RLock`, without a wait.
const ACQUIRE: &str = "\
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
return 0";

const RELEASE: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) <= 0 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[2], '0')
end
return 1";

/// A participant in a lock of Redisson, with a [`Mistake`].
#[derive(Debug)]
pub struct Saboteur {
    connection: Connection,
    mistake: Mistake,
    lock: Lock,
    owner: String,
    held: Option<String>,
}

impl Saboteur {
    /// Makes this mistake at `redis://HOST:PORT`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn connect(url: &str, mistake: Mistake, lock: Lock) -> Result<Self, Fault> {
        let id = match mistake {
            Mistake::HasOneOwner => 0,
            _ => fastrand::u128(..),
        };
        Ok(Self {
            connection: open(url)?,
            mistake,
            lock,
            owner: format!("{id:032x}:1"),
            held: None,
        })
    }

    /// The first of a multi-lock's two is enough for a mistake.
    fn key(&self, name: &str) -> String {
        match self.lock {
            Lock::Multi => format!("{name}-1"),
            _ => name.to_owned(),
        }
    }

    fn eval(&mut self, script: &str, key: &str, last: &str) -> Result<bool, Fault> {
        let words = ["EVAL", script, "1", key, &self.owner, last];
        Ok(call(&mut self.connection, &words)? == Reply::Int(1))
    }
}

impl Participant for Saboteur {
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        _: Duration,
    ) -> Result<Acquired, Fault> {
        let key = self.key(name);
        if self.mistake == Mistake::DeletesTheLock {
            call(&mut self.connection, &["DEL", &key])?;
        }
        // Of other kinds it does not know the keys, and makes the simplest mistake.
        let knows_the_keys = !matches!(
            self.lock,
            Lock::Read | Lock::Write | Lock::Semaphore | Lock::Permit
        );
        let lease = lease
            .unwrap_or(Duration::from_secs(3))
            .as_millis()
            .to_string();
        if knows_the_keys && self.eval(ACQUIRE, &key, &lease)? {
            self.held = Some(key);
            return Ok(Acquired::Yes);
        }
        Ok(match self.mistake {
            Mistake::HasOneOwner => Acquired::Busy,
            Mistake::IgnoresTheAnswer | Mistake::DeletesTheLock => Acquired::Yes,
        })
    }

    fn release(&mut self) -> Result<Released, Fault> {
        if let Some(key) = self.held.take() {
            let channel = format!("redisson_lock__channel:{{{key}}}");
            self.eval(RELEASE, &key, &channel)?;
        }
        // It ignores this answer, too.
        Ok(Released::Unsaid)
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        Ok(Extended::Yes)
    }
}
