//! How many replicas must have a write, and waiting for them. `WAIT` holds up all requests behind it
//! on its connection, and counts only writes on that connection: so all callers that wait at the
//! same time share one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::oneshot;

use super::Client;
use super::connection::unanswered;
use super::failure::{self, Remedy, final_error};
use super::server::Server;
use crate::error::Result;

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

impl Client {
    /// How many replicas must have a write on this server.
    pub(crate) fn replicas_for(&self, server: &Server) -> usize {
        self.settings
            .replicas
            .unwrap_or_else(|| server.replicas().min(1))
    }

    /// Whether replicas must have a write before it counts, as far as is known.
    pub(crate) fn needs_replicas(&self) -> bool {
        match self.settings.replicas {
            Some(count) => count > 0,
            None => self
                .servers
                .all_open()
                .iter()
                .any(|server| server.replicas() > 0),
        }
    }

    /// Whether enough replicas have everything that was written on this server's connection. Where
    /// the URL does not say how many, and the last replica is gone, none is needed any more.
    pub(crate) async fn is_replicated(
        self: &Arc<Self>,
        server: &Arc<Server>,
        patience: Duration,
    ) -> Result<bool> {
        let replicas = self.replicas_for(server);
        if replicas == 0 {
            return Ok(true);
        }
        match server.wait_for_replicas(replicas, patience).await {
            Ok(count) if count >= replicas => return Ok(true),
            Ok(_) => {}
            Err(error) => {
                if let Remedy::Leave(_) = failure::remedy(&error, &server.address) {
                    self.leave(server);
                }
                return Err(final_error(&error, &server.address));
            }
        }
        if self.settings.replicas.is_none() {
            let _ = server.check_role().await;
        }
        Ok(self.replicas_for(server) == 0)
    }
}

impl ReplicaWait {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many replicas have everything that was written before this call. Never waits for more
    /// than `replicas`, nor for longer than `patience` and the `WAIT` in flight.
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
            // A task of its own: a caller that leaves, or is not polled, must not hold up the
            // others.
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
                usize::try_from(count).map_err(|_| unexpected("WAIT counts below zero"))
            }
            Ok(_) => Err(unexpected("WAIT does not answer a number")),
            Err(error) => Err(error),
        };
        for waiter in waiters {
            let _ = waiter.reply.send(count.clone());
        }
    }
}

fn unexpected(what: &'static str) -> RedisError {
    (ErrorKind::UnexpectedReturnType, what).into()
}
