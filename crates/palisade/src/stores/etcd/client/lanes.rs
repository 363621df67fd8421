//! Who asks from where: the lanes of a client, its own thread, and its timers.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Sleep;

use super::lane::Lane;
use crate::error::{Error, Result};
use crate::stores::runtimes;

pub(crate) struct Lanes {
    /// How many members there are.
    members: usize,
    /// The lane of the client's own runtime.
    client: OnceLock<Arc<Lane>>,
    /// Those of others, and of all who have no client.
    others: Mutex<Vec<Arc<Lane>>>,
}

/// Where a request is to be made.
pub(crate) enum Place {
    /// Here, by these connections.
    Here(Arc<Lane>),
    /// In the client's thread: whoever asks has no connections of his own.
    Client,
}

impl Lanes {
    pub(crate) fn new(members: usize) -> Lanes {
        Lanes { members, client: OnceLock::new(), others: Mutex::default() }
    }

    /// The client's own runtime has started.
    pub(crate) fn attach(&self, runtime: &Handle) {
        let _ = self.client.set(Lane::of_client(runtime.clone(), self.members));
    }

    /// Where whoever runs this is to make a request.
    pub(crate) fn place(&self) -> Result<Place> {
        let Some(client) = self.client.get() else { return self.of_nobody().map(Place::Here) };
        let Some(runtime) = runtimes::of_caller() else { return Ok(Place::Client) };
        if runtime.id() == client.runtime.id() {
            return Ok(Place::Here(Arc::clone(client)));
        }
        let lane = self.of(runtime, Lane::of_caller);
        Ok(if lane.is_open() { Place::Here(lane) } else { Place::Client })
    }

    /// The connections of whoever runs this, or else the client's.
    pub(crate) fn nearest(&self) -> Result<Arc<Lane>> {
        match self.place()? {
            Place::Here(lane) => Ok(lane),
            Place::Client => self.clients(),
        }
    }

    /// The connections of the client's thread.
    pub(crate) fn clients(&self) -> Result<Arc<Lane>> {
        self.client.get().map_or_else(|| self.of_nobody(), |lane| Ok(Arc::clone(lane)))
    }

    /// Without a client everything happens where it is asked for.
    fn of_nobody(&self) -> Result<Arc<Lane>> {
        let runtime = Handle::try_current();
        let runtime = runtime.map_err(|_| Error::config("the store is used without a client and outside of a tokio runtime"))?;
        Ok(self.of(runtime, Lane::of_client))
    }

    fn of(&self, runtime: Handle, make: impl FnOnce(Handle, usize) -> Arc<Lane>) -> Arc<Lane> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = others.iter().find(|lane| lane.runtime.id() == runtime.id()) {
            return Arc::clone(lane);
        }
        others.retain(|lane| !lane.has_ended());
        let lane = make(runtime, self.members);
        others.push(Arc::clone(&lane));
        lane
    }

    /// Runs a task that nobody waits for. In the client's thread: the runtime of a caller may be blocked or end at any time.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.client.get() {
            Some(client) => drop(client.runtime.spawn(task)),
            None => drop(tokio::spawn(task)),
        }
    }

    /// Does work in the client's thread that others wait for as well, or that needs timers. Whoever leaves does not stop it.
    pub(crate) async fn in_client<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let is_here = |client: &Lane| Handle::try_current().is_ok_and(|here| here.id() == client.runtime.id());
        match self.client.get().filter(|client| !is_here(client)) {
            Some(client) => client.runtime.spawn(work).await.unwrap_or_else(|_| Err(ended())),
            None => work.await,
        }
    }

    /// A timer of the client's: that of a caller's runtime would not outlive it.
    pub(crate) fn timer(&self, span: Duration) -> Sleep {
        let _inside = self.client.get().map(|client| client.runtime.enter());
        tokio::time::sleep(span)
    }
}

pub(crate) fn ended() -> Error {
    Error::unavailable("the client has ended")
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    /// Asks for the place a few times, and lets the runtime show that it runs.
    async fn has_a_lane(lanes: Arc<Lanes>) -> bool {
        for _ in 0..10 {
            if let Place::Here(_) = lanes.place().unwrap() {
                return true;
            }
            tokio::task::yield_now().await;
        }
        false
    }

    #[test]
    fn who_asks_often_in_a_runtime_that_runs_has_connections_there() {
        let clients = Builder::new_current_thread().enable_all().build().unwrap();
        let lanes = Arc::new(Lanes::new(1));
        lanes.attach(clients.handle());
        let here = || has_a_lane(Arc::clone(&lanes));
        let one = Builder::new_current_thread().enable_all().build().unwrap();
        let many = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bare = Builder::new_current_thread().build().unwrap();
        assert!(clients.block_on(here()), "the client's own thread");
        assert!(one.block_on(here()));
        assert!(!many.block_on(here()), "who blocks on it is in none of its threads");
        assert!(many.block_on(many.spawn(here())).unwrap());
        assert!(!bare.block_on(here()), "without IO");
        assert!(!pollster::block_on(here()), "without a runtime");
        assert_eq!(lanes.others.lock().unwrap().len(), 3);
        // Doubted, it is not used until it runs.
        let lane = one.block_on(async { lanes.nearest().unwrap() });
        lane.doubt();
        assert!(one.block_on(async { matches!(lanes.place().unwrap(), Place::Client) }));
        assert!(one.block_on(here()));
        // Those of runtimes that have ended are forgotten when another comes.
        drop((one, many, bare));
        let other = Builder::new_current_thread().enable_all().build().unwrap();
        assert!(other.block_on(here()));
        assert_eq!(lanes.others.lock().unwrap().len(), 1);
    }
}
