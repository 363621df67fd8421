//! The locks of one process of a contest.

use std::process::ExitCode;

use palisade::{Guard, Mutex};

use super::super::lock::released;
use super::super::raw::Raw;
use crate::compare::Result;
use crate::compare::caller_kind::CallerKind;
use crate::compare::worker::{Contender, contend};

const NAME: &str = "handoff";

/// Runs as one process of a contest.
pub(crate) fn worker(words: &[&str]) -> ExitCode {
    match words {
        ["ours", url] => contend(CallerKind::CurrentThread, async || ours(url).await),
        ["server", url] => contend(CallerKind::CurrentThread, async || Raw::connect(url).await),
        _ => ExitCode::from(64),
    }
}

async fn ours(url: &str) -> Result<Mutex> {
    let locks = palisade::connect(url).await?;
    // Connects, without taking the contested lock.
    let warm = locks
        .mutex(format!("handoff/warm/{}", std::process::id()))
        .acquire()
        .await?;
    released(warm.release().await?)?;
    Ok(locks.mutex(NAME))
}

impl Contender for Mutex {
    type Held = Guard;

    async fn take(&mut self) -> Result<Guard> {
        Ok(self.acquire().await?)
    }

    async fn give_back(&mut self, held: Guard) -> Result<()> {
        released(held.release().await?)
    }
}

impl Contender for Raw {
    /// The key.
    type Held = Vec<u8>;

    async fn take(&mut self) -> Result<Vec<u8>> {
        self.lock(NAME).await
    }

    async fn give_back(&mut self, key: Vec<u8>) -> Result<()> {
        self.unlock(key).await
    }
}
