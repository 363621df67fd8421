//! The ways in which a program may call us: they differ in which thread wakes which.

use tokio::runtime::{Builder, Runtime};

use super::Result;

#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// In the body of `#[tokio::main]`, which is on no worker.
    Body,
    /// In a spawned task of a runtime with two workers.
    Spawned,
    /// On a runtime with one thread.
    CurrentThread,
}

impl Way {
    pub(crate) const ALL: [Way; 3] = [Way::Body, Way::Spawned, Way::CurrentThread];

    /// Those in which the caller's own thread waits.
    pub(crate) const WAITING: [Way; 2] = [Way::Body, Way::CurrentThread];

    /// The way of this label.
    pub(crate) fn of(label: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.label() == label)
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Way::Body => "main body",
            Way::Spawned => "spawned",
            Way::CurrentThread => "one thread",
        }
    }
}

/// A runtime that is called in one way.
pub(crate) struct Caller {
    way: Way,
    runtime: Runtime,
}

impl Caller {
    pub(crate) fn new(way: Way) -> Result<Caller> {
        let mut builder = match way {
            Way::Body | Way::Spawned => Builder::new_multi_thread(),
            Way::CurrentThread => Builder::new_current_thread(),
        };
        Ok(Caller { way, runtime: builder.worker_threads(2).enable_all().build()? })
    }

    /// Calls in its own thread, whatever the way: for what cannot be sent to another.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn call<T: Send + 'static>(&self, future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        match self.way {
            Way::Body | Way::CurrentThread => self.runtime.block_on(future),
            Way::Spawned => self.runtime.block_on(self.runtime.spawn(future))?,
        }
    }
}
