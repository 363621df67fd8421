//! How bytes get to the servers: wire format, connections, login, TLS, topology, reconnects. Knows nothing of locks.

pub(crate) mod address;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod failure;
pub(crate) mod lane;
pub(crate) mod link;
pub(crate) mod reconnect;
pub(crate) mod replica_wait;
pub(crate) mod resp;
pub(crate) mod script;
pub(crate) mod sentinel_events;
pub(crate) mod shared_task;
pub(crate) mod topology;
