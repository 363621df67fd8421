//! A client of ZooKeeper: sessions, their connections, and the dozen messages that are needed. It
//! knows nothing of locks.
//!
//! ```text
//! session ─► requests ─► connection (sasl, tls) ─► server    the caller writes
//!    ▲           ▲                                    │
//!    └───────────┴────── connection_task ◄────────────┘      one task reads, and reconnects
//! ```
//!
//! `proto` has the messages and `jute` their encoding; `session_deadline` is what an answer proves
//! about the life of a session; `user_nodes` reads and writes single nodes for [`fence`](crate::fence)
//! and [`versioned`](crate::versioned).
//!
//! # Why not a crate
//!
//! `zookeeper-client` 0.11, the best kept of them, was measured first. It never sets `TCP_NODELAY`,
//! so that two requests at once take two round trips: 803 µs for `create` and `getChildren` sent
//! together, 511 µs for `create` alone (medians of 1000, on one machine); ours takes 557 µs for
//! both. It does not say when a request was sent, nor by which transaction a `multi` was done. And
//! its TLS brings a second cryptographic library.

mod connection;
mod connection_task;
mod failure;
mod jute;
pub(crate) mod proto;
mod requests;
mod sasl;
mod server_info;
mod session;
mod session_deadline;
mod settings;
mod tls;
pub(crate) mod user_nodes;

pub(super) use self::failure::{Failed, LONGEST, OrMissing, client_ended};
pub(super) use self::session::{Credentials, KeepOpen, Sent, Session, SessionListener};
pub(super) use self::settings::Settings;
