//! The five private servers that all sides use, and their CPU time together.

use std::time::Duration;

use palisade_testkit::redis::{Five, Redis};

use crate::compare::network::Network;
use crate::compare::{self, Result, start_quietly};
use crate::redis::server::cpu;

pub(super) struct Servers {
    five: Five,
    networks: Vec<Network>,
}

impl Servers {
    pub(super) fn start(rtt: Option<Duration>) -> Result<Servers> {
        let five = start_quietly(|| Five::start_as(&Redis::with()))?;
        let nodes = five.nodes().iter();
        let networks = nodes.map(|node| Network::to(node.address(), rtt));
        Ok(Servers {
            networks: networks.collect::<Result<_>>()?,
            five,
        })
    }

    fn addresses(&self) -> impl Iterator<Item = String> {
        self.networks
            .iter()
            .map(|network| network.address.to_string())
    }

    /// One URL for each.
    pub(super) fn urls(&self) -> Vec<String> {
        self.addresses()
            .map(|address| format!("redis://{address}"))
            .collect()
    }

    /// One URL for all.
    pub(super) fn our_url(&self) -> String {
        let addresses: Vec<String> = self.addresses().collect();
        format!("redlock://{}?young=vote", addresses.join(","))
    }

    /// The one that hangs at times.
    pub(super) fn last(&self) -> Option<&Redis> {
        self.five.nodes().last()
    }
}

impl compare::Server for Servers {
    fn pid(&self) -> u32 {
        self.five.nodes().first().map_or(0, |node| node.pid())
    }

    fn pids(&self) -> Vec<u32> {
        self.five.nodes().iter().map(|node| node.pid()).collect()
    }

    fn cpu(&self) -> Result<Duration> {
        self.five.nodes().iter().map(cpu).sum()
    }
}
