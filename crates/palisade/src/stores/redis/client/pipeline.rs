//! Calls many scripts at once: one pipeline for each server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::task::JoinSet;

use super::Client;
use super::address::Address;
use super::failure::{self, Remedy, final_error};
use super::script::Call;
use super::server::Server;
use super::servers::Purpose;
use crate::error::{Error, Result};

/// How often calls are sent at most. A server that refuses them because it is a replica is left, and
/// they are sent once more, perhaps to another one.
const ATTEMPTS: usize = 2;

/// A call, and how long its reply may take.
pub(crate) struct TimedCall {
    pub(crate) call: Call,
    pub(crate) limit: Duration,
}

/// The calls to one server.
struct Pipeline {
    client: Arc<Client>,
    address: Address,
    /// Each with its place among all calls.
    calls: Vec<(usize, TimedCall)>,
    purpose: Purpose,
    pushes: bool,
}

/// The reply to one call of a pipeline.
enum Reply {
    Known(Result<Value>),
    /// Refused, and not done: the server is a replica.
    ByReplica(Error),
}

impl Client {
    /// Calls many scripts, those of one server in one pipeline, all servers at the same time. Each
    /// has its own reply, in the same order, within the shortest of the limits of its server's
    /// calls; twice that where they are sent again. `pushes`: whether a server may push something
    /// after it.
    pub(crate) async fn call_all(
        self: &Arc<Self>,
        calls: Vec<TimedCall>,
        purpose: Purpose,
        pushes: bool,
    ) -> Vec<Result<Value>> {
        let unanswered = || Error::protocol("the server answered fewer requests than it was sent");
        let mut replies: Vec<Result<Value>> = calls.iter().map(|_| Err(unanswered())).collect();
        let mut to_send: Vec<(usize, TimedCall)> = calls.into_iter().enumerate().collect();
        for _ in 0..ATTEMPTS {
            let mut by_server: HashMap<Address, Vec<(usize, TimedCall)>> = HashMap::new();
            for (place, timed) in to_send.drain(..) {
                match self.topology.find(self, timed.call.key()).await {
                    Ok(address) => by_server.entry(address).or_default().push((place, timed)),
                    Err(error) => replies[place] = Err(error),
                }
            }
            let mut pipelines = JoinSet::new();
            for (address, calls) in by_server {
                let client = Arc::clone(self);
                pipelines.spawn(
                    Pipeline {
                        client,
                        address,
                        calls,
                        purpose,
                        pushes,
                    }
                    .run(),
                );
            }
            while let Some(done) = pipelines.join_next().await {
                let Ok((calls, values)) = done else { continue };
                for ((place, timed), value) in calls.into_iter().zip(values) {
                    replies[place] = match value {
                        Reply::Known(value) => value,
                        Reply::ByReplica(error) => {
                            to_send.push((place, timed));
                            Err(error)
                        }
                    };
                }
            }
            if to_send.is_empty() {
                break;
            }
        }
        replies
    }
}

impl Pipeline {
    /// Sends the calls; returns them with their replies.
    async fn run(self) -> (Vec<(usize, TimedCall)>, Vec<Reply>) {
        let limits = self.calls.iter().map(|(_, timed)| timed.limit);
        let limit = limits.min().unwrap_or_default();
        let late = |_| {
            let late = Error::unavailable(format!("{} does not answer in time", self.address));
            self.all_failed(&late)
        };
        let replies = tokio::time::timeout(limit, self.replies(limit))
            .await
            .unwrap_or_else(late);
        (self.calls, replies)
    }

    async fn replies(&self, limit: Duration) -> Vec<Reply> {
        let (server, values) = match self.send(limit).await {
            Ok(answered) => answered,
            Err(error) => return self.all_failed(&error),
        };
        let mut replies = Vec::with_capacity(self.calls.len());
        for ((_, timed), value) in self.calls.iter().zip(values) {
            replies.push(match value {
                Ok(value) => Reply::Known(Ok(value)),
                Err(error) => match failure::remedy(&error, &self.address) {
                    Remedy::SendWhole | Remedy::Redirect { .. } | Remedy::AskAgain => {
                        let called = self.client.call(&timed.call, self.pushes).await;
                        Reply::Known(called.map(|called| called.value))
                    }
                    Remedy::Leave(error) => {
                        self.client.leave(&server);
                        Reply::ByReplica(error)
                    }
                    _ => Reply::Known(Err(final_error(&error, &self.address))),
                },
            });
        }
        replies
    }

    async fn send(&self, limit: Duration) -> Result<(Arc<Server>, Vec<RedisResult<Value>>)> {
        let client = &self.client;
        let server = client
            .server(&self.address, self.purpose)
            .await
            .inspect_err(|_| client.topology.mark_stale())?;
        if self.pushes {
            // Not waited for: the inbox may be on another server, which hangs. A push that is
            // missed is found by the next renewal.
            client.ensure_inbox(&server);
        }
        if self.purpose == Purpose::Renewals {
            client.expect_answer(&server, 2 * limit);
        }
        let calls = self.calls.iter().map(|(_, timed)| &timed.call);
        let replies = server.call_all(calls).await.map_err(|error| {
            client.give_up(&server);
            final_error(&error, &self.address)
        })?;
        Ok((server, replies))
    }

    fn all_failed(&self, error: &Error) -> Vec<Reply> {
        let failed = |_| Reply::Known(Err(error.clone()));
        self.calls.iter().map(failed).collect()
    }
}
