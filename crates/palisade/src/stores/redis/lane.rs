//! The connections of one runtime: a caller's requests never leave its own threads, and what is pushed to it arrives there.
//!
//! A lane has one link to each server it needs, opened at first use by a task of its runtime, and one inbox: a channel of its
//! own on which the servers tell of grants and revocations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;

use super::address::Address;
use super::failure::Remedy;
use super::flight::Flight;
use super::link::{Hears, Link, told};
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::store::ClaimId;

pub(super) struct Lane {
    pub(super) runtime: Handle,
    /// The channel of its inbox.
    pub(super) inbox: Arc<str>,
    shared: Weak<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    links: HashMap<(Address, Purpose), Opened>,
    home: Home,
}

/// What a link is for. Waiting for replicas holds up everything behind it, and nothing may hold up a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    Requests,
    Renewals,
}

enum Opened {
    Opening(Arc<Flight<Arc<Link>>>),
    Open(Arc<Link>),
}

/// Where the inbox is subscribed.
#[derive(Default)]
enum Home {
    #[default]
    Nowhere,
    Opening(Arc<Flight<()>>),
    At(Arc<Link>),
}

impl Lane {
    pub(super) fn new(runtime: Handle, shared: &Arc<Shared>) -> Result<Arc<Lane>> {
        // Nobody else must be able to guess it.
        let inbox = shared.settings.channel(&ClaimId::random()?.reveal()).into();
        Ok(Arc::new(Lane { runtime, inbox, shared: Arc::downgrade(shared), state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link to a server, if it is open.
    pub(super) fn open_link(&self, address: &Address) -> Option<Arc<Link>> {
        match self.lock().links.get(&(address.clone(), Purpose::Requests)) {
            Some(Opened::Open(link)) if !link.is_broken() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// The link to a server; opened if there is none.
    pub(super) async fn link(self: &Arc<Self>, address: &Address, purpose: Purpose) -> Result<Arc<Link>> {
        let flight = {
            let mut state = self.lock();
            let place = (address.clone(), purpose);
            match state.links.get(&place) {
                Some(Opened::Open(link)) if !link.is_broken() => return Ok(Arc::clone(link)),
                Some(Opened::Opening(flight)) if !flight.has_landed() => Arc::clone(flight),
                _ => {
                    let flight = Flight::start(&self.runtime, Arc::clone(self).open(address.clone(), purpose));
                    state.links.insert(place, Opened::Opening(Arc::clone(&flight)));
                    flight
                }
            }
        };
        flight.result().await
    }

    async fn open(self: Arc<Self>, address: Address, purpose: Purpose) -> Result<Arc<Link>> {
        let shared = self.shared.upgrade().ok_or_else(closed)?;
        let hears = LaneEars { lane: Arc::downgrade(&self), shared: Weak::clone(&self.shared) };
        let client = shared.settings.connection(&address)?;
        let opening = async {
            let link = Link::open(&client, address.clone(), hears).await?;
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
        let mut state = self.lock();
        state.links.retain(|_, opened| !matches!(opened, Opened::Open(link) if link.is_broken()));
        state.links.insert((address, purpose), Opened::Open(Arc::clone(&link)));
        drop(state);
        shared.watch(&link);
        Ok(link)
    }

    /// Makes sure that the inbox is subscribed somewhere, by this link if it is not: servers pass on what is published.
    pub(super) async fn at_home(self: &Arc<Self>, link: &Arc<Link>) -> Result<()> {
        match self.begin_home(link) {
            Some(flight) => flight.result().await,
            None => Ok(()),
        }
    }

    /// Begins to subscribe the inbox; `None` when it is.
    pub(super) fn begin_home(self: &Arc<Self>, link: &Arc<Link>) -> Option<Arc<Flight<()>>> {
        let mut state = self.lock();
        match &state.home {
            Home::At(home) if !home.is_broken() => return None,
            Home::Opening(flight) if !flight.has_landed() => return Some(Arc::clone(flight)),
            _ => {}
        }
        let (lane, link) = (Arc::clone(self), Arc::clone(link));
        let flight = Flight::start(&self.runtime, async move {
            link.subscribe(&lane.inbox).await.map_err(|error| told(&error, &link.address))?;
            lane.lock().home = Home::At(link);
            Ok(())
        });
        state.home = Home::Opening(Arc::clone(&flight));
        Some(flight)
    }

    /// Whether the inbox is subscribed.
    pub(super) fn is_at_home(&self) -> bool {
        matches!(&self.lock().home, Home::At(link) if !link.is_broken())
    }

    /// The link that the inbox is subscribed on; `None` when it is nowhere.
    pub(super) fn home(&self) -> Option<Arc<Link>> {
        match &self.lock().home {
            Home::At(link) if !link.is_broken() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Whether the inbox was subscribed, and is not any more.
    pub(super) fn has_lost_home(&self) -> bool {
        match &self.lock().home {
            Home::At(link) => link.is_broken(),
            Home::Nowhere | Home::Opening(_) => false,
        }
    }

    /// Whether nothing of it is left: its runtime has ended, or all its servers are gone.
    pub(super) fn is_dead(&self) -> bool {
        let state = self.lock();
        !state.links.is_empty()
            && state.links.values().all(|opened| match opened {
                Opened::Open(link) => link.is_broken(),
                Opened::Opening(flight) => flight.has_landed(),
            })
    }

    /// Every open link.
    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        let state = self.lock();
        let open = state.links.values().filter_map(|opened| match opened {
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
            shared.link_ended(self.lane.upgrade().as_ref(), by_server);
        }
    }
}
