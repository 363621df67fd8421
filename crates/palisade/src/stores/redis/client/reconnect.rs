//! Reconnects: restores the connections and the inbox when contact was lost, without waiting to be
//! asked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;

use super::Client;
use super::address::Address;
use super::server::Server;
use super::servers::Purpose;
use crate::error::Result;
use crate::stores::backoff::Backoff;

/// Between the first two attempts; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct State {
    /// Whether a task reconnects now.
    running: AtomicBool,
    /// How often contact was lost.
    losses: AtomicU64,
}

impl Client {
    /// Closes a connection whose server does not answer, or is the wrong one, and reconnects.
    pub(super) fn give_up(self: &Arc<Self>, server: &Server) {
        server.close();
        self.reconnect();
    }

    /// Closes every connection to a server that takes no writes any more, and reconnects: its address
    /// may lead to another server by now. The server may refuse many requests at once; connections
    /// that were opened since are kept.
    pub(super) fn leave(self: &Arc<Self>, server: &Server) {
        if server.is_closed() {
            return;
        }
        self.servers
            .all_open()
            .iter()
            .filter(|open| open.address == server.address)
            .for_each(|open| open.close());
        self.give_up(server);
    }

    /// Contact is lost: tells the handler, and reconnects.
    pub(super) fn reconnect(self: &Arc<Self>) {
        self.topology.mark_stale();
        self.reconnect.losses.fetch_add(1, Ordering::AcqRel);
        if !self.reconnect.running.swap(true, Ordering::AcqRel) {
            self.handler.contact_lost();
            tokio::spawn(reconnect(Arc::downgrade(self)));
        }
    }

    /// The sentinels have agreed on another primary: leaves all other servers.
    pub(super) fn switched(self: &Arc<Self>, from: Address, to: &Address) {
        if self.topology.switched(from, to) {
            self.leave_all_but(to);
        }
    }

    /// Asks the sentinels for the primary, and leaves all others.
    pub(super) async fn check_primary(self: &Arc<Self>) -> Result<()> {
        self.topology.refresh(self).await?;
        if let [primary] = self.topology.primaries().as_slice() {
            self.leave_all_but(primary);
        }
        Ok(())
    }

    fn leave_all_but(self: &Arc<Self>, primary: &Address) {
        for server in self.servers.all_open() {
            if server.address != *primary {
                self.leave(&server);
            }
        }
    }
}

/// Reconnects until all servers are reached. The handler is told as soon as one is reached again, and
/// once more when all are: a part of a cluster may take longer.
async fn reconnect(client: Weak<Client>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let Some(strong) = client.upgrade() else {
            return;
        };
        let losses = strong.reconnect.losses.load(Ordering::Acquire);
        let Reached { some_anew, all } = reach(&strong).await;
        if some_anew || all {
            strong.handler.contact_regained();
        }
        if all {
            strong.reconnect.running.store(false, Ordering::Release);
            // For connections that were lost meanwhile no other task was started.
            let lost_again = strong.reconnect.losses.load(Ordering::Acquire) != losses;
            if !lost_again || strong.reconnect.running.swap(true, Ordering::AcqRel) {
                return;
            }
            backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        }
        drop(strong);
        backoff.pause().await;
    }
}

#[derive(Default)]
struct Reached {
    /// Whether a server was reached that was not connected.
    some_anew: bool,
    all: bool,
}

async fn reach(client: &Arc<Client>) -> Reached {
    if client.topology.refresh(client).await.is_err() {
        return Reached::default();
    }
    let primaries = client.topology.primaries();
    // In a task of its own: its server may hang. Until then renewals find the grants.
    if let (true, Some(address)) = (client.subscription.is_lost(), primaries.first().cloned()) {
        let client = Arc::clone(client);
        tokio::spawn(async move {
            let server = client.server(&address, Purpose::Requests).await?;
            client.subscribed(&server).await
        });
    }
    // Concurrently: a server that hangs does not hold up the others.
    let mut reaching = JoinSet::new();
    for address in &primaries {
        let (client, address) = (Arc::clone(client), address.clone());
        let was_open = client.servers.open(&address, Purpose::Renewals).is_some();
        reaching.spawn(async move {
            (
                client.server(&address, Purpose::Renewals).await.is_ok(),
                was_open,
            )
        });
    }
    let (mut reached, mut some_anew) = (0, false);
    while let Some(Ok((is_there, was_open))) = reaching.join_next().await {
        reached += usize::from(is_there);
        if is_there && !was_open && !std::mem::replace(&mut some_anew, true) && !reaching.is_empty()
        {
            client.handler.contact_regained();
        }
    }
    Reached {
        some_anew,
        all: reached == primaries.len(),
    }
}
