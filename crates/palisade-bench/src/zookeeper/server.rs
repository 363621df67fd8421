//! The private server that all sides use, and what it has used itself.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use palisade_testkit::zookeeper::ZooKeeper;

use crate::compare::{self, Result, start_quietly};

pub(super) struct Server {
    zookeeper: ZooKeeper,
    url: String,
}

impl Server {
    pub(super) fn start() -> Result<Server> {
        let zookeeper = start_quietly(|| ZooKeeper::with().long_sessions().start())?;
        let url = format!("zk://{}", zookeeper.address());
        Ok(Server { zookeeper, url })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.zookeeper.address()
    }
}

impl compare::Server for Server {
    /// By the kernel's count of every thread, to the nanosecond. Those that do the work stay.
    fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.zookeeper.pid()))? {
            // A thread that has just ended has no count any more.
            let Ok(counts) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            nanos += counts.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}
