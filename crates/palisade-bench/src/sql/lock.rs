//! One lock of either side, so that the same loop measures both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use palisade::{Client, Mutex};

use super::raw::Raw;
use crate::compare::Result;
use crate::compare::ours::released;

const LEASE: Duration = Duration::from_secs(30);

/// A client of one side.
#[derive(Clone)]
pub(super) enum Side {
    Ours(Client),
    Raw(Raw),
}

impl Side {
    pub(super) fn lock(&self, name: &str) -> Lock {
        match self {
            Side::Ours(locks) => Lock::Ours(Box::new(locks.mutex(name).lease(LEASE))),
            Side::Raw(raw) => Lock::Raw(raw.clone(), name.to_owned()),
        }
    }
}

pub(super) enum Lock {
    Ours(Box<Mutex>),
    Raw(Raw, String),
}

impl Lock {
    /// Takes it and gives it back until then; says how long each turn took. `held` is shared by all
    /// that contend for the name.
    pub(super) async fn cycle_until(
        self,
        end: Instant,
        held: Arc<AtomicBool>,
    ) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        let mut last = Instant::now();
        while last < end {
            self.cycle(&held).await?;
            let now = Instant::now();
            times.push(now - last);
            last = now;
        }
        Ok(times)
    }

    async fn cycle(&self, held: &AtomicBool) -> Result<()> {
        match self {
            Lock::Ours(lock) => {
                let guard = lock.acquire().await?;
                alone(held)?;
                released(guard.release().await?)
            }
            Lock::Raw(raw, name) => {
                raw.take(name).await?;
                alone(held)?;
                raw.give_back(name).await
            }
        }
    }
}

/// Between taking and giving back: there is no other holder.
fn alone(held: &AtomicBool) -> Result<()> {
    if held.swap(true, Ordering::SeqCst) {
        return Err("two holders at once".into());
    }
    held.store(false, Ordering::SeqCst);
    Ok(())
}
