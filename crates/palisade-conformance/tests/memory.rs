//! Every check, on the memory store.

use std::sync::Arc;

use palisade::lease::BootClock;
use palisade::stores::memory::MemoryStore;
use palisade_conformance::Subject;

fn subject() -> Subject {
    let store = MemoryStore::new(Arc::new(BootClock));
    Subject::new(move || Arc::new(store.another()))
}

palisade_conformance::suite!(subject());
