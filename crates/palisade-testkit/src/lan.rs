//! A private network: hosts in network namespaces of their own, whose cables can be pulled.
//!
//! Needs root and iproute2. The hosts are attached to a bridge in a namespace of its own, out of
//! reach of the machine's firewall. This process reaches them through one more cable. Pulling a
//! cable is silent: neither end is told.
//!
//! ```no_run
//! use palisade_testkit::etcd::Cluster;
//! use palisade_testkit::lan::Lan;
//!
//! let lan = Lan::new();
//! let hosts = [lan.host(), lan.host(), lan.host()];
//! let three = Cluster::start_on(&hosts);
//! hosts[0].cut(); //                from all, and from us
//! hosts[0].heal();
//! hosts[1].cut_from(&hosts[2]); //  from each other, but not from us
//! hosts[1].heal_with(&hosts[2]);
//! ```

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Failure, OrPanic, Result};
use crate::port::Claim;
use crate::process::{TOOL_LIMIT, is_root};
use crate::{command, dir};

/// The last number of our own address in each network.
const US: u8 = 254;

/// A network of hosts, `10.99.N.0/24`. It goes when the last of its hosts and servers is dropped.
#[derive(Clone, Debug)]
pub struct Lan(Arc<Hub>);

#[derive(Debug)]
struct Hub {
    number: u8,
    namespace: Namespace,
    next: AtomicU8,
    _claim: Claim,
}

impl Lan {
    /// Makes a network without hosts.
    ///
    /// # Panics
    ///
    /// Without root or iproute2.
    #[allow(
        clippy::new_without_default,
        reason = "it does far more than a default should"
    )]
    pub fn new() -> Self {
        Self::make().or_panic()
    }

    fn make() -> Result<Self> {
        if !is_root() {
            return Err(Failure::new(
                "network namespaces need root: run the tests as root, or leave these out",
            ));
        }
        let claimed =
            (1..=254).find_map(|number| Some((number, Claim::on(&format!("lan-{number}"))?)));
        let (number, claim) = claimed.ok_or_else(|| Failure::new("all 254 networks are in use"))?;
        let namespace = Namespace::new(format!("palisade-{}-{number}-hub", std::process::id()))?;
        let (hub, cable) = (&namespace.0, format!("palisade{number}"));
        // A link of a killed process may still be there. Our claim on the number proves it is
        // unused.
        ip(&format!("link del {cable}")).ok();
        ip(&format!(
            "link add {cable} type veth peer name us netns {hub}"
        ))?;
        ip(&format!("addr add 10.99.{number}.{US}/24 dev {cable}"))?;
        ip(&format!("link set {cable} up"))?;
        ip(&format!("-n {hub} link add bridge type bridge"))?;
        ip(&format!("-n {hub} link set bridge up"))?;
        ip(&format!("-n {hub} link set us master bridge up"))?;
        Ok(Self(Arc::new(Hub {
            number,
            namespace,
            next: AtomicU8::new(1),
            _claim: claim,
        })))
    }

    /// Adds a host.
    #[must_use]
    pub fn host(&self) -> Host {
        self.add().or_panic()
    }

    fn add(&self) -> Result<Host> {
        let (lan, number) = (self.0.number, self.0.next.fetch_add(1, Ordering::Relaxed));
        assert!(number < US, "a network has {} hosts at most", US - 1);
        let namespace = Namespace::new(format!("palisade-{}-{lan}-{number}", std::process::id()))?;
        let (hub, host, cable) = (&self.0.namespace.0, &namespace.0, format!("host{number}"));
        ip(&format!(
            "-n {hub} link add {cable} type veth peer name eth0 netns {host}"
        ))?;
        ip(&format!("-n {hub} link set {cable} master bridge up"))?;
        ip(&format!(
            "-n {host} addr add 10.99.{lan}.{number}/24 dev eth0"
        ))?;
        ip(&format!("-n {host} link set eth0 up"))?;
        ip(&format!("-n {host} link set lo up"))?;
        Ok(Host(Arc::new(Node {
            number,
            namespace,
            lan: self.clone(),
        })))
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // The link goes with the namespace too, but later, when another process may have the
        // number.
        ip(&format!("link del palisade{}", self.number)).ok();
    }
}

/// One host of a [`Lan`], for one server.
#[derive(Clone, Debug)]
pub struct Host(Arc<Node>);

#[derive(Debug)]
struct Node {
    number: u8,
    namespace: Namespace,
    lan: Lan,
}

impl Host {
    /// Its address.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        Ipv4Addr::new(10, 99, self.0.lan.0.number, self.0.number).into()
    }

    /// Cuts it off from us and from all other hosts. Packets are lost silently.
    pub fn cut(&self) {
        self.plug("down");
    }

    /// Ends [`Host::cut`].
    pub fn heal(&self) {
        self.plug("up");
    }

    /// Cuts it off from one other host, both ways. We still reach both, so a test sees two sides
    /// that each think the other dead. Packets are lost silently.
    pub fn cut_from(&self, other: &Host) {
        // Each gets a wrong hardware address for the other, so no interface accepts the frames.
        for (from, to) in [(self, other), (other, self)] {
            from.neighbour(&format!(
                "replace {} lladdr 02:00:00:00:00:00 nud permanent",
                to.ip()
            ));
        }
    }

    /// Ends [`Host::cut_from`].
    pub fn heal_with(&self, other: &Host) {
        for (from, to) in [(self, other), (other, self)] {
            from.neighbour(&format!("del {}", to.ip()));
        }
    }

    fn neighbour(&self, words: &str) {
        ip(&format!("-n {} neigh {words} dev eth0", self.0.namespace.0)).or_panic();
    }

    fn plug(&self, state: &str) {
        let hub = &self.0.lan.0.namespace.0;
        ip(&format!("-n {hub} link set host{} {state}", self.0.number)).or_panic();
    }
}

/// Where a server runs: on loopback, or on a host of a network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place(Option<Host>);

impl Place {
    pub(crate) fn on(host: &Host) -> Self {
        Self(Some(host.clone()))
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.0.as_ref().map_or(Ipv4Addr::LOCALHOST.into(), Host::ip)
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.0.as_ref().map(|host| host.0.namespace.0.as_str())
    }
}

/// A network namespace, deleted with its name. The cables in it go with it.
#[derive(Debug)]
struct Namespace(String);

impl Namespace {
    fn new(name: String) -> Result<Self> {
        // For the janitor, should we not get to it.
        fs::write(note(&name), "")?;
        ip(&format!("netns add {name}"))?;
        Ok(Self(name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if ip(&format!("netns del {}", self.0)).is_ok() {
            fs::remove_file(note(&self.0)).ok();
        }
    }
}

fn note(name: &str) -> std::path::PathBuf {
    dir::base().join("netns").join(name)
}

fn ip(words: &str) -> Result<()> {
    let mut ip = command::command("ip")?;
    ip.args(words.split(' '));
    command::run(ip, TOOL_LIMIT).map(drop)
}
