use std::time::Duration;

use super::five::addresses;
use super::single::{Redis, Setup};
use crate::error::{OrPanic, Result};
use crate::lan::Host;
use crate::ready::{PATIENCE, within};

/// The name under which the sentinels know the pair.
const NAME: &str = "m1";

/// A primary with one replica, and three sentinels that name another primary half a second after it
/// stops answering.
#[derive(Debug)]
pub struct Sentinel {
    nodes: [Redis; 2],
    sentinels: Vec<Redis>,
}

impl Sentinel {
    /// Starts all five, and returns when the sentinels know each other and the replica has caught
    /// up. Takes two seconds.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::try_start(std::array::from_fn(|_| Redis::with())).or_panic()
    }

    /// As [`Sentinel::start`], each on a host of its own: the pair first, then the sentinels.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start_on(hosts: &[Host; 5]) -> Self {
        Self::try_start(hosts.each_ref().map(|host| Redis::with().on(host))).or_panic()
    }

    fn try_start([first, second, watchers @ ..]: [Setup; 5]) -> Result<Self> {
        let first = first.try_start()?;
        let address = first.address();
        let second = second
            .set("replicaof", &format!("{} {}", address.ip(), address.port()))
            .try_start()?;
        let watch = |setup: Setup| {
            setup
                .sentinel()
                .set(
                    "sentinel",
                    &format!("monitor {NAME} {} {} 2", address.ip(), address.port()),
                )
                .set("sentinel", &format!("down-after-milliseconds {NAME} 500"))
                .set("sentinel", &format!("failover-timeout {NAME} 3000"))
                .set("sentinel", &format!("parallel-syncs {NAME} 1"))
        };
        let sentinels = watchers
            .into_iter()
            .map(|setup| watch(setup).try_start())
            .collect::<Result<Vec<_>>>()?;
        let pair = Self {
            nodes: [first, second],
            sentinels,
        };
        within("redis with sentinels", PATIENCE, || pair.is_ready())?;
        Ok(pair)
    }

    fn is_ready(&self) -> Result<(), String> {
        for sentinel in &self.sentinels {
            let quorum = sentinel.try_call(&["SENTINEL", "CKQUORUM", NAME])?.text();
            let facts = sentinel.try_call(&["SENTINEL", "MASTER", NAME])?;
            if !quorum.starts_with("OK")
                || fact(&facts, "num-slaves") != "1"
                || fact(&facts, "num-other-sentinels") != "2"
            {
                return Err(format!("{quorum}; {}", facts.text()));
            }
        }
        is_linked(&self.nodes[1])
    }

    /// The two servers, the first primary first.
    #[must_use]
    pub fn nodes(&self) -> &[Redis; 2] {
        &self.nodes
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// The one that the first sentinel names as primary at this moment.
    ///
    /// # Panics
    ///
    /// When the first sentinel does not answer.
    #[must_use]
    pub fn primary(&self) -> &Redis {
        let named = self.sentinels[0]
            .call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])
            .list()[1]
            .int();
        let is_named = |node: &&Redis| Some(node.address().port().into()) == named;
        self.nodes
            .iter()
            .find(is_named)
            .expect("the primary is one of the two")
    }

    /// The other one.
    ///
    /// # Panics
    ///
    /// When the first sentinel does not answer.
    #[must_use]
    pub fn replica(&self) -> &Redis {
        let primary = self.primary().address();
        self.nodes
            .iter()
            .find(|node| node.address() != primary)
            .expect("there are two")
    }

    /// Cuts the replica off from the primary without the primary noticing more than a lost
    /// connection: what is written from now on does not reach it. To see it lost, kill the primary,
    /// resume the replica, and wait for [`Sentinel::wait_for_primary`].
    ///
    /// Pausing the replica alone would lose nothing: the kernel keeps for it what was sent.
    pub fn strand_replica(&self) {
        let (primary, replica) = (self.primary(), self.replica());
        replica.pause();
        primary.call(&["CLIENT", "KILL", "TYPE", "REPLICA"]);
    }

    /// Returns when the sentinels name this server as the primary and it takes writes.
    ///
    /// # Panics
    ///
    /// When they do not within a minute.
    pub fn wait_for_primary(&self, node: &Redis) {
        within("another primary", PATIENCE, || {
            let named = self.primary().address();
            if named != node.address() {
                return Err(format!("{named} is still named"));
            }
            let role = node.try_call(&["ROLE"])?.text();
            if role.starts_with("master") {
                Ok(())
            } else {
                Err(role)
            }
        })
        .or_panic();
    }

    /// All sentinels as one URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", addresses(&self.sentinels))
    }

    /// How long the sentinels wait before they do anything about a silent server.
    pub const DOWN_AFTER: Duration = Duration::from_millis(500);
}

/// A fact in a list of names and values.
fn fact(facts: &crate::resp::Reply, name: &str) -> String {
    let mut pairs = facts.list().chunks_exact(2);
    pairs
        .find(|pair| pair[0].text() == name)
        .map(|pair| pair[1].text())
        .unwrap_or_default()
}

/// Whether a replica has caught up and follows.
pub(super) fn is_linked(replica: &Redis) -> Result<(), String> {
    let info = replica.try_call(&["INFO", "replication"])?.text();
    if info.contains("master_link_status:up") {
        Ok(())
    } else {
        Err(info)
    }
}
