//! The servers' limit: the commands of a lock on all of them at the same time, until a majority has
//! said yes. Nothing is counted, checked or repeated.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::Result;
use crate::redis::raw;

pub(super) struct RawLock {
    connections: Vec<MultiplexedConnection>,
    take: Arc<Cmd>,
    give_back: Arc<Cmd>,
}

impl RawLock {
    pub(super) fn new(
        connections: Vec<MultiplexedConnection>,
        name: &str,
        lease: Duration,
    ) -> RawLock {
        RawLock {
            connections,
            take: Arc::new(raw::take(name, lease)),
            give_back: Arc::new(raw::give_back(name)),
        }
    }

    pub(super) async fn cycle(&self) -> Result<()> {
        self.majority(&self.take, &Value::Okay).await?;
        self.majority(&self.give_back, &Value::Int(1)).await
    }

    /// What is not answered by then stays in flight. A connection keeps the order.
    async fn majority(&self, command: &Arc<Cmd>, yes: &Value) -> Result<()> {
        let ask = |connection: &MultiplexedConnection| {
            let (mut connection, command) = (connection.clone(), Arc::clone(command));
            Box::pin(async move { command.query_async::<Value>(&mut connection).await })
        };
        let mut asked: Vec<_> = self.connections.iter().map(ask).collect();
        let quorum = asked.len() / 2 + 1;
        let mut votes = 0;
        poll_fn(|context| {
            asked.retain_mut(|request| {
                let Poll::Ready(answer) = request.as_mut().poll(context) else {
                    return true;
                };
                votes += usize::from(answer.is_ok_and(|answer| answer == *yes));
                false
            });
            if votes >= quorum {
                Poll::Ready(Ok(()))
            } else if asked.is_empty() {
                Poll::Ready(Err(format!("raw: {votes} votes").into()))
            } else {
                Poll::Pending
            }
        })
        .await
    }
}
