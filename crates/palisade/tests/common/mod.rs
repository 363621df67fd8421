//! What these tests share: a client over the memory store, with faults between.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod bent;

use std::sync::Arc;
use std::time::Duration;

use palisade::Client;
use palisade::lease::{BootClock, Clock};
use palisade::stores::memory::MemoryStore;
use palisade_conformance::faults::{Faults, Faulty};

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
    Bench { client: Client::over(faulty, ours), outside: Client::over(Arc::new(store), Arc::new(BootClock)), faults }
}

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
