//! Real servers for tests, started privately, and the faults to try them with.
//!
//! Every server gets a free port and a temporary directory, is asked until it answers, and is
//! killed when its value is dropped: also by a panic, and by the kernel when the whole process is
//! killed. Nothing is shared with the machine's own servers.
//!
//! - [`redis`], [`etcd`], [`zookeeper`], [`postgres`], [`mariadb`], [`pgbouncer`]: the servers, one
//!   module each, with an example each
//! - [`Server`]: what all of them can: pause, resume, kill, stop, restart
//! - [`clock::Clock`]: moves the wall clock of one server
//! - [`proxy::Proxy`]: the network's faults, between a client and a server
//! - [`relay::Relay`]: the distance of a network, between a client and a server
//! - [`lan::Lan`]: hosts in a private network, whose cables can be pulled (root only)
//! - [`shared`]: servers that take seconds, once per test binary
//!
//! Calls block, and panic when they fail: this is for tests. What is not installed is named, with
//! the script that installs it.

mod certs;
pub mod clock;
mod command;
mod dir;
mod error;
pub mod etcd;
pub mod lan;
pub mod mariadb;
pub mod pgbouncer;
mod port;
pub mod postgres;
mod probe;
mod process;
mod process_tree;
mod protocol;
pub mod proxy;
mod ready;
pub mod redis;
pub mod relay;
pub mod resp;
pub mod shared;
mod spawner;
mod spec;
mod template;
pub mod zookeeper;

pub use certs::{Certs, certs};
pub use process::Server;
pub use process_tree::is_alive;
pub use ready::eventually;
