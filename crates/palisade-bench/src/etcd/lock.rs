//! One lock of either side, so that the same loop measures both.

use std::time::{Duration, Instant};

use palisade::{Client, Mutex};

use super::raw::{GivesBack, Raw, RawLock};
use crate::compare::Result;
use crate::compare::ours::released;

const LEASE: Duration = Duration::from_secs(30);

/// A client of one side.
#[derive(Clone)]
pub(super) enum Side {
    Ours(Client),
    Raw(Raw),
    /// Raw, with a release that compares.
    Floor(Raw),
}

impl Side {
    pub(super) fn lock(&self, name: &str) -> Lock {
        match self {
            Side::Ours(locks) => Lock::Ours(Box::new(locks.mutex(name).lease(LEASE))),
            Side::Raw(raw) => raw_lock(raw, name, GivesBack::ByKey),
            Side::Floor(raw) => raw_lock(raw, name, GivesBack::ByRevision),
        }
    }
}

fn raw_lock(raw: &Raw, name: &str, gives_back: GivesBack) -> Lock {
    Lock::Raw(Box::new(RawLock::new(raw.clone(), name, gives_back)))
}

pub(super) enum Lock {
    Ours(Box<Mutex>),
    Raw(Box<RawLock>),
}

impl Lock {
    /// Takes it and gives it back until then; says how long each turn took.
    pub(super) async fn cycle_until(self, end: Instant) -> Result<Vec<Duration>> {
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

    async fn cycle(&self) -> Result<()> {
        match self {
            Lock::Ours(lock) => released(lock.acquire().await?.release().await?),
            Lock::Raw(lock) => {
                lock.take().await?;
                lock.give_back().await
            }
        }
    }
}
