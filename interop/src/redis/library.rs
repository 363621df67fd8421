use std::path::Path;
use std::process::Command;

use crate::ours::{Kind, Ours};
use crate::participant::{Fault, Participant};
use crate::peer::{Peer, installed, source};
use crate::redis::{Raw, Rslock};

/// A library of this family, ours included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Palisade with `format=simple`.
    Ours,
    /// [`Raw`].
    Raw,
    /// Python: redis.
    RedisPy,
    /// Go: go-redsync/redsync over go-redis.
    Redsync,
    /// Go: bsm/redislock.
    Redislock,
    /// JavaScript: redlock 4 over ioredis.
    NodeRedlock,
    /// JavaScript: redlock 5, a beta, over ioredis.
    NodeRedlock5,
    /// JavaScript: the maintained fork of redlock 5, over ioredis.
    Sesamecare,
    /// Rust: rslock.
    Rslock,
}

impl Library {
    /// The libraries of others on one server.
    pub const PEERS: [Self; 5] = [
        Self::RedisPy,
        Self::Redsync,
        Self::Redislock,
        Self::NodeRedlock,
        Self::Rslock,
    ];

    /// The libraries of others on several servers.
    pub const REDLOCK_PEERS: [Self; 5] = [
        Self::Redsync,
        Self::NodeRedlock,
        Self::NodeRedlock5,
        Self::Sesamecare,
        Self::Rslock,
    ];

    /// Its name, by which a driver knows it too.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "palisade",
            Self::Raw => "raw",
            Self::RedisPy => "redis-py",
            Self::Redsync => "redsync",
            Self::Redislock => "redislock",
            Self::NodeRedlock => "redlock",
            Self::NodeRedlock5 => "redlock-5",
            Self::Sesamecare => "redlock-sesamecare",
            Self::Rslock => "rslock",
        }
    }

    /// The library of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ours, Self::Raw]
            .into_iter()
            .chain(Self::PEERS)
            .chain(Self::REDLOCK_PEERS)
            .find(|library| library.name() == name)
    }

    /// Starts its driver, for the server at `redis://HOST:PORT`, or for several, with commas between.
    /// `rust` is the driver of those that are in Rust.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(self, url: &str, rust: impl AsRef<Path>) -> Result<Peer, Fault> {
        let mut command = match self {
            Self::Ours | Self::Raw | Self::Rslock => {
                let mut driver = Command::new(rust.as_ref());
                driver.arg("redis");
                driver
            }
            Self::Redsync | Self::Redislock => Command::new(installed("redis-go")?.join("driver")),
            Self::RedisPy => {
                let mut python = Command::new(installed("redis-python")?.join("venv/bin/python"));
                python.arg(source("redis-python/driver.py"));
                python
            }
            Self::NodeRedlock | Self::NodeRedlock5 | Self::Sesamecare => {
                let mut node = Command::new("node");
                node.env("NODE_PATH", installed("redis-node")?.join("node_modules"))
                    .arg(source("redis-node/driver.js"));
                node
            }
        };
        command.args([self.name(), url]);
        Peer::start(self.name(), command)
    }

    /// Those that are in Rust, in this process: what the driver serves.
    ///
    /// # Errors
    ///
    /// When it cannot connect, or is in another language.
    pub fn connect(self, url: &str) -> Result<Box<dyn Participant>, Fault> {
        match self {
            Self::Ours => Ok(Box::new(Ours::connect(&our_url(url), Kind::Mutex)?)),
            Self::Raw => Ok(Box::new(Raw::connect(url)?)),
            Self::Rslock => Ok(Box::new(Rslock::connect(url)?)),
            other => Err(Fault::new(format!("{} is not in Rust", other.name()))),
        }
    }
}

/// One server is `format=simple`, several are Redlock.
fn our_url(url: &str) -> String {
    match url.contains(',') {
        true => format!("redlock://{}?young=vote", url.replace("redis://", "")),
        false => format!("{url}/0?format=simple"),
    }
}
