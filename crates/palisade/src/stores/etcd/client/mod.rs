//! How bytes get to etcd: messages, members, login, TLS, streams. Nothing here knows of locks.

pub(crate) mod cluster;
pub(crate) mod data;
pub(crate) mod endpoints;
pub(crate) mod failure;
pub(crate) mod idle_watches;
pub(crate) mod keep_alive;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod names;
pub(crate) mod proto;
pub(crate) mod rollback;
pub(crate) mod txn;
pub(crate) mod watch;
