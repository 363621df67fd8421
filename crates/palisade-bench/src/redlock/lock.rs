//! One lock of any side, so that the same loop measures all.

use std::time::{Duration, Instant};

use palisade::{Client, Mutex};
use redis::aio::MultiplexedConnection;
use rslock::LockManager;

use super::Result;
use super::raw::RawLock;
use crate::compare::ours::released;

const LEASE: Duration = Duration::from_secs(30);

/// A client of one side.
#[derive(Clone)]
pub(super) enum Side {
    Ours(Client),
    Raw(Vec<MultiplexedConnection>),
    Rslock(LockManager),
}

enum Lock {
    Ours(Box<Mutex>),
    Raw(Box<RawLock>),
    Rslock(LockManager),
}

impl Side {
    fn lock(&self) -> Lock {
        match self {
            Side::Ours(locks) => Lock::Ours(Box::new(locks.mutex("ours").lease(LEASE))),
            Side::Raw(connections) => {
                Lock::Raw(Box::new(RawLock::new(connections.clone(), "raw", LEASE)))
            }
            Side::Rslock(manager) => Lock::Rslock(manager.clone()),
        }
    }

    /// Takes it and gives it back for so long; says how long each turn took.
    pub(super) fn cycles(
        &self,
        length: Duration,
    ) -> impl Future<Output = Result<Vec<Duration>>> + Send + 'static + use<> {
        let lock = self.lock();
        async move {
            let mut times = Vec::new();
            let mut last = Instant::now();
            let end = last + length;
            while last < end {
                lock.cycle().await?;
                let now = Instant::now();
                times.push(now - last);
                last = now;
            }
            Ok(times)
        }
    }
}

impl Lock {
    async fn cycle(&self) -> Result<()> {
        match self {
            Lock::Ours(lock) => released(lock.acquire().await?.release().await?),
            Lock::Raw(lock) => lock.cycle().await,
            Lock::Rslock(manager) => {
                let lock = manager.lock("rslock", LEASE).await;
                let lock = lock.map_err(|error| format!("rslock: {error}"))?;
                manager.unlock(&lock).await;
                Ok(())
            }
        }
    }
}
