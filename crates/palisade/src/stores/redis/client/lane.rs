//! The connections of one runtime: a caller's requests never leave its own threads, and what is pushed to it arrives there.
//!
//! A lane has one link to each server it needs, opened at first use by a task of its runtime, and one inbox: a channel of its
//! own on which the servers tell of grants and revocations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;

use super::super::shared::Shared;
use super::address::Address;
use super::failure::Remedy;
use super::link::{Hears, Link, told};
use super::shared_task::SharedTask;
use crate::error::{Error, Result};
use crate::store::ClaimId;

pub(crate) struct Lane {
    pub(crate) runtime: Handle,
    /// The channel of its inbox.
    pub(crate) inbox: Arc<str>,
    shared: Weak<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Few: they are looked through.
    links: Vec<(Address, Purpose, Opened)>,
    home: Home,
}

/// What a link is for. Waiting for replicas holds up everything behind it, and nothing may hold up a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    Requests,
    Renewals,
}

enum Opened {
    Opening(Arc<SharedTask<Arc<Link>>>),
    Open(Arc<Link>),
}

/// Where the inbox is subscribed.
#[derive(Default)]
enum Home {
    #[default]
    Nowhere,
    Opening(Arc<SharedTask<()>>, Arc<Link>),
    At(Arc<Link>),
}

impl State {
    fn link(&self, address: &Address, purpose: Purpose) -> Option<&Opened> {
        let place = self.links.iter().find(|(at, of, _)| *of == purpose && at == address);
        place.map(|(_, _, opened)| opened)
    }

    fn put(&mut self, address: &Address, purpose: Purpose, opened: Opened) {
        self.links.retain(|(at, of, _)| !(*of == purpose && at == address));
        self.links.push((address.clone(), purpose, opened));
    }
}

