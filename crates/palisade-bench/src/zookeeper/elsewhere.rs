//! A bare client on a thread of its own, as that of any library is which serves many tasks.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use palisade_testkit::zookeeper::Raw;
use tokio::sync::oneshot;

use crate::compare::Result;

type Work = Box<dyn FnOnce(&mut Raw) + Send>;

/// The thread ends with the last of these.
#[derive(Clone)]
pub(super) struct Elsewhere {
    work: Sender<Work>,
}

impl Elsewhere {
    pub(super) fn start(mut raw: Raw) -> Result<Elsewhere> {
        let (sender, receiver) = channel::<Work>();
        thread::Builder::new().name("raw".into()).spawn(move || receiver.into_iter().for_each(|work| work(&mut raw)))?;
        Ok(Elsewhere { work: sender })
    }

    /// Has this done there.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce(&mut Raw) -> Result<T> + Send + 'static) -> Result<T> {
        let (done, is_done) = oneshot::channel();
        // Whoever does not wait any more needs no answer.
        self.work.send(Box::new(move |raw| drop(done.send(work(raw))))).map_err(|_| "raw: its thread has ended")?;
        is_done.await?
    }
}
