//! Shared by these tests: a client over the memory store, with faults in between.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

pub mod actors;
pub mod apart;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "etcd")]
pub mod etcd_lines;
#[cfg(feature = "redis")]
pub mod keys;
pub mod odd_store;
pub mod pair;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
pub mod scripted_store;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
#[cfg(feature = "zookeeper")]
pub mod zookeeper_fault_matrix;

use std::sync::Arc;
use std::time::Duration;

use palisade::lease::{BootClock, Clock};
use palisade::store::Capability;
use palisade::stores::memory::MemoryStore;
use palisade::{Client, Guard, Released};
use palisade_conformance::around::Wrapped;
use palisade_conformance::eventually;
use palisade_conformance::faults::{Faults, Faulty};

use odd_store::OddStore;

/// A client that can be cut off, a client that cannot, and the faults between the first and the
/// store they share.
pub struct Bench {
    pub client: Client,
    pub outside: Client,
    pub faults: Arc<Faults>,
}

pub fn bench() -> Bench {
    bench_on(Arc::new(BootClock), Arc::new(BootClock))
}

/// The same, with given clocks for the client and the store.
pub fn bench_on(ours: Arc<dyn Clock>, theirs: Arc<dyn Clock>) -> Bench {
    let store = MemoryStore::new(theirs);
    let (faulty, faults) = Faulty::over(Arc::new(store.another()));
    Bench {
        client: Client::over(faulty, ours),
        outside: Client::over(Arc::new(store), Arc::new(BootClock)),
        faults,
    }
}

/// The same over an [`OddStore`], with a capability that the test may change.
pub fn odd_bench(
    ours: Arc<dyn Clock>,
    change: impl FnOnce(&mut Capability),
) -> (Bench, Arc<OddStore>) {
    let store = MemoryStore::new(Arc::new(BootClock));
    let odd = Arc::new(OddStore::over(store.another(), change));
    let (faulty, faults) = Faulty::over(Arc::new(Wrapped(Arc::clone(&odd))));
    let outside = Client::over(Arc::new(store), Arc::new(BootClock));
    (
        Bench {
            client: Client::over(faulty, ours),
            outside,
            faults,
        },
        odd,
    )
}

/// Waits until `waiters` claims wait in line for the name.
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
