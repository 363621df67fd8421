//! The private server that all sides use, and its own CPU time.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use palisade_testkit::zookeeper::{Make, Raw, ZooKeeper};

use crate::compare::network::Network;
use crate::compare::{self, Result, start_quietly};

/// Until Java has compiled what is hot.
const WARM: Duration = Duration::from_secs(10);

/// The session of a bare client, which sends nothing while it waits. Longer than any run.
const SESSION: Duration = Duration::from_secs(3600);

pub(super) struct Server {
    zookeeper: ZooKeeper,
    network: Network,
    url: String,
}

impl Server {
    /// Starts it as in production, and lets it work for a while.
    pub(super) fn start(rtt: Option<Duration>) -> Result<Server> {
        let zookeeper =
            start_quietly(|| ZooKeeper::with().long_sessions().as_in_production().start())?;
        let network = Network::to(zookeeper.address(), rtt)?;
        let url = format!("zk://{}", network.address);
        let server = Server {
            zookeeper,
            network,
            url,
        };
        let begun = Instant::now();
        let parents = server.parents("warm", 64)?;
        server.raw()?.cycles(&parents, begun + WARM / 2)?;
        let mut alone = server.raw()?;
        while begun.elapsed() < WARM {
            alone.cycles(&parents[..1], Instant::now())?;
            alone.children(&parents[0])?;
        }
        Ok(server)
    }

    /// A bare client.
    pub(super) fn raw(&self) -> Result<Raw> {
        Ok(Raw::open(self.address(), SESSION)?)
    }

    /// Nodes for so many bare tasks.
    pub(super) fn parents(&self, name: &str, tasks: usize) -> Result<Vec<String>> {
        let mut raw = self.raw()?;
        let parents: Vec<String> = (0..tasks).map(|task| format!("/{name}-{task}")).collect();
        for parent in &parents {
            raw.create(parent, b"", Make::Persistent)?;
        }
        Ok(parents)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    fn address(&self) -> SocketAddr {
        self.network.address
    }
}

impl compare::Server for Server {
    fn pid(&self) -> u32 {
        self.zookeeper.pid()
    }

    /// By the kernel's count of every thread, to the nanosecond. Those that do the work stay.
    fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.zookeeper.pid()))? {
            // A thread that has just ended has no count any more.
            let Ok(counts) = fs::read_to_string(thread?.path().join("schedstat")) else {
                continue;
            };
            nanos += counts
                .split(' ')
                .next()
                .unwrap_or_default()
                .parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}
