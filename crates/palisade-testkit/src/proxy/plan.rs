use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::Way;
use crate::protocol::Protocol;

/// Chooses messages.
pub(super) type Choice = dyn Fn(&[u8]) -> bool + Send + Sync;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    #[default]
    Pass,
    Swallow,
    Stall,
}

/// The faults of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DirectionFaults {
    pub(super) delay: Duration,
    pub(super) jitter: Duration,
    pub(super) rate: Option<u32>,
    pub(super) flow: Flow,
}

/// The faults in force.
#[derive(Clone, Default)]
pub(super) struct Plan {
    pub(super) to_server: DirectionFaults,
    pub(super) to_client: DirectionFaults,
    pub(super) lose: Option<Arc<Choice>>,
    pub(super) refuse: bool,
    /// Connections made in an earlier one are reset.
    pub(super) epoch: u64,
    /// Connections made before so many freezes are frozen.
    pub(super) freezes: u64,
    /// The proxy itself ends.
    pub(super) over: bool,
}

impl Plan {
    pub(super) fn each(&mut self, way: Way, change: impl Fn(&mut DirectionFaults)) {
        if way != Way::ToClient {
            change(&mut self.to_server);
        }
        if way != Way::ToServer {
            change(&mut self.to_client);
        }
    }

    pub(super) fn faults(&self, way: Way) -> &DirectionFaults {
        if way == Way::ToServer {
            &self.to_server
        } else {
            &self.to_client
        }
    }
}

/// Shared by the proxy's thread and its owner.
pub(super) struct Shared {
    pub(super) protocol: Protocol,
    target: Mutex<SocketAddr>,
    pub(super) plan: watch::Sender<Plan>,
    pub(super) listening: AtomicBool,
    /// The epoch to which all connections were told apart.
    pub(super) settled: AtomicU64,
    pub(super) lost: AtomicUsize,
    pub(super) seed: u64,
    random: Mutex<fastrand::Rng>,
    armed: Mutex<Option<Box<Choice>>>,
    open: Mutex<Vec<u64>>,
}

impl Shared {
    pub(super) fn new(protocol: Protocol, target: SocketAddr) -> Self {
        let given = std::env::var("PALISADE_SEED")
            .ok()
            .map(|seed| seed.parse().expect("PALISADE_SEED is a number"));
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        Self {
            protocol,
            target: Mutex::new(target),
            plan: watch::Sender::new(Plan::default()),
            listening: AtomicBool::new(false),
            settled: AtomicU64::new(0),
            lost: AtomicUsize::new(0),
            seed,
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            armed: Mutex::new(None),
            open: Mutex::new(Vec::new()),
        }
    }

    /// How long the next message of this direction takes.
    pub(super) fn latency(&self, faults: &DirectionFaults) -> Duration {
        if faults.jitter.is_zero() {
            return faults.delay;
        }
        faults.delay + faults.jitter.mul_f64(lock(&self.random).f64())
    }

    /// The request whose reply shall be lost, while none came yet.
    pub(super) fn armed(&self) -> MutexGuard<'_, Option<Box<Choice>>> {
        lock(&self.armed)
    }

    /// Whether this request is the one; then no other is.
    pub(super) fn takes_reply_of(&self, request: &[u8]) -> bool {
        let mut armed = self.armed();
        let is_it = armed.as_ref().is_some_and(|is_it| is_it(request));
        if is_it {
            *armed = None;
        }
        is_it
    }

    /// Where new connections lead.
    pub(super) fn target(&self) -> MutexGuard<'_, SocketAddr> {
        lock(&self.target)
    }

    /// The epochs of all open connections.
    pub(super) fn open(&self) -> MutexGuard<'_, Vec<u64>> {
        lock(&self.open)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("protocol", &self.protocol)
            .field("target", &*self.target())
            .finish_non_exhaustive()
    }
}

/// A predicate of the test may panic; the proxy goes on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
