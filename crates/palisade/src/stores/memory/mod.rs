//! `memory:` — the line itself, inside this process. Each `connect("memory:")` makes a store of its
//! own, which excludes no other; `memory:NAME` is one store for all clients of the process that
//! give the same name.
//!
//! It is for tests, and for programs that want the same locks with and without
//! a server. Its futures are ready at once, so every verb is one call in the caller's thread:
//! acquire 1, release 1, hand-off 1 plus one wake-up of the next in line.

mod lines;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use async_trait::async_trait;

use self::lines::Lines;
use crate::error::Result;
use crate::lease::{BootClock, Clock};
use crate::line::StoreTime;
use crate::name::Name;
use crate::store::{
    Capability, ClaimRef, ClientHandle, Detach, Durability, Extensions, FenceSource, Observation,
    Observe, Page, Ping, Query, ServerInfo, Standing, Store,
};
use crate::stores::kit::line::{Effect, Event, LineBackend, LineStore};
use crate::url::StoreUrl;

/// The capability of the memory store.
pub const CAPABILITY: Capability = Capability {
    store: "memory",
    durability: Durability::Process,
    fence: FenceSource::Counter,
    observe: true,
    detach: Detach::InProcess,
    ..Capability::LINE
};

/// The lines that clients of one name share.
static SHARED: Mutex<Option<HashMap<String, Weak<NamedLines>>>> = Mutex::new(None);

/// The lines of one `memory:NAME`, and their clock.
struct NamedLines {
    lines: Mutex<Lines>,
    clock: Arc<dyn Clock>,
}

impl NamedLines {
    fn new(clock: Arc<dyn Clock>) -> Arc<NamedLines> {
        Arc::new(NamedLines {
            lines: Mutex::default(),
            clock,
        })
    }

    /// The lines of this name; made if no client has them.
    fn named(name: &str) -> Arc<NamedLines> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let stores = shared.get_or_insert_default();
        if let Some(lines) = stores.get(name).and_then(Weak::upgrade) {
            return lines;
        }
        stores.retain(|_, lines| lines.strong_count() > 0);
        let lines = NamedLines::new(Arc::new(BootClock));
        stores.insert(name.to_owned(), Arc::downgrade(&lines));
        lines
    }
}

/// The memory store: lines in this process.
pub type MemoryStore = LineStore<Memory>;

/// One client's access to the lines.
pub struct Memory {
    lines: Arc<NamedLines>,
    client: OnceLock<ClientHandle>,
}

/// Opens `memory:` or `memory:NAME`.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    url.finish(&[])?;
    let store = match url.local_path()? {
        "" => MemoryStore::new(Arc::new(BootClock)),
        name => LineStore(Memory::of(NamedLines::named(name))),
    };
    Ok(Arc::new(store))
}

impl MemoryStore {
    /// Empty lines, which expire by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> MemoryStore {
        LineStore(Memory::of(NamedLines::new(clock)))
    }

    /// Another client's access to the same lines.
    #[must_use]
    pub fn another(&self) -> MemoryStore {
        LineStore(Memory::of(Arc::clone(&self.0.lines)))
    }

    /// How many names the lines know: held, waited for, closed, marked or sealed.
    pub fn names(&self) -> usize {
        self.0.with_lines(|lines, now| lines.names(now))
    }
}

impl Memory {
    fn of(lines: Arc<NamedLines>) -> Memory {
        Memory {
            lines,
            client: OnceLock::new(),
        }
    }

    fn with_lines<T>(&self, act: impl FnOnce(&mut Lines, StoreTime) -> T) -> T {
        let mut lines = self
            .lines
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Under the mutex, so that two events are applied in the order of their times.
        let now = StoreTime::at(self.lines.clock.now().since_zero());
        act(&mut lines, now)
    }
}

#[async_trait]
impl LineBackend for Memory {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, client: ClientHandle) {
        // Attached once.
        let _ = self.client.set(client);
    }

    async fn apply(&self, event: Event) -> Result<Effect> {
        self.with_lines(|lines, now| lines.apply(now, &event, self.client.get()))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.with_lines(|lines, now| {
            claims
                .iter()
                .map(|claim| Ok(lines.renew(now, claim, self.client.get())))
                .collect()
        })
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Ok(self.with_lines(|lines, now| lines.inspect(now, query)))
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            observe: Some(self),
            ping: Some(self),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Memory {
    async fn ping(&self) -> Result<ServerInfo> {
        Ok(ServerInfo {
            product: "memory".to_owned(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            ..ServerInfo::default()
        })
    }
}

#[async_trait]
impl Observe for Memory {
    async fn observe(&self, name: &Name) -> Result<Observation> {
        Ok(self.with_lines(|lines, now| lines.observe(now, name)))
    }
}
