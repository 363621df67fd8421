//! One lock of any side, so that the same loop measures all.

use std::time::{Duration, Instant};

use palisade::{Client, Mutex};
use redis::aio::MultiplexedConnection;

use super::Result;
use super::floor::FloorLock;
use super::raw::RawLock;
use crate::compare::ours::released;

const LEASE: Duration = Duration::from_secs(30);

/// A client of one side.
#[derive(Clone)]
pub(super) enum Side {
    Ours(Client),
    Raw(MultiplexedConnection),
    Floor(MultiplexedConnection),
}

impl Side {
    pub(super) fn lock(&self, name: &str) -> Lock {
        match self {
            Side::Ours(locks) => Lock::Ours(Box::new(locks.mutex(name).lease(LEASE))),
            Side::Raw(connection) => {
                Lock::Raw(Box::new(RawLock::new(connection.clone(), name, LEASE)))
            }
            Side::Floor(connection) => {
                Lock::Floor(Box::new(FloorLock::new(connection.clone(), name, LEASE)))
            }
        }
    }
}

pub(super) enum Lock {
    Ours(Box<Mutex>),
    Raw(Box<RawLock>),
    Floor(Box<FloorLock>),
}

impl Lock {
    /// Takes it and gives it back until then; says how long each turn took.
    pub(super) async fn cycle_until(mut self, end: Instant) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        let mut last = Instant::now();
        while last < end {
            self.cycle().await?;
            let now = Instant::now();
            times.push(now - last);
            last = now;
        }
        Ok(times)
    }

    async fn cycle(&mut self) -> Result<()> {
        match self {
            Lock::Ours(lock) => released(lock.acquire().await?.release().await?),
            Lock::Raw(lock) => {
                lock.take().await?;
                lock.give_back().await
            }
            Lock::Floor(lock) => lock.cycle().await,
        }
    }
}
