//! A bare client on a thread of its own, as in any library that serves many tasks.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use palisade_testkit::zookeeper::Raw;
use tokio::sync::oneshot;

use crate::compare::Result;

type Work = Box<dyn FnOnce(&mut Raw) + Send>;

/// The thread ends with the last of these.
#[derive(Clone)]
pub(super) struct OwnThread {
    work: Sender<Work>,
}

impl OwnThread {
    pub(super) fn start(mut raw: Raw) -> Result<OwnThread> {
        let (sender, receiver) = channel::<Work>();
        thread::Builder::new()
            .name("raw".into())
            .spawn(move || receiver.into_iter().for_each(|work| work(&mut raw)))?;
        Ok(OwnThread { work: sender })
    }

    /// Runs this on that thread.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Raw) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, is_done) = oneshot::channel();
        // A caller that does not wait any more needs no answer.
        self.work
            .send(Box::new(move |raw| drop(done.send(work(raw)))))
            .map_err(|_| "raw: its thread has ended")?;
        is_done.await?
    }
}
