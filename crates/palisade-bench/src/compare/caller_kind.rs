//! The kinds of caller: they differ in which thread wakes which.

use tokio::runtime::{Builder, Runtime};

use super::Result;

#[derive(Clone, Copy)]
pub(crate) enum CallerKind {
    /// In the body of `#[tokio::main]`, which is on no worker.
    Body,
    /// In a spawned task of a runtime with two workers.
    Spawned,
    /// On a runtime with one thread.
    CurrentThread,
}

impl CallerKind {
    pub(crate) const ALL: [CallerKind; 3] = [
        CallerKind::Body,
        CallerKind::Spawned,
        CallerKind::CurrentThread,
    ];

    /// The kinds in which the caller's own thread waits.
    pub(crate) const WAITING: [CallerKind; 2] = [CallerKind::Body, CallerKind::CurrentThread];

    /// The kind of this label.
    pub(crate) fn of(label: &str) -> Option<CallerKind> {
        CallerKind::ALL
            .into_iter()
            .find(|kind| kind.label() == label)
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            CallerKind::Body => "main body",
            CallerKind::Spawned => "spawned",
            CallerKind::CurrentThread => "one thread",
        }
    }
}

/// A runtime, and where in it calls are made.
pub(crate) struct Caller {
    kind: CallerKind,
    runtime: Runtime,
}

impl Caller {
    pub(crate) fn new(kind: CallerKind) -> Result<Caller> {
        let mut builder = match kind {
            CallerKind::Body | CallerKind::Spawned => Builder::new_multi_thread(),
            CallerKind::CurrentThread => Builder::new_current_thread(),
        };
        Ok(Caller {
            kind,
            runtime: builder.worker_threads(2).enable_all().build()?,
        })
    }

    /// Calls in its own thread, whatever the kind: for what cannot be sent to another.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn call<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match self.kind {
            CallerKind::Body | CallerKind::CurrentThread => self.runtime.block_on(future),
            CallerKind::Spawned => self.runtime.block_on(self.runtime.spawn(future))?,
        }
    }
}
