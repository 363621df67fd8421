//! The helper of the test with `panic = "abort"`: `bare_caller URL` acquires and releases from
//! runtimes without I/O and timers.
//!
//! It ends by itself if all went well. A panic anywhere, also one that would be caught, aborts it.

use std::error::Error;

use palisade::Client;
use tokio::runtime::{Builder, Runtime};

fn main() -> Result<(), Box<dyn Error>> {
    if cfg!(not(panic = "abort")) {
        return Err("this program is to be built with panic=abort".into());
    }
    let url = std::env::args().nth(1).ok_or("usage: bare_caller URL")?;
    every_verb(&Builder::new_current_thread().build()?, &url)?;
    every_verb(
        &Builder::new_multi_thread().worker_threads(1).build()?,
        &url,
    )
}

fn every_verb(bare: &Runtime, url: &str) -> Result<(), Box<dyn Error>> {
    let (ours, theirs) = (Client::connect(url)?, Client::connect(url)?);
    bare.block_on(async {
        let (lock, other) = (ours.mutex("bare"), theirs.mutex("bare"));
        // A store may treat a runtime that it knows otherwise than a new one.
        let cycled = lock.clone();
        let cycles = bare.spawn(async move {
            for _ in 0..20 {
                let _ = cycled.acquire().await?.release().await?;
            }
            Ok::<_, palisade::Error>(())
        });
        cycles.await??;
        let held = lock.acquire().await?;
        if other.try_acquire().await?.is_some() {
            return Err("two hold it".into());
        }
        let waiting = bare.spawn(async move { other.acquire().await });
        // In a task, too, so that a worker without I/O polls it.
        let _ = bare.spawn(held.release()).await??;
        drop(waiting.await??);
        theirs.shutdown().await;
        drop(lock.acquire().await?);
        ours.shutdown().await;
        Ok(())
    })
}
