use std::time::Duration;

use palisade::blocking::Wait;
use palisade::{AnyMode, Client, ErrorKind, Guard, GuardMode, Identity, Latch, MultiGuard};

use crate::participant::{Acquired, Extended, Fault, Fenced, Participant, Released};

/// Which of Palisade's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The mutex.
    Mutex,
    /// The mutex, always by the same identity, which may enter again while it holds.
    Again,
    /// The read side of the read/write lock.
    Read,
    /// Its write side.
    Write,
    /// One permit of a semaphore with this limit.
    Permit(u32),
    /// The mutexes `NAME-1` and `NAME-2`, both at once.
    Two,
    /// A latch of so many: it is acquired when it is open. An extension sets it, and a release
    /// counts it down.
    Latch(u32),
}

/// Palisade, through its public API, over any store.
pub struct Ours {
    locks: Client,
    kind: Kind,
    identity: Identity,
    /// Several only where one may enter again.
    held: Vec<Held>,
}

enum Held {
    One(Guard<AnyMode>),
    All(MultiGuard),
    Open(Latch),
}

impl Ours {
    /// Over the store at this URL.
    ///
    /// # Errors
    ///
    /// As [`palisade::connect`].
    pub fn connect(url: &str, kind: Kind) -> Result<Self, Fault> {
        let locks = palisade::connect(url).wait().map_err(Fault::of)?;
        Ok(Self {
            identity: locks.identity("interop"),
            locks,
            kind,
            held: Vec::new(),
        })
    }

    fn attempt(&self, name: &str, lease: Duration) -> palisade::Result<Option<Held>> {
        match self.kind {
            Kind::Mutex => self
                .locks
                .mutex(name)
                .lease(lease)
                .try_acquire()
                .wait()
                .map(one),
            Kind::Again => self.again(name, lease, Duration::ZERO),
            Kind::Read => self
                .locks
                .rwlock(name)
                .lease(lease)
                .try_read()
                .wait()
                .map(one),
            Kind::Write => self
                .locks
                .rwlock(name)
                .lease(lease)
                .try_write()
                .wait()
                .map(one),
            Kind::Permit(limit) => self
                .locks
                .semaphore(name, limit)
                .lease(lease)
                .try_acquire()
                .wait()
                .map(one),
            Kind::Two => Ok(self
                .locks
                .multi(two(name))
                .lease_all(lease)
                .try_acquire()
                .wait()?
                .map(Held::All)),
            Kind::Latch(count) => self.open(name, count, Duration::ZERO),
        }
    }

    fn await_turn(
        &self,
        name: &str,
        lease: Duration,
        wait: Duration,
    ) -> palisade::Result<Option<Held>> {
        match self.kind {
            Kind::Mutex => in_time(
                self.locks
                    .mutex(name)
                    .lease(lease)
                    .acquire_timeout(wait)
                    .wait(),
            )
            .map(one),
            Kind::Again => self.again(name, lease, wait),
            Kind::Read => in_time(
                self.locks
                    .rwlock(name)
                    .lease(lease)
                    .read_timeout(wait)
                    .wait(),
            )
            .map(one),
            Kind::Write => in_time(
                self.locks
                    .rwlock(name)
                    .lease(lease)
                    .write_timeout(wait)
                    .wait(),
            )
            .map(one),
            Kind::Permit(limit) => in_time(
                self.locks
                    .semaphore(name, limit)
                    .lease(lease)
                    .acquire_timeout(wait)
                    .wait(),
            )
            .map(one),
            Kind::Two => {
                let all = in_time(
                    self.locks
                        .multi(two(name))
                        .lease_all(lease)
                        .acquire_timeout(wait)
                        .wait(),
                )?;
                Ok(all.map(Held::All))
            }
            Kind::Latch(count) => self.open(name, count, wait),
        }
    }

    fn open(&self, name: &str, count: u32, wait: Duration) -> palisade::Result<Option<Held>> {
        let latch = self.locks.latch(name, count);
        let is_open = latch.wait_timeout(wait).wait()?;
        Ok(is_open.then_some(Held::Open(latch)))
    }

    fn again(&self, name: &str, lease: Duration, wait: Duration) -> palisade::Result<Option<Held>> {
        let lock = self.locks.mutex(name).lease(lease);
        in_time(lock.acquire_timeout_as(&self.identity, wait).wait()).map(one)
    }
}

fn one<M: GuardMode>(guard: Option<Guard<M>>) -> Option<Held> {
    guard.map(|guard| Held::One(guard.into_any_mode()))
}

fn two(name: &str) -> [String; 2] {
    [format!("{name}-1"), format!("{name}-2")]
}

/// A wait that ended in vain is no error here.
fn in_time<G>(waited: palisade::Result<G>) -> palisade::Result<Option<G>> {
    match waited {
        Ok(guard) => Ok(Some(guard)),
        Err(error) if matches!(error.kind(), ErrorKind::Timeout) => Ok(None),
        Err(error) => Err(error),
    }
}

fn word(released: palisade::Result<palisade::Released>) -> Result<Released, Fault> {
    match released.map_err(Fault::of)? {
        palisade::Released::Done => Ok(Released::Yes),
        palisade::Released::AlreadyLost => Ok(Released::NotHeld),
        palisade::Released::Unknown => Ok(Released::Unsaid),
    }
}

impl Participant for Ours {
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault> {
        let lease = lease.ok_or_else(|| Fault::new("palisade has no lock without an end"))?;
        let held = if wait.is_zero() {
            self.attempt(name, lease)
        } else {
            self.await_turn(name, lease, wait)
        };
        let Some(held) = held.map_err(Fault::of)? else {
            return Ok(Acquired::Busy);
        };
        self.held.push(held);
        Ok(Acquired::Yes)
    }

    fn release(&mut self) -> Result<Released, Fault> {
        match self.held.pop() {
            None => Ok(Released::NotHeld),
            Some(Held::One(guard)) => word(guard.release().wait()),
            Some(Held::Open(latch)) => {
                latch.count_down().wait().map_err(Fault::of)?;
                Ok(Released::Unsaid)
            }
            Some(Held::All(guard)) => {
                let words = guard
                    .release()
                    .wait()
                    .members
                    .into_iter()
                    .map(|(_, released)| word(released));
                let words = words.collect::<Result<Vec<_>, Fault>>()?;
                // All, or the worst of them.
                let worst = [Released::NotHeld, Released::Unsaid]
                    .into_iter()
                    .find(|worst| words.contains(worst));
                Ok(worst.unwrap_or(Released::Yes))
            }
        }
    }

    /// The keeper extends by itself, and there is no other way: this says whether it does.
    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        let is_held = match self.held.last() {
            None => false,
            Some(Held::One(guard)) => guard.is_held(),
            Some(Held::All(guard)) => guard.is_held(),
            Some(Held::Open(latch)) => latch.set().wait().map_err(Fault::of)?,
        };
        Ok(if is_held {
            Extended::Yes
        } else {
            Extended::NotHeld
        })
    }
    fn fence(&mut self) -> Result<Fenced, Fault> {
        match self.held.last() {
            None => Ok(Fenced::NotHeld),
            Some(Held::One(guard)) => {
                let number = guard.fence().to_string().parse().map_err(Fault::of)?;
                Ok(Fenced::By(number))
            }
            Some(Held::All(_)) => Err(Fault::new("a multi-lock has a fence for each name")),
            Some(Held::Open(_)) => Err(Fault::new("a latch has no fence")),
        }
    }
}
