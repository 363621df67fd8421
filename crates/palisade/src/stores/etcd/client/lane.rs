//! The connections of one runtime: whoever asks there wakes no other thread, and is woken by none.
//!
//! The client's own runtime has a lane from the start. Another runtime gets one when it has asked a few times, and shows that it
//! runs: until then, and whenever it seems to stand still, the client's thread asks in its place.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tonic::transport::Channel;

use super::super::batch::{AT_ONCE, Carrier, MOST};
use super::cluster::Cluster;
use crate::stores::gather::Gather;
use crate::stores::runtimes::{has_io, has_time};

/// So many requests are made for a runtime before it has connections of its own: whoever asks only once or twice does not pay for
/// them.
const OFTEN: usize = 4;

pub(crate) struct Lane {
    pub(crate) runtime: Handle,
    /// One for each member.
    channels: Vec<Mutex<Option<Channel>>>,
    /// Claims and releases that go together.
    gather: OnceLock<Arc<Gather<Carrier>>>,
    is_clients: bool,
    is_open: AtomicBool,
    has_ended: AtomicBool,
    asked: AtomicUsize,
    /// A task of the runtime, which ends with it.
    host: OnceLock<AbortHandle>,
}

impl Lane {
    fn new(runtime: Handle, members: usize, is_clients: bool) -> Arc<Lane> {
        let lane = Arc::new(Lane {
            runtime,
            channels: (0..members).map(|_| Mutex::default()).collect(),
            gather: OnceLock::new(),
            is_clients,
            is_open: AtomicBool::new(is_clients),
            has_ended: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            host: OnceLock::new(),
        });
        let ends = Ends(Arc::downgrade(&lane));
        let host = lane.runtime.spawn(async move {
            let _ends = ends;
            std::future::pending::<()>().await;
        });
        let _ = lane.host.set(host.abort_handle());
        lane
    }

    /// The lane of a client's own runtime, or of whoever has no client.
    pub(crate) fn of_client(runtime: Handle, members: usize) -> Arc<Lane> {
        Lane::new(runtime, members, true)
    }

    /// The lane of a caller's runtime.
    pub(crate) fn of_caller(runtime: Handle, members: usize) -> Arc<Lane> {
        Lane::new(runtime, members, false)
    }

    /// Whether requests can go by it now. Counts those that would.
    pub(crate) fn is_open(self: &Arc<Self>) -> bool {
        if self.is_open.load(Ordering::Acquire) {
            return true;
        }
        if self.asked.fetch_add(1, Ordering::Relaxed) == OFTEN && has_io(&self.runtime) && has_time(&self.runtime) {
            self.open_if_it_runs();
        }
        false
    }

    fn open_if_it_runs(self: &Arc<Self>) {
        let lane = Arc::downgrade(self);
        self.runtime.spawn(async move {
            if let Some(lane) = lane.upgrade() {
                lane.is_open.store(true, Ordering::Release);
            }
        });
    }

    /// Something has not come back by it. Unless its runtime shows that it runs, nobody asks by it any more.
    pub(crate) fn doubt(self: &Arc<Self>) {
        if !self.is_clients && self.is_open.swap(false, Ordering::AcqRel) {
            self.open_if_it_runs();
        }
    }

    /// Whether it was doubted, and has not shown since that it runs.
    pub(crate) fn is_doubted(&self) -> bool {
        !self.is_open.load(Ordering::Acquire)
    }

    /// Whether its runtime is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// The connection to a member.
    pub(crate) fn channel(&self, place: usize, connect: impl FnOnce() -> Channel) -> Channel {
        let connect = || {
            // What drives the connection lives where this is called.
            let _inside = self.runtime.enter();
            connect()
        };
        match self.channels.get(place) {
            Some(channel) => channel.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(connect).clone(),
            None => connect(),
        }
    }

    /// What lets claims and releases go together that are asked for here.
    pub(in crate::stores::etcd) fn gather(self: &Arc<Self>, members: &Arc<Cluster>) -> &Arc<Gather<Carrier>> {
        self.gather.get_or_init(|| Gather::new(Carrier::new(members, self), self.runtime.clone(), AT_ONCE, MOST))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(host) = self.host.get() {
            host.abort();
        }
    }
}

/// Says that the runtime has ended: with it goes the task that has this.
struct Ends(Weak<Lane>);

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(lane) = self.0.upgrade() {
            lane.has_ended.store(true, Ordering::Release);
            lane.is_open.store(false, Ordering::Release);
        }
    }
}
