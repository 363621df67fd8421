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
    /// Enters the hash of a read/write lock correctly, and leaves out the key beside it that tells
    /// until when a reader is alive. Another reader that leaves then ends the lock.
    ReadsWithoutALease,
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

const READ: &str = "\
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode == 'write' then return 0 end
redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[1], '1')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";

const READ_NO_MORE: &str = "\
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('HLEN', KEYS[1]) <= 1 then
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
        let lease = lease
            .unwrap_or(Duration::from_secs(3))
            .as_millis()
            .to_string();
        let is_acquired = match self.lock {
            Lock::Read => self.eval(READ, &key, &lease)?,
            // Here it makes the simplest mistake, for which it need not know the keys.
            Lock::Write | Lock::Semaphore | Lock::Permit => false,
            _ => self.eval(ACQUIRE, &key, &lease)?,
        };
        if is_acquired {
            self.held = Some(key);
            return Ok(Acquired::Yes);
        }
        Ok(match self.mistake {
            Mistake::HasOneOwner | Mistake::ReadsWithoutALease => Acquired::Busy,
            Mistake::IgnoresTheAnswer | Mistake::DeletesTheLock => Acquired::Yes,
        })
    }

    fn release(&mut self) -> Result<Released, Fault> {
        if let Some(key) = self.held.take() {
            let (script, channel) = match self.lock {
                Lock::Read => (READ_NO_MORE, format!("redisson_rwlock:{{{key}}}")),
                _ => (RELEASE, format!("redisson_lock__channel:{{{key}}}")),
            };
            self.eval(script, &key, &channel)?;
        }
        // It ignores this answer, too.
        Ok(Released::Unsaid)
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        Ok(Extended::Yes)
    }
}
