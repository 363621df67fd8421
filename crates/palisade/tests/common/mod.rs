//! What these tests share: a client over the memory store, with faults between.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

pub mod actors;
pub mod bent;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "etcd")]
pub mod etcd_lines;
pub mod hooked;
#[cfg(feature = "redis")]
pub mod keys;
pub mod pair;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
#[cfg(feature = "zookeeper")]
pub mod zookeeper_rows;

use std::sync::Arc;
use std::time::Duration;

use palisade::lease::{BootClock, Clock};
use palisade::store::Capability;
use palisade::stores::memory::MemoryStore;
use palisade::{Client, Guard, Released};
use palisade_conformance::around::Wrapped;
use palisade_conformance::eventually;
use palisade_conformance::faults::{Faults, Faulty};

use hooked::Hooked;

/// A client that can be cut off, a client that cannot, and the faults between the first and the store they share.
pub struct Bench {
    pub client: Client,
    pub outside: Client,
    pub faults: Arc<Faults>,
}

pub fn bench() -> Bench {
    bench_on(Arc::new(BootClock), Arc::new(BootClock))
}

/// The same, with the client's clock and the store's clock given.
pub fn bench_on(ours: Arc<dyn Clock>, theirs: Arc<dyn Clock>) -> Bench {
    let store = MemoryStore::new(theirs);
    let (faulty, faults) = Faulty::over(Arc::new(store.another()));
    Bench {
        client: Client::over(faulty, ours),
        outside: Client::over(Arc::new(store), Arc::new(BootClock)),
        faults,
    }
}

/// The same over a store with oddities of its own, and a capability that the test may change.
pub fn hooked(ours: Arc<dyn Clock>, change: impl FnOnce(&mut Capability)) -> (Bench, Arc<Hooked>) {
    let store = MemoryStore::new(Arc::new(BootClock));
    let hooked = Arc::new(Hooked::over(store.another(), change));
    let (faulty, faults) = Faulty::over(Arc::new(Wrapped(Arc::clone(&hooked))));
    let outside = Client::over(Arc::new(store), Arc::new(BootClock));
    (
        Bench {
            client: Client::over(faulty, ours),
            outside,
            faults,
        },
        hooked,
    )
}

/// Waits until so many stand in line for the name.
pub async fn in_line(outside: &Client, name: &str, waiters: usize) {
    eventually("in line", async || {
        let line = outside.show(name).await.expect("an answer");
        line.is_some_and(|line| line.waiters.len() == waiters)
    })
    .await;
}

/// Releases a guard that still holds.
pub async fn give_back(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
}

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
