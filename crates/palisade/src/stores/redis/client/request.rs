//! Calls a script where its key is, whatever stands in the way: no connection, a connection that fails, a key that has moved.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Client;
use super::address::Address;
use super::failure::{self, Remedy, final_error};
use super::script::Call;
use super::server::Server;
use super::servers::Purpose;
use super::settings::Site;
use crate::error::{Error, Result};

/// Between two attempts to find a key that moves between servers.
const MOVING: Duration = Duration::from_millis(20);
/// How many redirections one request follows.
const REDIRECTS: usize = 8;

/// The reply to a call.
pub(crate) struct Called {
    pub(crate) value: Value,
    /// The server that gave it.
    pub(crate) server: Arc<Server>,
    /// Whether the call was sent again because the first reply did not come: the server may have done it twice.
    pub(crate) sent_again: bool,
}

/// A call that was sent, and failed.
pub(crate) struct Failed {
    pub(crate) server: Arc<Server>,
    pub(crate) error: RedisError,
}

impl Client {
    /// Calls a script where its key is. `needs_inbox`: the server may push something after it, so the inbox is subscribed before.
    pub(crate) async fn call(self: &Arc<Self>, call: &Call, needs_inbox: bool) -> Result<Called> {
        let failed = match self.ready(call.key(), needs_inbox) {
            Some(server) => match server.call(call).await {
                Ok(value) => {
                    return Ok(Called {
                        value,
                        server,
                        sent_again: false,
                    });
                }
                Err(error) => Some(Failed { server, error }),
            },
            None => None,
        };
        // Boxed: the future of nearly every call needs no room for it.
        Box::pin(self.call_with_recovery(call, needs_inbox, failed, &|| true)).await
    }

    /// The server of a key, if nothing has to be opened or found for it.
    pub(crate) fn ready(&self, key: &str, needs_inbox: bool) -> Option<Arc<Server>> {
        let server = self
            .servers
            .open(&self.topology.known(key)?, Purpose::Requests)?;
        (!needs_inbox || self.is_subscribed()).then_some(server)
    }