impl Lane {
    pub(crate) fn new(runtime: Handle, shared: &Arc<Shared>) -> Result<Arc<Lane>> {
        // Nobody else must be able to guess it.
        let inbox = shared.settings.channel(&ClaimId::random()?.reveal()).into();
        Ok(Arc::new(Lane { runtime, inbox, shared: Arc::downgrade(shared), state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link to a server, if it is open.
    pub(crate) fn open_link(&self, address: &Address, purpose: Purpose) -> Option<Arc<Link>> {
        match self.lock().link(address, purpose) {
            Some(Opened::Open(link)) if !link.is_broken() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// The link to a server; opened if there is none.
    pub(crate) async fn link(self: &Arc<Self>, address: &Address, purpose: Purpose) -> Result<Arc<Link>> {
        let task = {
            let mut state = self.lock();
            match state.link(address, purpose) {
                Some(Opened::Open(link)) if !link.is_broken() => return Ok(Arc::clone(link)),
                Some(Opened::Opening(task)) if !task.is_done() => Arc::clone(task),
                _ => {
                    let task = SharedTask::start(&self.runtime, Arc::clone(self).open(address.clone(), purpose));
                    state.put(address, purpose, Opened::Opening(Arc::clone(&task)));
                    task
                }
            }
        };
        let Some(shared) = self.shared.upgrade() else { return Err(closed()) };
        // Here too: the runtime that opens it may stand still, and then its own limit is never looked at.
        tokio::select! {
            biased;
            link = task.result() => link,
            () = shared.sleep(shared.settings.connect_timeout) => {
                Err(Error::unavailable(format!("{address} does not answer within the connect_timeout")))
            }
        }
    }

    async fn open(self: Arc<Self>, address: Address, purpose: Purpose) -> Result<Arc<Link>> {
        let shared = self.shared.upgrade().ok_or_else(closed)?;
        let hears = LaneEars { lane: Arc::downgrade(&self), shared: Weak::clone(&self.shared) };
        let opening = async {
            let link = Link::open(&shared.settings, address.clone(), hears).await?;
            match link.look_at_role().await {
                Ok(()) => Ok(link),
                Err(Remedy::FindPrimary(error)) => {
                    shared.topology.forget();
                    Err(error)
                }
                Err(Remedy::Tell(error) | Remedy::Reconnect(error)) => Err(error),
                Err(_) => Err(Error::protocol(format!("{address} does not say what it is"))),
            }
        };
        let link = tokio::select! {
            link = opening => link?,
            () = shared.sleep(shared.settings.connect_timeout) => {
                return Err(Error::unavailable(format!("{address} does not answer within the connect_timeout")));
            }
        };
        link.take_into_use();
        let mut state = self.lock();
        state.links.retain(|(_, _, opened)| !matches!(opened, Opened::Open(link) if link.is_broken()));
        state.put(&address, purpose, Opened::Open(Arc::clone(&link)));
        drop(state);
        shared.watch(&link);
        Ok(link)
    }

    /// Makes sure that the inbox is subscribed somewhere, by this link if it is not: servers pass on what is published.
    pub(crate) async fn at_home(self: &Arc<Self>, link: &Arc<Link>) -> Result<()> {
        let Some((task, by)) = self.begin_home(link) else { return Ok(()) };
        // The runtime of the task may stand still, and then nothing is even sent.
        let _expected = by.expect();
        tokio::select! {
            biased;
            home = task.result() => home,
            () = by.ended() => Err(Error::unavailable(format!("{} cannot be reached", by.address))),
        }
    }

    /// Begins to subscribe the inbox, and says by which link; `None` when it is.
    pub(crate) fn begin_home(self: &Arc<Self>, link: &Arc<Link>) -> Option<(Arc<SharedTask<()>>, Arc<Link>)> {
        let mut state = self.lock();
        match &state.home {
            Home::At(home) if !home.is_broken() => return None,
            Home::Opening(task, by) if !task.is_done() && !by.is_broken() => {
                return Some((Arc::clone(task), Arc::clone(by)));
            }
            _ => {}
        }
        let (lane, by) = (Arc::clone(self), Arc::clone(link));
        let task = SharedTask::start(&self.runtime, async move {
            by.subscribe(&lane.inbox).await.map_err(|error| told(&error, &by.address))?;
            lane.lock().home = Home::At(by);
            Ok(())
        });
        state.home = Home::Opening(Arc::clone(&task), Arc::clone(link));
        Some((task, Arc::clone(link)))
    }

    /// Whether the inbox is subscribed.
    pub(crate) fn is_at_home(&self) -> bool {
        matches!(&self.lock().home, Home::At(link) if !link.is_broken())
    }

    /// The link that the inbox is subscribed on; `None` when it is nowhere.
    pub(crate) fn home(&self) -> Option<Arc<Link>> {
        match &self.lock().home {
            Home::At(link) if !link.is_broken() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Whether the inbox was subscribed, and is not any more.
    pub(crate) fn has_lost_home(&self) -> bool {
        match &self.lock().home {
            Home::At(link) | Home::Opening(_, link) => link.is_broken(),
            Home::Nowhere => false,
        }
    }

    /// Whether a server of an open link has replicas, as far as is known.
    pub(crate) fn has_replicas(&self) -> bool {
        let state = self.lock();
        state.links.iter().any(|(_, _, opened)| matches!(opened, Opened::Open(link) if link.replicas() > 0 && !link.is_broken()))
    }

    /// Every open link.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        let state = self.lock();
        let open = state.links.iter().filter_map(|(_, _, opened)| match opened {
            Opened::Open(link) if !link.is_broken() => Some(Arc::clone(link)),
            _ => None,
        });
        open.collect()
    }
}

fn closed() -> Error {
    Error::unavailable("the client has ended")
}

struct LaneEars {
    lane: Weak<Lane>,
    shared: Weak<Shared>,
}

impl Hears for LaneEars {
    fn message(&self, channel: &[u8], payload: &[u8]) {
        let (Some(shared), Some(lane)) = (self.shared.upgrade(), self.lane.upgrade()) else { return };
        if channel == lane.inbox.as_bytes() {
            shared.pushed(payload);
        } else {
            shared.key_changed(channel, payload);
        }
    }

    fn ended(&self, by_server: bool) {
        if let Some(shared) = self.shared.upgrade() {
            if by_server {
                shared.link_ended();
            }
        }
    }
}
