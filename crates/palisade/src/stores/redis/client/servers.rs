//! The connections of a client: one to each server that it needs, for each purpose, opened at first
//! use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Client;
use super::address::Address;
use super::failure::Remedy;
use super::server::Server;
use super::shared_task::SharedTask;
use crate::error::{Error, Result};

/// The purpose of a connection. `WAIT` holds up all requests behind it, and renewals must not be
/// held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Requests,
    Renewals,
}

/// Few: they are searched one by one.
#[derive(Default)]
pub(super) struct Servers(Mutex<Vec<Entry>>);

struct Entry {
    address: Address,
    purpose: Purpose,
    state: State,
}

enum State {
    Opening(SharedTask<Arc<Server>>),
    Open(Arc<Server>),
}

impl Servers {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server, if its connection is open.
    pub(super) fn open(&self, address: &Address, purpose: Purpose) -> Option<Arc<Server>> {
        self.lock()
            .iter()
            .find(|entry| entry.is(address, purpose))
            .and_then(|entry| entry.state.open())
    }

    /// Every server with an open connection.
    pub(super) fn all_open(&self) -> Vec<Arc<Server>> {
        self.lock()
            .iter()
            .filter_map(|entry| entry.state.open())
            .collect()
    }
}

impl Entry {
    fn is(&self, address: &Address, purpose: Purpose) -> bool {
        self.purpose == purpose && self.address == *address
    }
}

impl State {
    fn open(&self) -> Option<Arc<Server>> {
        match self {
            State::Open(server) if !server.is_closed() => Some(Arc::clone(server)),
            State::Open(_) | State::Opening(_) => None,
        }
    }

    /// The task that opens it, if it is still at work.
    fn opening(&self) -> Option<SharedTask<Arc<Server>>> {
        match self {
            State::Opening(task) if !task.is_done() => Some(task.clone()),
            State::Open(_) | State::Opening(_) => None,
        }
    }
}

impl Client {
    /// A server; its connection is opened if there is none.
    pub(crate) async fn server(
        self: &Arc<Self>,
        address: &Address,
        purpose: Purpose,
    ) -> Result<Arc<Server>> {
        let opening = {
            let mut servers = self.servers.lock();
            let known = servers
                .iter()
                .find(|entry| entry.is(address, purpose))
                .map(|entry| &entry.state);
            if let Some(server) = known.and_then(State::open) {
                return Ok(server);
            }
            match known.and_then(State::opening) {
                Some(opening) => opening,
                None => {
                    let opening =
                        SharedTask::spawn(Arc::clone(self).open(address.clone(), purpose));
                    servers.retain(|entry| {
                        !entry.is(address, purpose)
                            && (entry.state.open().is_some() || entry.state.opening().is_some())
                    });
                    servers.push(Entry {
                        address: address.clone(),
                        purpose,
                        state: State::Opening(opening.clone()),
                    });
                    opening
                }
            }
        };
        opening.result().await
    }

    async fn open(self: Arc<Self>, address: Address, purpose: Purpose) -> Result<Arc<Server>> {
        let opening = async {
            let server =
                Server::connect(&self.settings, address.clone(), Arc::clone(&self.handler)).await?;
            match server.check_role().await {
                Ok(()) => Ok(server),
                Err(Remedy::Leave(_)) if self.settings.independent => Err(Error::bad_url(format!(
                    "{address} is a replica of another server, and has no vote of its own; write independent servers into the URL"
                ))),
                Err(Remedy::FindPrimary(error) | Remedy::Leave(error)) => {
                    self.topology.mark_stale();
                    Err(error)
                }
                Err(Remedy::Tell(error) | Remedy::Reconnect(error)) => Err(error),
                Err(_) => Err(Error::protocol(format!(
                    "{address} does not say what it is"
                ))),
            }
        };
        let late = |_| {
            Err(Error::unavailable(format!(
                "{address} does not answer within the connect_timeout"
            )))
        };
        let server = tokio::time::timeout(self.settings.connect_timeout, opening)
            .await
            .unwrap_or_else(late)?;
        let mut servers = self.servers.lock();
        servers.retain(|entry| !entry.is(&address, purpose));
        servers.push(Entry {
            address,
            purpose,
            state: State::Open(Arc::clone(&server)),
        });
        drop(servers);
        self.watch(&server);
        Ok(server)
    }
}
