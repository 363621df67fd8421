use super::single::{Node, Setup, ZooKeeper};
use crate::error::{OrPanic, Result};
use crate::lan::{Host, Place};
use crate::process::with_free_ports;
use crate::ready::{PATIENCE, within};

/// Three servers, of which one leads. Another does a second or two after it is gone.
#[derive(Debug)]
pub struct Ensemble {
    nodes: Vec<ZooKeeper>,
}

impl Ensemble {
    /// Starts three, and returns when all of them serve. Takes three seconds.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_as(&Setup::default())
    }

    /// As [`Ensemble::start`], each with the settings of this setup.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start_as(setup: &Setup) -> Self {
        Self::on_places(
            &[Place::default(), Place::default(), Place::default()],
            setup,
        )
    }

    /// As [`Ensemble::start`], each on a host of its own.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start_on(hosts: &[Host; 3]) -> Self {
        Self::start_on_as(hosts, &Setup::default())
    }

    /// As [`Ensemble::start_on`], each with the settings of this setup.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start_on_as(hosts: &[Host; 3], setup: &Setup) -> Self {
        Self::on_places(&hosts.each_ref().map(Place::on), setup)
    }

    fn on_places(places: &[Place; 3], setup: &Setup) -> Self {
        with_free_ports(|| Self::start_once(places, setup)).or_panic()
    }

    fn start_once(places: &[Place; 3], setup: &Setup) -> Result<Self> {
        let nodes: Vec<Node> = places.iter().map(Node::new).collect();
        let members = (1..)
            .zip(&nodes)
            .map(|(id, node)| node.member(id))
            .collect::<Vec<_>>()
            .join("\n");
        let nodes = (1..)
            .zip(nodes)
            .map(|(id, node)| node.launch(Some((id, &members)), setup))
            .collect::<Result<Vec<_>>>()?;
        nodes.iter().try_for_each(ZooKeeper::wait_ready)?;
        Ok(Self { nodes })
    }

    /// All three.
    #[must_use]
    pub fn nodes(&self) -> &[ZooKeeper] {
        &self.nodes
    }

    /// The one that leads, when there is one.
    ///
    /// # Panics
    ///
    /// When none leads within a minute.
    #[must_use]
    pub fn leader(&self) -> &ZooKeeper {
        self.leader_but(None)
    }

    /// The one that leads when it is not `old`, which may be cut off and not know it.
    ///
    /// # Panics
    ///
    /// When no other leads within a minute.
    #[must_use]
    pub fn leader_after(&self, old: &ZooKeeper) -> &ZooKeeper {
        self.leader_but(Some(old))
    }

    fn leader_but(&self, old: Option<&ZooKeeper>) -> &ZooKeeper {
        let others = || {
            self.nodes
                .iter()
                .filter(|node| old.is_none_or(|old| old.address() != node.address()))
        };
        let leads = |node: &&ZooKeeper| node.mode().as_deref() == Some("leader");
        within("a leader", PATIENCE, || {
            others()
                .find(leads)
                .ok_or_else(|| "none of them leads".into())
        })
        .or_panic()
    }

    /// The addresses of all, with commas between, for URLs with several hosts.
    #[must_use]
    pub fn addresses(&self) -> String {
        self.nodes
            .iter()
            .map(|node| node.address().to_string())
            .collect::<Vec<_>>()
            .join(",")
    }
}
