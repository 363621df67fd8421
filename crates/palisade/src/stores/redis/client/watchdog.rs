//! Watches a connection: gives it up when its server does not answer, or is no primary any more.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Client;
use super::address::Address;
use super::connection::Progress;
use super::failure::Remedy;
use super::server::Server;
use super::settings::Site;

/// A server that leaves a request unanswered for so long is suspected: the others are asked whether
/// it is still a primary.
const SUSPECT: Duration = Duration::from_millis(500);
/// How often the role of a server is checked: how many replicas it has, and whether it is still part
/// of its cluster.
const CHECK_ROLE: Duration = Duration::from_secs(10);
/// The same where the URL does not set the number of replicas, while there are none: a failover may
/// have just happened.
const CHECK_ROLE_SOON: Duration = Duration::from_secs(1);

impl Client {
    /// Gives a connection up that answers nothing for so long after a renewal was sent. The
    /// watchdog waits longer: it knows of no lease.
    pub(super) fn expect_answer(self: &Arc<Self>, server: &Arc<Server>, patience: Duration) {
        if patience >= self.settings.request_timeout {
            return;
        }
        let (client, server) = (Arc::downgrade(self), Arc::clone(server));
        let unanswered = Progress {
            in_flight: true,
            ..server.progress()
        };
        tokio::spawn(async move {
            tokio::select! {
                _ = server.ended() => return,
                () = tokio::time::sleep(patience) => {}
            }
            if server.progress() == unanswered
                && let Some(client) = client.upgrade()
            {
                client.give_up(&server);
                client.check_others(&server.address, patience);
            }
        });
    }

    /// One connection to this address died silently: the others may have died with it, also those
    /// without a request in flight.
    fn check_others(self: &Arc<Self>, address: &Address, patience: Duration) {
        for server in self
            .servers
            .all_open()
            .into_iter()
            .filter(|server| server.address == *address)
        {
            self.expect_answer(&server, patience);
            tokio::spawn(async move { server.ask(redis::cmd("PING")).await });
        }
    }

    /// Watches a connection until it ends.
    pub(super) fn watch(self: &Arc<Self>, server: &Arc<Server>) {
        tokio::spawn(watch(Arc::downgrade(self), Arc::clone(server)));
    }

    fn check_role_every(&self, server: &Server) -> Duration {
        match (&self.settings.replicas, &self.settings.site) {
            (Some(_), Site::Single(_) | Site::Sentinel { .. }) => Duration::MAX,
            (None, Site::Sentinel { .. } | Site::Cluster(_)) if server.replicas() == 0 => {
                CHECK_ROLE_SOON
            }
            (_, _) => CHECK_ROLE,
        }
    }

    /// Whether a server has no keys any more. It may go on answering, but messages published on
    /// other servers do not reach it.
    async fn has_left(self: &Arc<Self>, server: &Server) -> bool {
        match server.check_role().await {
            Err(Remedy::Leave(_)) => true,
            // A server that cannot be asked has not left.
            Ok(()) if self.settings.is_cluster() => {
                self.topology.refresh(self).await.is_ok()
                    && !self.topology.primaries().contains(&server.address)
            }
            _ => false,
        }
    }
}

/// Waits for no reply of a server itself: other tasks ask.
async fn watch(client: Weak<Client>, server: Arc<Server>) {
    let Some(timeout) = client
        .upgrade()
        .map(|client| client.settings.request_timeout)
    else {
        return;
    };
    let tick = SUSPECT.min(timeout / 4).max(Duration::from_millis(1));
    let (mut answered, mut silent_since, mut checked) = (0, None, Instant::now());
    loop {
        tokio::select! {
            by_server = server.ended() => {
                if let (true, Some(client)) = (by_server, client.upgrade()) {
                    client.reconnect();
                }
                return;
            }
            () = tokio::time::sleep(tick) => {}
        }
        let Some(client) = client.upgrade() else {
            return;
        };
        let progress = server.progress();
        if !progress.in_flight || progress.answered != answered {
            answered = progress.answered;
            silent_since = progress.in_flight.then(Instant::now);
        } else {
            silent_since.get_or_insert_with(Instant::now);
        }
        let silent = silent_since.map_or(Duration::ZERO, |since| since.elapsed());
        if silent >= timeout {
            return client.give_up(&server);
        }
        let (suspected, check_is_due) = (
            silent >= SUSPECT,
            checked.elapsed() >= client.check_role_every(&server),
        );
        if check_is_due {
            checked = Instant::now();
        }
        if suspected || check_is_due {
            tokio::spawn(check(client, Arc::clone(&server), suspected));
        }
    }
}

async fn check(client: Arc<Client>, server: Arc<Server>, suspected: bool) {
    let has_left = if suspected {
        let _ = client.topology.refresh(&client).await;
        !client.topology.primaries().contains(&server.address)
    } else {
        client.has_left(&server).await
    };
    if has_left {
        client.leave(&server);
    }
}
