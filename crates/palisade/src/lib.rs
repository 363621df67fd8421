//! Distributed locks that say what they guarantee.
//!
//! ```
//! # use palisade::blocking::Wait;
//! # async fn example() -> palisade::Result<()> {
//! let locks = palisade::connect("memory:").await?; //           which store decides
//! let guard = locks.mutex("orders/42").acquire().await?; //      waits in line
//! println!("writing with fence {}", guard.fence()); //           the resource refuses an older one
//! guard.release().await?; //                                     or drop it
//! # Ok(())
//! # }
//! # example().wait().unwrap();
//! ```
//!
//! Each `connect("memory:")` is a store of its own, which excludes no other: `memory:NAME` is one
//! store for a whole process, and other URLs name a file or servers. `connect` only parses the URL;
//! [`ping`](Client::ping) connects, and finds a wrong password.
//!
//! # Three promises, kept apart
//!
//! 1. **The store excludes**, as long as it keeps what it confirmed. What may make it forget is in
//!    its [`Capability`](store::Capability).
//! 2. **The holder is told in time.** A guard knows, by its own clock alone, until when it
//!    certainly holds: the deadline counts from before the request was sent. [`Guard::is_held`]
//!    reads the clock, [`Guard::lost`] and [`Guard::on_lost`] fire before the store may admit
//!    another holder, with the network cut and your runtime blocked. What the store drops by itself
//!    (a failover, a flush, an operator) the holder learns at the next contact.
//! 3. **A stale write is refused**, also where 1 and 2 break, if the resource checks the [`Fence`]:
//!    see [`fence`].
//!
//! No lock alone is safe. A program that is paused between its look at the guard and its write has
//! stale hands, whatever lock it uses: only the third promise stops that write.
//!
//! # The model
//!
//! A **claim** asks the **store** for a **name**. The claims of a name stand in one **line**, first
//! come, first served. The store's yes is a **grant**: a **fence**, and a **lease** that the
//! client's keeper renews until the **guard** is given back, dropped, or lost.
//!
//! | you want | you write |
//! |---|---|
//! | one at a time | [`locks.mutex(name)`](Client::mutex) |
//! | readers and a writer | [`locks.rwlock(name)`](Client::rwlock) |
//! | at most N | [`locks.semaphore(name, n)`](Client::semaphore) |
//! | several at once, all or nothing | [`locks.multi([…])`](Client::multi) |
//! | a part of a hot thing, or the whole of it | [`locks.striped(name, n)`](Client::striped) |
//! | one leader, whom others can ask for | [`locks.election(name)`](Client::election) |
//! | to enter again what you hold | [`lock.acquire_as(&identity)`](Mutex::acquire_as) |
//! | once per period on many hosts | [`lock.once_per(period)`](Mutex::once_per) |
//! | once, however often it is asked for | [`locks.once(key)`](Client::once) |
//! | work that stops when the lock is lost | [`lock.run(\|guard\| async { … })`](Mutex::run) |
//! | stale writes refused by a file, a row, a key | [`fence`] |
//! | no lock: change it only if it has not changed | [`versioned`] |
//! | rows of your own tables, in your own transaction | [`row_lock`] |
//! | no runtime | [`blocking`] |
//! | to see and to end others' locks | [`Client::list`], [`Client::show`], [`Client::revoke`] |
//!
//! Verbs are tokio's: `acquire` waits, `try_acquire` answers `Ok(None)` when another claim holds
//! it, `acquire_timeout` waits for at most so long. Dropping any future at any point withdraws what
//! it had asked for. Nothing here needs the caller's runtime.
//!
//! # How a request flows
//!
//! ```text
//! client ─► lock ─► engine ──claim──► store ─► memory …
//!             ▲         │                │
//!           guard ◄── lease (keeper, warden) ◄── grant
//! ```
//!
//! Stores implement [`store::Store`]; [`line`](mod@line) is what they all must do, as a pure state
//! machine.

// A snippet of a page or of the documentation does not warn when it is pasted.
#![doc(test(attr(deny(warnings), allow(dead_code))))]

pub mod blocking;
mod client;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod database;
mod duration_text;
mod engine;
mod error;
pub mod fence;
mod guard;
pub mod lease;
pub mod line;
mod lock;
mod name;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod row_lock;
pub mod store;
pub mod stores;
pub mod url;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]
pub mod versioned;

pub use client::{Client, Pong, Stats, connect};
pub use duration_text::{parse_duration, show_duration};
pub use engine::acquire::WaitLimit;
pub use error::{Error, ErrorKind, Result};
pub use fence::{Fence, SharedFence};
pub use guard::{AnyMode, DetachedGrant, Exclusive, Guard, GuardMode, Permits, Refused, Shared};
pub use lease::{LossReason, Status};
pub use lock::{
    Attempt, Cause, Election, Identity, Latch, Leadership, Member, Multi, MultiGuard,
    MultiReleased, Mutex, Observer, Obstacle, Once, OnceGuard, OncePer, RwLock, Semaphore, Striped,
};
pub use name::Name;
pub use store::{Leader, Released};
pub use url::StoreUrl;

/// The examples of the pages are run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/choosing.md")]
    struct Choosing;
    // It shows databases and a Redis.
    #[cfg(all(
        feature = "sqlite",
        feature = "redis",
        feature = "postgres",
        feature = "mysql"
    ))]
    #[doc = include_str!("../../../docs/fencing.md")]
    struct Fencing;
    #[cfg(all(feature = "postgres", feature = "mysql"))]
    #[doc = include_str!("../../../docs/recipes/stock.md")]
    struct Stock;
    #[doc = include_str!("../../../docs/stores/redis.md")]
    #[cfg(feature = "redis")]
    struct Redis;
    #[doc = include_str!("../../../docs/stores/redisson.md")]
    #[cfg(feature = "redis")]
    struct Redisson;
    #[doc = include_str!("../../../docs/stores/etcd.md")]
    #[cfg(feature = "etcd")]
    struct Etcd;
    #[doc = include_str!("../../../docs/stores/zookeeper.md")]
    #[cfg(feature = "zookeeper")]
    struct ZooKeeper;
    #[doc = include_str!("../../../docs/stores/mysql.md")]
    #[cfg(feature = "mysql")]
    struct Mysql;
    #[doc = include_str!("../../../docs/stores/sqlite.md")]
    #[cfg(feature = "sqlite")]
    struct Sqlite;
    #[doc = include_str!("../../../docs/timing.md")]
    struct Timing;
}
