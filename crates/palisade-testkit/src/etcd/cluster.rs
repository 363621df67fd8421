use super::single::{Etcd, Node, Tls};
use crate::error::{OrPanic, Result};
use crate::lan::{Host, Place};
use crate::process::with_free_ports;
use crate::ready::{PATIENCE, within};

/// Three servers, of which one leads. Another does a second after it is gone.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Etcd>,
}

impl Cluster {
    /// Starts three, and returns when all of them answer. Takes two seconds.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::on_places(&[Place::default(), Place::default(), Place::default()])
    }

    /// Starts three whose clients speak TLS, with the users of [`super::Setup::auth`].
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn secured() -> Self {
        let places = [Place::default(), Place::default(), Place::default()];
        with_free_ports(|| {
            let three = Self::start_once(&places, Tls::Server)?;
            if let Some((first, others)) = three.nodes.split_first() {
                first.make_users()?;
                others.iter().for_each(Etcd::has_users);
            }
            Ok(three)
        })
        .or_panic()
    }

    /// As [`Cluster::start`], each on a host of its own.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start_on(hosts: &[Host; 3]) -> Self {
        Self::on_places(&hosts.each_ref().map(Place::on))
    }

    fn on_places(places: &[Place; 3]) -> Self {
        with_free_ports(|| Self::start_once(places, Tls::None)).or_panic()
    }

    fn start_once(places: &[Place; 3], tls: Tls) -> Result<Self> {
        let nodes: Vec<(String, Node)> = places
            .iter()
            .enumerate()
            .map(|(at, place)| (format!("n{at}"), Node::new(place)))
            .collect();
        let members = nodes
            .iter()
            .map(|(name, node)| node.member(name))
            .collect::<Vec<_>>()
            .join(",");
        let nodes = nodes
            .into_iter()
            .map(|(name, node)| node.launch(&name, &members, tls, &[]))
            .collect::<Result<Vec<_>>>()?;
        nodes.iter().try_for_each(Etcd::wait_ready)?;
        Ok(Self { nodes })
    }

    /// All three.
    #[must_use]
    pub fn nodes(&self) -> &[Etcd] {
        &self.nodes
    }

    /// The one that leads, when there is one.
    ///
    /// # Panics
    ///
    /// When none leads within a minute.
    #[must_use]
    pub fn leader(&self) -> &Etcd {
        self.leader_but(None)
    }

    /// The one that leads when it is not `old`, which may be cut off and not know it.
    ///
    /// # Panics
    ///
    /// When no other leads within a minute.
    #[must_use]
    pub fn leader_after(&self, old: &Etcd) -> &Etcd {
        self.leader_but(Some(old))
    }

    fn leader_but(&self, old: Option<&Etcd>) -> &Etcd {
        let others = || {
            self.nodes
                .iter()
                .filter(|node| old.is_none_or(|old| old.address() != node.address()))
        };
        within("a leader", PATIENCE, || {
            others()
                .find(|node| node.is_leader())
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
