//! A TCP proxy that does to connections what networks do.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use palisade_testkit::proxy::{Protocol, Proxy, Way};
//! use palisade_testkit::redis::Redis;
//!
//! let redis = Redis::start();
//! let proxy = Proxy::speaking(Protocol::Redis, redis.address());
//! // Let the client connect to proxy.address(), then, one at a time or together:
//! proxy.delay(Way::Both, Duration::from_millis(20), Duration::from_millis(5)); // late
//! proxy.slow(Way::ToClient, 1000); //   bytes in a second
//! proxy.swallow(Way::ToServer); //      lost silently
//! proxy.stall(Way::ToClient); //        half-open: nothing moves until it is healed
//! proxy.freeze(); //                    the open connections die silently; new ones work
//! proxy.reset(); //                     all connections, now
//! proxy.refuse(); //                    new connections
//! proxy.point_at(redis.address()); //   new connections lead to this server
//! proxy.lose_reply(); //                the next request is applied, its answer lost, the connection reset
//! proxy.lose_pushes(); //               answers come, messages to subscribers do not
//! proxy.heal();
//! ```
//!
//! A fault applies to open and to new connections, from the moment the call returns. A client that
//! learns other addresses from the server (Sentinel, Cluster, etcd's members) bypasses the proxy.

mod plan;
mod pump;
mod relay;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use self::plan::{Flow, Plan, Shared};
pub use crate::protocol::Protocol;

use crate::error::{OrPanic, Result};
use crate::port::Port;
use crate::process::with_free_ports;
use crate::ready::{PATIENCE, within};

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From client to server.
    ToServer,
    /// From server to client.
    ToClient,
    /// Either.
    Both,
}

/// The proxy. Dropping it closes all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    _port: Port,
}

impl Proxy {
    /// Starts one in front of a server of which it need not know the protocol.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        Self::speaking(Protocol::Bytes, target)
    }

    /// Starts one that knows where a server's messages end, and so can lose one of several that
    /// come together.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn speaking(protocol: Protocol, target: SocketAddr) -> Self {
        with_free_ports(|| Self::start_once(protocol, target)).or_panic()
    }

    fn start_once(protocol: Protocol, target: SocketAddr) -> Result<Self> {
        let port = Port::new();
        let address: SocketAddr = (Ipv4Addr::LOCALHOST, port.number()).into();
        let shared = Arc::new(Shared::new(protocol, target));
        let thread = relay::start(address, Arc::clone(&shared))?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
            _port: port,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.open().len()
    }

    /// How many messages were lost by [`Proxy::lose_reply`], [`Proxy::lose_pushes`] and
    /// [`Proxy::lose_if`].
    #[must_use]
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Delivers everything later, by `delay` and up to `jitter` more. Order is kept, and so is
    /// throughput.
    ///
    /// The jitter's seed is printed; set `PALISADE_SEED` to have the same again.
    pub fn delay(&self, way: Way, delay: Duration, jitter: Duration) {
        if !jitter.is_zero() {
            println!("proxy: PALISADE_SEED={} for the jitter", self.shared.seed);
        }
        self.change(|plan| {
            plan.each(way, |faults| {
                (faults.delay, faults.jitter) = (delay, jitter)
            })
        });
    }

    /// Delivers so many bytes in a second.
    pub fn slow(&self, way: Way, bytes_per_second: u32) {
        self.change(|plan| plan.each(way, |faults| faults.rate = Some(bytes_per_second.max(1))));
    }

    /// Takes everything and delivers nothing, the end of a connection included. New connections are
    /// accepted.
    pub fn swallow(&self, way: Way) {
        self.change(|plan| plan.each(way, |faults| faults.flow = Flow::Swallow));
    }

    /// Takes nothing and delivers nothing, and keeps the connections: half-open. What was sent
    /// meanwhile comes when it is healed.
    pub fn stall(&self, way: Way) {
        self.change(|plan| plan.each(way, |faults| faults.flow = Flow::Stall));
    }

    /// Silently drops everything on the connections that are open now, for good, as a firewall does
    /// that has forgotten them. New connections are not affected.
    pub fn freeze(&self) {
        self.change(|plan| plan.freezes += 1);
    }

    /// Leads new connections to another server, as a name or a virtual address does after a
    /// failover. Open ones stay.
    pub fn point_at(&self, target: SocketAddr) {
        *self.shared.target() = target;
    }

    /// Refuses new connections. Open ones stay.
    pub fn refuse(&self) {
        self.change(|plan| plan.refuse = true);
        self.wait_listening(false);
    }

    /// Ends all connections that are open now, both ends, with a reset.
    pub fn reset(&self) {
        let mut epoch = 0;
        self.change(|plan| {
            plan.epoch += 1;
            epoch = plan.epoch;
        });
        let settled = || self.shared.settled.load(Ordering::SeqCst) >= epoch;
        let is_over = || settled() && self.shared.open().iter().all(|made| *made >= epoch);
        within("a reset", PATIENCE, || {
            if is_over() {
                Ok(())
            } else {
                Err("connections are open".into())
            }
        })
        .or_panic();
    }

    /// Delivers the next request of any connection, waits for the server's answer, loses that, and
    /// resets the client's connection: the request was applied, and the client cannot know.
    pub fn lose_reply(&self) {
        self.lose_reply_to(|_| true);
    }

    /// As [`Proxy::lose_reply`], for the next request whose bytes the predicate accepts.
    pub fn lose_reply_to(&self, is_it: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        *self.shared.armed() = Some(Box::new(is_it));
    }

    /// Loses what the server sends on its own, until it is healed. Answers come as ever.
    ///
    /// # Panics
    ///
    /// When the proxy does not know the protocol, or the protocol does not say what is a push; use
    /// [`Proxy::lose_if`] then.
    pub fn lose_pushes(&self) {
        let protocol = self.shared.protocol;
        assert!(
            !matches!(protocol, Protocol::Bytes | Protocol::Http2),
            "{protocol:?} does not say what is a push"
        );
        self.lose_if(move |message| protocol.is_push(message));
    }

    /// Loses those messages of the server that the predicate accepts, until it is healed.
    pub fn lose_if(&self, is_it: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.change(|plan| plan.lose = Some(Arc::new(is_it)));
    }

    /// Ends all faults. Connections that are open go on.
    pub fn heal(&self) {
        *self.shared.armed() = None;
        self.change(|plan| {
            *plan = Plan {
                epoch: plan.epoch,
                freezes: plan.freezes,
                ..Plan::default()
            }
        });
        self.wait_listening(true);
    }

    fn change(&self, change: impl FnOnce(&mut Plan)) {
        self.shared.plan.send_modify(change);
    }

    fn wait_listening(&self, wanted: bool) {
        let listening = || self.shared.listening.load(Ordering::SeqCst) == wanted;
        within("the proxy's port", PATIENCE, || {
            if listening() {
                Ok(())
            } else {
                Err(format!("not {wanted}"))
            }
        })
        .or_panic();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|plan| plan.over = true);
        if let Some(thread) = self.thread.take() {
            // If it panicked, the test has seen its connections end.
            thread.join().ok();
        }
    }
}