    /// Calls a script for which no server was ready, or whose first attempt has failed. Nothing is sent once `is_wanted` says no.
    pub(crate) async fn call_with_recovery(
        self: &Arc<Self>,
        call: &Call,
        needs_inbox: bool,
        failed: Option<Failed>,
        is_wanted: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Called> {
        let mut attempts = Attempts {
            client: self,
            begun: Instant::now(),
            may_reconnect: true,
            may_leave: true,
            sent: failed.is_some(),
            sent_again: false,
            redirect: None,
            redirects: 0,
        };
        let mut failed = failed;
        loop {
            let Failed { server, error } = match failed.take() {
                Some(failed) => failed,
                None => {
                    let asking = attempts.redirect.is_some();
                    let server = match attempts.next_server(call, needs_inbox).await {
                        Ok(server) => server,
                        Err(error) => {
                            return Err(if attempts.sent {
                                error
                            } else {
                                error.with_nothing_sent()
                            });
                        }
                    };
                    if !attempts.sent && !is_wanted() {
                        return Err(Error::unavailable(
                            "the caller has left before the request was sent",
                        )
                        .with_nothing_sent());
                    }
                    attempts.sent = true;
                    let reply = if asking {
                        server.call_asking(call).await
                    } else {
                        server.call(call).await
                    };
                    match reply {
                        Ok(value) => {
                            return Ok(Called {
                                value,
                                server,
                                sent_again: attempts.sent_again,
                            });
                        }
                        Err(error) => Failed { server, error },
                    }
                }
            };
            attempts.recover(&server, &error).await?;
        }
    }

    /// Calls many scripts, those of one server in one pipeline, all servers at the same time. Each has its own reply, in the same
    /// order, within the shortest of the limits of its server's calls; twice that where they are sent again. `pushes`: whether a server may
    /// push something after it.
    pub(crate) async fn call_all(
        self: &Arc<Self>,
        calls: Vec<(Call, Duration)>,
        purpose: Purpose,
        pushes: bool,
    ) -> Vec<Result<Value>> {
        let unanswered = || {
            Err(Error::protocol(
                "the server answered fewer requests than it was sent",
            ))
        };
        let mut replies: Vec<Result<Value>> = calls.iter().map(|_| unanswered()).collect();
        let mut to_send: Vec<Sent> = calls
            .into_iter()
            .enumerate()
            .map(|(place, (call, limit))| Sent { place, call, limit })
            .collect();
        // A server that refused the calls because it is a replica was left: they are sent once more, perhaps to another one.
        for _ in 0..2 {
            let mut by_server: HashMap<Address, Vec<Sent>> = HashMap::new();
            for sent in to_send.drain(..) {
                match self.topology.find(self, sent.call.key()).await {
                    Ok(address) => by_server.entry(address).or_default().push(sent),
                    Err(error) => replies[sent.place] = Err(error),
                }
            }
            let mut pipelines = JoinSet::new();
            for (address, calls) in by_server {
                let client = Arc::clone(self);
                pipelines.spawn(async move {
                    let limit = calls
                        .iter()
                        .map(|sent| sent.limit)
                        .min()
                        .unwrap_or_default();
                    let replies = client.pipeline(&address, &calls, limit, purpose, pushes);
                    let late = |_| {
                        let late = Error::unavailable(format!("{address} does not answer in time"));
                        calls
                            .iter()
                            .map(|_| Replied::Known(Err(late.clone())))
                            .collect()
                    };
                    let replies: Vec<Replied> = tokio::time::timeout(limit, replies)
                        .await
                        .unwrap_or_else(late);
                    (calls, replies)
                });
            }
            while let Some(done) = pipelines.join_next().await {
                let Ok((calls, values)) = done else { continue };
                for (sent, value) in calls.into_iter().zip(values) {
                    match value {
                        Replied::Known(value) => replies[sent.place] = value,
                        Replied::ByReplica(error) => {
                            replies[sent.place] = Err(error);
                            to_send.push(sent);
                        }
                    }
                }
            }
            if to_send.is_empty() {
                break;
            }
        }
        replies
    }

    async fn pipeline(
        self: &Arc<Self>,
        address: &Address,
        calls: &[Sent],
        limit: Duration,
        purpose: Purpose,
        pushes: bool,
    ) -> Vec<Replied> {
        let (server, values) = match self
            .try_pipeline(address, calls, limit, purpose, pushes)
            .await
        {
            Ok(answered) => answered,
            Err(error) => {
                return calls
                    .iter()
                    .map(|_| Replied::Known(Err(error.clone())))
                    .collect();
            }
        };
        let mut replies = Vec::with_capacity(calls.len());
        for (Sent { call, .. }, value) in calls.iter().zip(values) {
            let error = match value {
                Ok(value) => {
                    replies.push(Replied::Known(Ok(value)));
                    continue;
                }
                Err(error) => error,
            };
            replies.push(match failure::remedy(&error, address) {
                Remedy::SendWhole | Remedy::Redirect { .. } | Remedy::AskAgain => {
                    Replied::Known(self.call(call, pushes).await.map(|called| called.value))
                }
                Remedy::Leave(error) => {
                    self.leave(&server);
                    Replied::ByReplica(error)
                }
                _ => Replied::Known(Err(final_error(&error, address))),
            });
        }
        replies
    }

    async fn try_pipeline(
        self: &Arc<Self>,
        address: &Address,
        calls: &[Sent],
        limit: Duration,
        purpose: Purpose,
        pushes: bool,
    ) -> Result<(Arc<Server>, Vec<RedisResult<Value>>)> {
        let server = self
            .server(address, purpose)
            .await
            .inspect_err(|_| self.topology.forget())?;
        if pushes {
            // Not waited for: the inbox may be on another server, which hangs. A push that is missed is found by the next renewal.
            self.ensure_inbox(&server);
        }
        if purpose == Purpose::Renewals {
            self.expect_answer(&server, 2 * limit);
        }
        let replies = server
            .call_all(calls.iter().map(|sent| &sent.call))
            .await
            .map_err(|error| {
                self.give_up(&server);
                final_error(&error, address)
            })?;
        Ok((server, replies))
    }

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

    /// Whether enough replicas have everything that was written on this server's connection. Where the URL does not say how many,
    /// and the last replica is gone, none is needed any more.
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

    /// Every primary.
    pub(crate) async fn primaries(self: &Arc<Self>) -> Result<Vec<Address>> {
        self.topology.ensure_known(self).await?;
        Ok(self.topology.primaries())
    }
}

/// One of many calls, with its place among them.
struct Sent {
    place: usize,
    call: Call,
    limit: Duration,
}

/// The reply to one of many calls.
enum Replied {
    Known(Result<Value>),
    /// Refused, and not done: the server is a replica.
    ByReplica(Error),
}

/// The attempts of one call.
struct Attempts<'a> {
    client: &'a Arc<Client>,
    begun: Instant,
    /// A connection that was open before may have died unnoticed: its failure is no proof that the server is gone.
    may_reconnect: bool,
    /// The address of a server that has become a replica may lead to the new primary by now.
    may_leave: bool,
    sent: bool,
    sent_again: bool,
    /// Another server has the key, for one request.
    redirect: Option<Address>,
    redirects: usize,
}

