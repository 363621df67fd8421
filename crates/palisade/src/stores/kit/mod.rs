//! Three families of stores, one kit each. A store fills in a kit; it does not write a loop.
//!
//! | kit | the store must be able to | stores |
//! |---|---|---|
//! | [`mod@line`] | apply one event of the line to one name in one atomic step, and push to one inbox | memory, SQLite, Redis, PostgreSQL, MySQL |
//! | `session` | keep a session alive, keep entries in an order of its own, tell when an entry goes | etcd, ZooKeeper, PostgreSQL and MySQL `session` |
//! | [`token`] | put a value if absent, extend it, delete it if it is still ours | Redis `simple`, etcd `plain`, ZooKeeper `plain`, Redlock, PostgreSQL and MySQL `simple` and `shedlock` |

pub(crate) mod line;
#[cfg(any(
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]
pub(crate) mod session;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]
pub(crate) mod token;
