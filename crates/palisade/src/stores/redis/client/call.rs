//! Calls a script where its key is: connects, reconnects and follows redirections as needed.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::time::Instant;

use super::Client;
use super::address::Address;
use super::failure::{self, Remedy};
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
    /// Whether the call was sent again because the first reply was lost: the server may have done
    /// it twice.
    pub(crate) sent_again: bool,
}

impl Called {
    /// The reply to a call that was sent once.
    pub(crate) fn at_once(value: Value, server: &Arc<Server>) -> Called {
        Called {
            value,
            server: Arc::clone(server),
            sent_again: false,
        }
    }
}

/// A call that was sent, and failed.
pub(crate) struct Failed {
    pub(crate) server: Arc<Server>,
    pub(crate) error: RedisError,
}

impl Client {
    /// Calls a script where its key is. `needs_inbox`: the server may push something after it, so
    /// the inbox is subscribed before.
    pub(crate) async fn call(self: &Arc<Self>, call: &Call, needs_inbox: bool) -> Result<Called> {
        let failed = match self.ready(call.key(), needs_inbox) {
            Some(server) => match server.call(call).await {
                Ok(value) => return Ok(Called::at_once(value, &server)),
                Err(error) => Some(Failed { server, error }),
            },
            None => None,
        };
        // Boxed: the future of nearly every call needs no room for it.
        Box::pin(self.call_with_recovery(call, needs_inbox, failed, &|| true)).await
    }

    /// The server of a key, if it is known and connected.
    pub(crate) fn ready(&self, key: &str, needs_inbox: bool) -> Option<Arc<Server>> {
        let server = self
            .servers
            .open(&self.topology.known(key)?, Purpose::Requests)?;
        (!needs_inbox || self.is_subscribed()).then_some(server)
    }

    /// Calls a script for which no server was ready, or whose first attempt has failed. Nothing is
    /// sent once `is_wanted` returns `false`.
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
            if let Some(failed) = failed {
                attempts.recover(&failed).await?;
            }
            failed = match attempts.send(call, needs_inbox, is_wanted).await? {
                Ok(called) => return Ok(called),
                Err(failed) => Some(failed),
            };
        }
    }
}

/// The attempts of one call.
struct Attempts<'a> {
    client: &'a Arc<Client>,
    begun: Instant,
    /// A connection that was open before may have died unnoticed: the server may still be there.
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
    async fn send(
        &mut self,
        call: &Call,
        needs_inbox: bool,
        is_wanted: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Result<Called, Failed>> {
        let asking = self.redirect.is_some();
        let server = match self.next_server(call, needs_inbox).await {
            Err(error) if !self.sent => return Err(error.with_nothing_sent()),
            server => server?,
        };
        if !self.sent && !is_wanted() {
            let left = Error::unavailable("the caller has left before the request was sent");
            return Err(left.with_nothing_sent());
        }
        self.sent = true;
        let reply = if asking {
            server.call_asking(call).await
        } else {
            server.call(call).await
        };
        let sent_again = self.sent_again;
        Ok(match reply {
            Ok(value) => Ok(Called {
                value,
                server,
                sent_again,
            }),
            Err(error) => Err(Failed { server, error }),
        })
    }

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
            .inspect_err(|_| client.topology.mark_stale())?;
        if needs_inbox {
            client.subscribed(&server).await?;
        }
        Ok(server)
    }

    /// Reacts to an error, so that the next attempt may succeed; fails where no attempt can.
    async fn recover(&mut self, Failed { server, error }: &Failed) -> Result<()> {
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
                // A key that moves is redirected at each attempt.
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
                client.topology.mark_stale();
                return Err(Error::unavailable(format!(
                    "{address}: the key moves between servers; try again"
                )));
            }
        }
        Ok(())
    }
}
