//! Waiting for replicas, together: `WAIT` holds up everything behind it on its connection, and counts only what was written on
//! that connection. So all who wait at the same time share one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::link::{Link, told};
use crate::error::{Error, Result};

/// The group replica_wait of one link.
#[derive(Default)]
pub(crate) struct ReplicaWait(Mutex<Group>);

#[derive(Default)]
struct Group {
    /// Whether a task is waiting for replicas now.
    running: bool,
    /// Who came since: their writes may not be covered by the `WAIT` that is on its way.
    next: Vec<Member>,
}

struct Member {
    replicas: usize,
    patience: Duration,
    reply: oneshot::Sender<Result<usize>>,
}

impl ReplicaWait {
    fn lock(&self) -> std::sync::MutexGuard<'_, Group> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many replicas have everything that was written on the link before this call. Never waits for more than so many, nor
    /// for longer than the patience and what stands before it.
    pub(crate) async fn join(&self, link: &Arc<Link>, runtime: &Handle, replicas: usize, patience: Duration) -> Result<usize> {
        let (reply, answer) = oneshot::channel();
        let begin = {
            let mut group = self.lock();
            group.next.push(Member { replicas, patience, reply });
            !std::mem::replace(&mut group.running, true)
        };
        if begin {
            // A task of its own: whoever began must not hold up the others by leaving, or by not being polled.
            runtime.spawn(Running { link: Arc::clone(link), done: false }.run());
        }
        let ended = || Error::unavailable("the runtime of the connection has ended");
        // That runtime may stand still, and then nothing is even sent.
        let _expected = link.expect();
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or_else(|_| Err(ended())),
            () = link.ended() => Err(Error::unavailable(format!("{} cannot be reached", link.address))),
        }
    }
}

/// The one task that waits for replicas on a link.
struct Running {
    link: Arc<Link>,
    done: bool,
}

impl Running {
    async fn run(mut self) {
        loop {
            let members = {
                let mut group = self.link.replica_wait.lock();
                if group.next.is_empty() {
                    group.running = false;
                    self.done = true;
                    return;
                }
                std::mem::take(&mut group.next)
            };
            let replicas = members.iter().map(|member| member.replicas).max().unwrap_or(0);
            let patience = members.iter().map(|member| member.patience).min().unwrap_or_default();
            let mut wait = redis::cmd("WAIT");
            wait.arg(replicas).arg(patience.as_millis().max(1) as u64);
            let count = match self.link.ask(wait).await {
                Ok(Value::Int(count)) => usize::try_from(count).map_err(|_| Error::protocol("WAIT counts below zero")),
                Ok(_) => Err(Error::protocol("WAIT does not answer a number")),
                Err(error) => Err(told(&error, &self.link.address)),
            };
            for member in members {
                let _ = member.reply.send(count.clone());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The runtime has ended: whoever waits hears that nobody answers.
        if !self.done {
            let mut group = self.link.replica_wait.lock();
            group.running = false;
            group.next.clear();
        }
    }
}
