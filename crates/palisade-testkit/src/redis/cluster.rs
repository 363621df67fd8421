use std::time::Duration;

use super::five::addresses;
use super::sentinel::is_linked;
use super::single::Redis;
use crate::command;
use crate::error::{OrPanic, Result};
use crate::ready::{PATIENCE, within};
use crate::resp::Reply;

/// A cluster of three primaries with one replica each, which replaces a primary that was silent for
/// a second.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts the six, and returns when all slots are served and all replicas have caught up. Takes
    /// two seconds.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::try_start().or_panic()
    }

    fn try_start() -> Result<Self> {
        let setup = Redis::with().clustered();
        let nodes = (0..6)
            .map(|_| setup.try_start())
            .collect::<Result<Vec<_>>>()?;
        let mut create = command::command("redis-cli")?;
        create
            .args(["--cluster", "create"])
            .args(nodes.iter().map(|node| node.address().to_string()));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        command::run(create, Duration::from_secs(60))?;
        let cluster = Self { nodes };
        within("redis cluster", PATIENCE, || cluster.is_ready())?;
        Ok(cluster)
    }

    fn is_ready(&self) -> Result<(), String> {
        let mut replicas = 0;
        for node in &self.nodes {
            served(node)?;
            if node.try_call(&["ROLE"])?.list()[0].text() == "slave" {
                is_linked(node)?;
                replicas += 1;
            }
            let known = node.try_call(&["CLUSTER", "NODES"])?.text();
            if known.matches("slave").count() != 3 {
                return Err(known);
            }
        }
        if replicas == 3 {
            Ok(())
        } else {
            Err(format!("{replicas} replicas"))
        }
    }

    /// All six.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The primary that has the slot of this key now, by the word of the first node that runs.
    ///
    /// # Panics
    ///
    /// When no node answers.
    #[must_use]
    pub fn primary_of(&self, key: &str) -> &Redis {
        let speaker = self
            .nodes
            .iter()
            .find(|node| node.try_call(&["PING"]).is_ok())
            .expect("a node that answers");
        let slot = speaker.call(&["CLUSTER", "KEYSLOT", key]).int();
        let ranges = speaker.call(&["CLUSTER", "SLOTS"]);
        let has_slot =
            |range: &&Reply| range.list()[0].int() <= slot && slot <= range.list()[1].int();
        let range = ranges
            .list()
            .iter()
            .find(has_slot)
            .expect("all slots are served");
        let port = range.list()[2].list()[1].int();
        self.nodes
            .iter()
            .find(|node| Some(node.address().port().into()) == port)
            .expect("it is one of the six")
    }

    /// Returns when all nodes that run say that all slots are served.
    ///
    /// # Panics
    ///
    /// When they do not within a minute.
    pub fn wait_served(&self) {
        let running = || self.nodes.iter().filter(|node| node.is_running());
        within("all slots", PATIENCE, || running().try_for_each(served)).or_panic();
    }

    /// All nodes as one URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", addresses(&self.nodes))
    }
}

fn served(node: &Redis) -> Result<(), String> {
    let info = node.try_call(&["CLUSTER", "INFO"])?.text();
    if info.contains("cluster_state:ok") {
        Ok(())
    } else {
        Err(info)
    }
}
