//! Our lock, as a process of a contest uses it.

use palisade::{Guard, Mutex, Released};

use super::Result;
use super::worker::Contender;

/// Connects, without taking the contested lock.
pub(crate) async fn connect(url: &str, name: &str) -> Result<Mutex> {
    let locks = palisade::connect(url).await?;
    let warm = locks
        .mutex(format!("{name}/warm/{}", std::process::id()))
        .acquire()
        .await?;
    released(warm.release().await?)?;
    Ok(locks.mutex(name))
}

/// Anything but done means that the lock was not ours any more.
pub(crate) fn released(released: Released) -> Result<()> {
    match released {
        Released::Done => Ok(()),
        other => Err(format!("ours: not released: {other:?}").into()),
    }
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
