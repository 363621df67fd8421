//! What a run holds: one lock, or several as one.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use palisade::{AnyMode, Error, Guard, MultiGuard, Released, Result, Status};

pub(crate) enum Held {
    One(Guard<AnyMode>),
    Several(MultiGuard),
}

impl Held {
    pub(crate) fn members(&self) -> &[Guard<AnyMode>] {
        match self {
            Held::One(guard) => std::slice::from_ref(guard),
            Held::Several(guard) => guard.members(),
        }
    }

    /// The fence of this name, as text.
    pub(crate) fn fence(&self, name: &str) -> String {
        let member = self.members().iter().find(|member| member.name() == name);
        member.map_or_else(String::new, |member| member.fence().to_string())
    }

    /// The shortest lease, as granted.
    pub(crate) fn lease(&self) -> Duration {
        self.shortest(Guard::lease)
    }

    /// How long all are certainly held.
    pub(crate) fn remaining(&self) -> Duration {
        self.shortest(Guard::remaining)
    }

    fn shortest(&self, span: impl Fn(&Guard<AnyMode>) -> Duration) -> Duration {
        self.members().iter().map(span).min().unwrap_or_default()
    }

    pub(crate) fn status(&self) -> Status {
        match self {
            Held::One(guard) => guard.status(),
            Held::Several(guard) => match guard.loss() {
                Some(reason) => Status::Lost(reason),
                None => Status::Held,
            },
        }
    }

    /// Completes when the work is to stop: with the stop margin, or when one is lost.
    pub(crate) fn must_stop(&self) -> impl Future<Output = ()> + use<> {
        let token = match self {
            Held::One(guard) => guard.on_lost(),
            Held::Several(guard) => guard.on_lost(),
        };
        token.cancelled_owned()
    }

    /// The first name whose last renewal failed, and why.
    pub(crate) fn trouble(&self) -> Option<(&str, Error)> {
        let mut members = self.members().iter();
        members.find_map(|member| Some((member.name(), member.trouble()?)))
    }

    /// Completes at the next change of any of them, counted from the call on.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        type Change<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
        let members = self.members().iter();
        let mut changes: Vec<Change<'_>> = members
            .map(|member| Box::pin(member.changed()) as _)
            .collect();
        poll_fn(move |context| {
            let changed = changes
                .iter_mut()
                .any(|change| change.as_mut().poll(context).is_ready());
            if changed {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }

    /// Gives all back. The answer is that of the first that was not given back as it should be.
    pub(crate) async fn release(self) -> Result<Released> {
        match self {
            Held::One(guard) => guard.release().await,
            Held::Several(guard) => {
                let released = guard.release().await;
                let failed = released.failures().next();
                failed.map_or(Ok(Released::Done), |(_, failure)| failure.clone())
            }
        }
    }

    /// Gives all back as if they had never been granted. What fails ends with its lease.
    pub(crate) async fn undo(self) {
        match self {
            Held::One(guard) => drop(guard.undo().await),
            Held::Several(guard) => drop(guard.undo().await),
        }
    }
}
