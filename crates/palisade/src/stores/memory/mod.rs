//! `memory:` — the line itself, inside this process.
//!
//! `memory:` is private to its client; `memory:NAME` is shared by all clients of the process that give the same name. It is for
//! tests, and for programs that want the same locks with and without a server. Its futures are ready at once, so every verb is
//! one call in the caller's thread: acquire 1, release 1, hand-off 1 plus one wake-up of the next in line.

mod lines;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;

use self::lines::Lines;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::{BootClock, Clock};
use crate::line::StoreTime;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Claim, ClaimRef, Detach, Durability, Ending, Event, FenceSource, Leader, LeaseUnit, Observation, Order,
    Page, Query, Released, Revoked, Standing, Store, Wakes, Woken,
};
use crate::stores::events::Events;
use crate::url::StoreUrl;

/// What the memory store can do.
pub const CAPABILITY: Capability = Capability {
    store: "memory",
    format: "line",
    durability: Durability::Process,
    order: Order::Fifo,
    wakes: Wakes::Push,
    fence: FenceSource::Counter,
    lease_unit: LeaseUnit::Claim,
    min_lease: Duration::from_millis(100),
    max_lease: Duration::from_secs(24 * 3600),
    rwlock: true,
    semaphore: true,
    mutex_is_write_side: true,
    downgrade: true,
    min_hold: true,
    once_per: true,
    once: true,
    proclaim: true,
    observe: true,
    detach: Detach::InProcess,
    list: true,
    waiters_known: true,
    short_waits: true,
    revoke: true,
    revoke_pushed: true,
    name_limit: Name::LONGEST,
    renew_batch: 1024,
    claim_blocks: false,
};

/// The lines that clients of one name share.
static SHARED: Mutex<Option<HashMap<String, Weak<Hall>>>> = Mutex::new(None);

/// Lines, and the clock that they expire by.
struct Hall {
    lines: Mutex<Lines>,
    clock: Arc<dyn Clock>,
}

impl Hall {
    fn new(clock: Arc<dyn Clock>) -> Arc<Hall> {
        Arc::new(Hall { lines: Mutex::default(), clock })
    }

    /// The hall of this name; made if nobody is in it.
    fn named(name: &str) -> Arc<Hall> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let halls = shared.get_or_insert_default();
        if let Some(hall) = halls.get(name).and_then(Weak::upgrade) {
            return hall;
        }
        halls.retain(|_, hall| hall.strong_count() > 0);
        let hall = Hall::new(Arc::new(BootClock));
        halls.insert(name.to_owned(), Arc::downgrade(&hall));
        hall
    }
}

/// One client's door to the lines.
pub struct MemoryStore {
    hall: Arc<Hall>,
    inbox: Arc<Events>,
}

/// Opens `memory:` or `memory:NAME`.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    url.finish(&[])?;
    let store = match url.local_path()? {
        "" => MemoryStore::new(Arc::new(BootClock)),
        name => MemoryStore { hall: Hall::named(name), inbox: Arc::default() },
    };
    Ok(Arc::new(store))
}

impl MemoryStore {
    /// Empty lines, which expire by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> MemoryStore {
        MemoryStore { hall: Hall::new(clock), inbox: Arc::default() }
    }

    /// Another client's door to the same lines.
    #[must_use]
    pub fn another(&self) -> MemoryStore {
        MemoryStore { hall: Arc::clone(&self.hall), inbox: Arc::default() }
    }

    /// How many names the lines know: held, waited for, closed, marked or sealed.
    pub fn names(&self) -> usize {
        self.with_lines(|lines, now| lines.names(now))
    }

    fn with_lines<T>(&self, act: impl FnOnce(&mut Lines, StoreTime) -> T) -> T {
        let mut lines = self.hall.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: two events are applied in the order of their times.
        let now = StoreTime::at(self.hall.clock.now().since_zero());
        act(&mut lines, now)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        self.with_lines(|lines, now| lines.claim(now, claim, &self.inbox))
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        match self.with_lines(|lines, _| lines.mailbox(claim.id)) {
            Some(mailbox) => mailbox.next().await,
            // It is not in line any more; its renewal says why.
            None => Woken::Ask,
        }
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.with_lines(|lines, now| claims.iter().map(|claim| Ok(lines.renew(now, claim, &self.inbox))).collect())
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        Ok(self.with_lines(|lines, now| lines.release(now, claim, ending)))
    }

    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        Ok(self.with_lines(|lines, now| lines.downgrade(now, claim)))
    }

    async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        Ok(self.with_lines(|lines, now| lines.leader(now, name)))
    }

    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        Ok(self.with_lines(|lines, now| lines.proclaim(now, claim, value)))
    }

    async fn observe(&self, name: &Name) -> Result<Observation> {
        Ok(self.with_lines(|lines, now| lines.observe(now, name)))
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        Ok(self.with_lines(|lines, now| lines.revoke(now, name, fence)))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Ok(self.with_lines(|lines, now| lines.inspect(now, query)))
    }

    async fn event(&self) -> Event {
        self.inbox.next().await
    }
}
