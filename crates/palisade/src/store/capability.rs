//! The capability of a store, as plain data that docs, tests and the command line read.
//!
//! Fields name an ability (`downgrade`), a limit (`max_lease`) or a promise (`durability`). A new
//! field names the store that needs it.

use std::fmt;
use std::time::Duration;

/// The abilities and promises of one store in one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The store's word, as in its URL: `memory`, `redis`, …
    pub store: &'static str,
    /// The word of the format: `palisade`, `simple`, `curator`, …
    pub format: &'static str,
    /// The event that can lose a confirmed grant.
    pub durability: Durability,
    /// In which order waiters are served.
    pub order: Order,
    /// How a waiter learns that it is worth asking again.
    pub wakes: Wakes,
    /// Where fences come from.
    pub fence: FenceSource,
    /// The owner of a lease.
    pub lease_unit: LeaseUnit,
    /// The shortest lease.
    pub min_lease: Duration,
    /// The longest lease.
    pub max_lease: Duration,
    /// Whether it serves readers and a writer.
    pub rwlock: bool,
    /// Whether it serves permits.
    pub semaphore: bool,
    /// Whether a semaphore keeps its name when all permits are free, so that the name serves no other
    /// kind. For Redisson's.
    pub semaphore_stays: bool,
    /// Whether the mutex and the write side of the rwlock of one name are one line. Where not, they
    /// do not exclude each other.
    pub mutex_is_write_side: bool,
    /// Whether a writer can become a reader in one step.
    pub downgrade: bool,
    /// Whether a name can be kept closed for a minimum time.
    pub min_hold: bool,
    /// Whether a claim can be refused because one like it was granted too recently.
    pub once_per: bool,
    /// Whether a name can be sealed once its work is done.
    pub once: bool,
    /// Whether the value of an election's leader can be changed while it leads.
    pub proclaim: bool,
    /// Whether each new leader of an election, and each new value, is pushed to observers.
    pub observe: bool,
    /// Whether a grant can outlive the client that got it.
    pub detach: Detach,
    /// Whether lines can be listed.
    pub list: bool,
    /// Whether the owner, the reason and the fence of a holder are known to other clients, and so
    /// the value of a leader. Where not, the store only knows which session holds. For the session
    /// locks of SQL.
    pub holders_known: bool,
    /// Whether waiters are known, with their order.
    pub waiters_known: bool,
    /// Whether a waiter has a short lease of its own, so that a dead one costs the others little.
    /// Where not, it stays in line for its whole lease. For ZooKeeper.
    pub short_waits: bool,
    /// Whether a grant can be ended by an operator.
    pub revoke: bool,
    /// Whether a holder is told of a revocation by push, and not only at its next renewal.
    pub revoke_pushed: bool,
    /// Whether `claim` may wait inside the engine. A concurrent `release` of its id ends it, also
    /// one that arrives first.
    pub claim_blocks: bool,
    /// Whether every name can be taken. Where not, names are written as they are, for the peers of
    /// the format, and an impossible name is refused. For Redis in the format `simple`.
    pub any_name: bool,
}

/// Presets, one for each family of stores. A store takes its family's, and changes the fields that
/// differ.
impl Capability {
    /// A store that runs our line by itself: memory, SQLite, Redis.
    pub const LINE: Capability = Capability {
        store: "",
        format: "line",
        durability: Durability::Server,
        order: Order::Fifo,
        wakes: Wakes::Push,
        fence: FenceSource::CounterAndClock,
        lease_unit: LeaseUnit::Claim,
        min_lease: Duration::from_millis(100),
        max_lease: Duration::from_secs(24 * 3600),
        rwlock: true,
        semaphore: true,
        semaphore_stays: false,
        mutex_is_write_side: true,
        downgrade: true,
        min_hold: true,
        once_per: true,
        once: true,
        proclaim: true,
        observe: false,
        detach: Detach::Anywhere,
        list: true,
        holders_known: true,
        waiters_known: true,
        short_waits: true,
        revoke: true,
        revoke_pushed: true,
        claim_blocks: false,
        any_name: true,
    };

    /// A store with sessions and an order of its own: etcd, ZooKeeper.
    pub const SESSION: Capability = Capability {
        durability: Durability::Quorum,
        wakes: Wakes::Watch,
        fence: FenceSource::Revision,
        lease_unit: LeaseUnit::Session,
        once_per: false,
        ..Capability::LINE
    };

    /// One value that is put if absent: a mutex without a queue.
    pub const TOKEN: Capability = Capability {
        order: Order::None,
        wakes: Wakes::Poll,
        rwlock: false,
        semaphore: false,
        downgrade: false,
        min_hold: false,
        once_per: false,
        once: false,
        proclaim: false,
        list: false,
        waiters_known: false,
        revoke_pushed: false,
        ..Capability::LINE
    };
}

/// The store and its format, for messages: another format may have what this one lacks.
impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in the format {}", self.store, self.format)
    }
}

/// The event that can lose a confirmed grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process.
    Process,
    /// A restart of this machine.
    Machine,
    /// A restart or a failover of the server.
    Server,
    /// A failover to a server that missed the last writes. A restart keeps every grant. For
    /// PostgreSQL and MySQL.
    Failover,
    /// The loss of a majority of the servers.
    Quorum,
}

/// In which order waiters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First come, first served.
    Fifo,
    /// The engine has a queue of its own.
    Engine,
    /// The first claim to ask after a release.
    None,
}

/// How a waiter learns that it is worth asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakes {
    /// The store tells only the next in line.
    Push,
    /// The waiter watches the entry before its own.
    Watch,
    /// The statement itself waits.
    Engine,
    /// The waiter asks again, at random within bounds.
    Poll,
}

/// Where fences come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceSource {
    /// A counter of the store.
    Counter,
    /// The larger of a counter and the store's clock.
    CounterAndClock,
    /// The store's clock alone, read after the grant: a clock that is set back gives lower fences.
    Clock,
    /// The store's own revision of the whole database.
    Revision,
    /// The format has none.
    None,
}

/// The owner of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseUnit {
    /// Each claim has its own.
    Claim,
    /// A session, shared by the client's claims of one length; its end loses them all.
    Session,
}

/// Whether a grant can outlive the client that got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// It cannot.
    Never,
    /// To another client of the same process.
    InProcess,
    /// To any process that reaches the store.
    Anywhere,
}