impl Attempts<'_> {
    async fn next_server(&mut self, call: &Call, needs_inbox: bool) -> Result<Arc<Server>> {
        let client = self.client;
        let address = match self.redirect.take() {
            Some(address) => address,
            None => client.topology.find(client, call.key()).await?,
        };
        self.may_reconnect &= client.servers.open(&address, Purpose::Requests).is_some();
        let server = client
            .server(&address, Purpose::Requests)
            .await
            .inspect_err(|_| client.topology.forget())?;
        if needs_inbox {
            client.subscribed(&server).await?;
        }
        Ok(server)
    }

    /// Does what can be done about an error, so that the next attempt may succeed.
    async fn recover(&mut self, server: &Arc<Server>, error: &RedisError) -> Result<()> {
        let (client, address) = (self.client, &server.address);
        match failure::remedy(error, address) {
            Remedy::Redirect { .. } if matches!(client.settings.site, Site::Single(_)) => {
                return Err(Error::bad_url(format!(
                    "{address} is part of a cluster; write redis+cluster://{address}"
                )));
            }
            Remedy::Redirect { to, slot } if self.redirects < REDIRECTS => {
                self.redirects += 1;
                match slot {
                    Some(slot) => client.topology.learn(slot, to),
                    None => self.redirect = Some(to),
                }
            }
            Remedy::AskAgain if self.begun.elapsed() < client.settings.request_timeout => {
                // A key that moves is redirected anew at each attempt.
                self.redirects = 0;
                tokio::time::sleep(MOVING).await;
            }
            Remedy::Reconnect(error) => {
                client.give_up(server);
                if !std::mem::take(&mut self.may_reconnect) {
                    return Err(error);
                }
                self.sent_again = true;
            }
            Remedy::FindPrimary(error) => {
                client.give_up(server);
                return Err(error);
            }
            Remedy::Leave(error) => {
                client.leave(server);
                if !std::mem::take(&mut self.may_leave) {
                    return Err(error);
                }
            }
            Remedy::Tell(error) => return Err(error),
            Remedy::Redirect { .. } | Remedy::AskAgain | Remedy::SendWhole => {
                client.topology.forget();
                return Err(Error::unavailable(format!(
                    "{address}: the key moves between servers; try again"
                )));
            }
        }
        Ok(())
    }
}
