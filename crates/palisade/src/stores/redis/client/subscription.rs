//! The client's inbox: one channel of its own, subscribed on one of its servers. The servers of a
//! cluster forward messages to each other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Client;
use super::failure::final_error;
use super::server::Server;
use super::shared_task::SharedTask;
use crate::error::Result;

pub(super) struct Subscription {
    pub(super) channel: Arc<str>,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    Nowhere,
    Subscribing(SharedTask<()>, Arc<Server>),
    On(Arc<Server>),
}

impl Subscription {
    pub(super) fn new(channel: String) -> Subscription {
        Subscription {
            channel: channel.into(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server that the inbox is subscribed on.
    pub(super) fn server(&self) -> Option<Arc<Server>> {
        match &*self.lock() {
            State::On(server) if !server.is_closed() => Some(Arc::clone(server)),
            _ => None,
        }
    }

    /// Whether the inbox was subscribed, and is not any more.
    pub(super) fn is_lost(&self) -> bool {
        match &*self.lock() {
            State::On(server) | State::Subscribing(_, server) => server.is_closed(),
            State::Nowhere => false,
        }
    }
}

impl Client {
    /// The name of the inbox.
    pub(crate) fn inbox(&self) -> &Arc<str> {
        &self.subscription.channel
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        matches!(&*self.subscription.lock(), State::On(server) if !server.is_closed())
    }

    /// Makes sure that the inbox is subscribed, on this server if it is not.
    pub(super) async fn subscribed(self: &Arc<Self>, server: &Arc<Server>) -> Result<()> {
        match self.subscribe(server) {
            Some(subscribing) => subscribing.result().await,
            None => Ok(()),
        }
    }

    /// Begins to subscribe the inbox; `None` when it is subscribed.
    pub(super) fn subscribe(self: &Arc<Self>, server: &Arc<Server>) -> Option<SharedTask<()>> {
        let mut state = self.subscription.lock();
        match &*state {
            State::On(server) if !server.is_closed() => return None,
            State::Subscribing(task, server) if !task.is_done() && !server.is_closed() => {
                return Some(task.clone());
            }
            _ => {}
        }
        let (client, on) = (Arc::clone(self), Arc::clone(server));
        let task = SharedTask::spawn(async move {
            let subscription = &client.subscription;
            on.subscribe(&subscription.channel)
                .await
                .map_err(|error| final_error(&error, &on.address))?;
            *subscription.lock() = State::On(on);
            Ok(())
        });
        *state = State::Subscribing(task.clone(), Arc::clone(server));
        Some(task)
    }

    /// Begins to subscribe the inbox on this server, if it is nowhere.
    pub(crate) fn ensure_inbox(self: &Arc<Self>, server: &Arc<Server>) {
        drop(self.subscribe(server));
    }

    /// A push is overdue: checks that the connection which has the inbox still answers. If not, it
    /// is given up.
    pub(crate) fn check_inbox(&self) {
        if let Some(server) = self.subscription.server() {
            tokio::spawn(async move { server.ask(redis::cmd("PING")).await });
        }
    }
}
