//! Waiting for replicas. `WAIT` holds up all requests behind it on its connection, and counts only what was written on that
//! connection: so all callers that wait at the same time share one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::oneshot;

use super::connection::unanswered;
use super::server::Server;

/// Of one connection.
#[derive(Default)]
pub(super) struct ReplicaWait(Mutex<State>);

#[derive(Default)]
struct State {
    /// Whether a task waits for replicas now.
    running: bool,
    /// Callers that came since: the `WAIT` in flight may not cover their writes.
    next: Vec<Waiter>,
}

struct Waiter {
    replicas: usize,
    patience: Duration,
    reply: oneshot::Sender<RedisResult<usize>>,
}

impl ReplicaWait {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many replicas have everything that was written before this call. Never waits for more than `replicas`, nor for longer
    /// than `patience` and the `WAIT` in flight.
    pub(super) async fn join(
        &self,
        server: &Arc<Server>,
        replicas: usize,
        patience: Duration,
    ) -> RedisResult<usize> {
        let (reply, answer) = oneshot::channel();
        let begin = {
            let mut state = self.lock();
            state.next.push(Waiter {
                replicas,
                patience,
                reply,
            });
            !std::mem::replace(&mut state.running, true)
        };
        if begin {
            // A task of its own: a caller that leaves, or is not polled, must not hold up the others.
            tokio::spawn(run(Arc::clone(server)));
        }
        answer.await.unwrap_or_else(|_| Err(unanswered()))
    }
}

/// Waits for replicas until no caller waits.
async fn run(server: Arc<Server>) {
    loop {
        let waiters = {
            let mut state = server.replica_wait().lock();
            state.running = !state.next.is_empty();
            std::mem::take(&mut state.next)
        };
        if waiters.is_empty() {
            return;
        }
        let replicas = waiters
            .iter()
            .map(|waiter| waiter.replicas)
            .max()
            .unwrap_or(0);
        let patience = waiters
            .iter()
            .map(|waiter| waiter.patience)
            .min()
            .unwrap_or_default();
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(patience.as_millis().max(1) as u64);
        let count = match server.ask(wait).await {
            Ok(Value::Int(count)) => {
                usize::try_from(count).map_err(|_| strange("WAIT counts below zero"))
            }
            Ok(_) => Err(strange("WAIT does not answer a number")),
            Err(error) => Err(error),
        };
        for waiter in waiters {
            let _ = waiter.reply.send(count.clone());
        }
    }
}

fn strange(what: &'static str) -> RedisError {
    (ErrorKind::UnexpectedReturnType, what).into()
}
