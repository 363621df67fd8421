//! The private server that all sides use, and its own CPU time.

use std::fs;
use std::time::Duration;

use palisade_testkit::etcd::Etcd;

use crate::compare::network::Network;
use crate::compare::{self, Result, start_quietly};

pub(super) struct Server {
    etcd: Etcd,
    network: Network,
    url: String,
}

/// The messages that the server has received, by their kind.
#[derive(Clone, Copy, Default)]
pub(super) struct Received {
    /// Requests of one message each.
    pub(super) unary: f64,
    /// Messages on streams: watches opened and closed, and keep-alives.
    pub(super) streamed: f64,
    /// The keep-alives among them.
    pub(super) keep_alives: f64,
}

impl Server {
    pub(super) fn start(rtt: Option<Duration>) -> Result<Server> {
        let etcd = start_quietly(Etcd::start)?;
        let network = Network::to(etcd.address(), rtt)?;
        let url = format!("http://{}", network.address);
        Ok(Server { etcd, network, url })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The same, as ours has it.
    pub(super) fn ours(&self) -> String {
        format!("etcd://{}", self.network.address)
    }

    /// Compacts, as every cluster does from time to time. Until then the index keeps an entry for
    /// each key that ever existed, and a read of a line passes those of all its earlier claims.
    pub(super) fn compact(&self) -> Result<()> {
        let said = self.etcd.try_etcdctl(&["get", "revision", "-w", "json"])?;
        let revision = said.split("\"revision\":").nth(1).unwrap_or_default();
        let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
        match self.etcd.try_etcdctl(&["compact", &revision, "--physical"]) {
            // Nothing was written since.
            Err(said) if !said.contains("has been compacted") => Err(said.into()),
            _ => Ok(()),
        }
    }

    /// Every message of every client is in it; its own health checks and reads of this page are
    /// not.
    pub(super) fn received(&self) -> Result<Received> {
        let page = self.etcd.metrics()?;
        let mut received = Received::default();
        for line in page
            .lines()
            .filter(|line| line.starts_with("grpc_server_msg_received_total{"))
        {
            let count: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
            if line.contains("grpc_type=\"unary\"") {
                received.unary += count;
            } else {
                received.streamed += count;
            }
            if line.contains("grpc_method=\"LeaseKeepAlive\"") {
                received.keep_alives += count;
            }
        }
        Ok(received)
    }
}

impl compare::Server for Server {
    fn pid(&self) -> u32 {
        self.etcd.pid()
    }

    /// By the kernel's count of every thread, to the nanosecond. A Go program's threads stay.
    fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.etcd.pid()))? {
            let counts = fs::read_to_string(thread?.path().join("schedstat"))?;
            nanos += counts
                .split(' ')
                .next()
                .unwrap_or_default()
                .parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Unary requests, and messages on streams.
    fn counted(&self) -> Result<Vec<f64>> {
        let received = self.received()?;
        Ok(vec![received.unary, received.streamed])
    }
}
