//! Which server has a key.

mod cluster;
mod sentinel;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::cluster::SlotRange;
use super::Client;
use super::address::Address;
use super::settings::{ClientSettings, Site};
use super::shared_task::SharedTask;
use crate::error::{Error, Result};

/// How long the first server asked has before another is asked beside it.
const HEDGE: Duration = Duration::from_millis(200);
/// How long after a switch a sentinel may still name the old primary.
const OUTDATED: Duration = Duration::from_secs(10);

pub(super) struct Topology(Mutex<Map>);

#[derive(Default)]
struct Map {
    /// The one server, or the primary that the sentinels name.
    one: Option<Address>,
    /// Of a cluster: a later range overrides an earlier one.
    ranges: Vec<SlotRange>,
    /// Whether the map must be refreshed.
    stale: bool,
    refreshing: Option<SharedTask<()>>,
    replaced: Option<Replaced>,
    /// Which sentinel or server to ask first: the next one after each failure.
    turn: usize,
}

/// The primary that the sentinels replaced.
struct Replaced {
    primary: Address,
    /// When we heard of it.
    at: Instant,
}

impl Client {
    /// Every primary.
    pub(crate) async fn primaries(self: &Arc<Self>) -> Result<Vec<Address>> {
        self.topology.ensure_known(self).await?;
        Ok(self.topology.primaries())
    }
}

impl Topology {
    pub(super) fn new(settings: &ClientSettings) -> Topology {
        let one = match &settings.site {
            Site::Single(address) => Some(address.clone()),
            Site::Sentinel { .. } | Site::Cluster(_) => None,
        };
        Topology(Mutex::new(Map {
            one,
            ..Map::default()
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server of a key, as far as is known.
    pub(super) fn known(&self, key: &str) -> Option<Address> {
        let map = self.lock();
        if map.stale { None } else { map.server_of(key) }
    }

    /// Every primary that is known.
    pub(super) fn primaries(&self) -> Vec<Address> {
        self.lock().primaries()
    }

    /// The map may be out of date: the next request refreshes it.
    pub(super) fn mark_stale(&self) {
        self.lock().stale = true;
    }

    /// A server redirected a request: this one has the slot.
    pub(super) fn learn(&self, slot: u16, address: Address) {
        let mut map = self.lock();
        if map.ranges.is_empty() {
            return;
        }
        let slots = usize::from(slot)..usize::from(slot) + 1;
        map.ranges.retain(|range| range.slots != slots);
        map.ranges.push(SlotRange {
            slots,
            primary: address,
        });
    }

    /// The server of a key; refreshes the map where the server is not known.
    pub(super) async fn find(&self, client: &Arc<Client>, key: &str) -> Result<Address> {
        for _ in 0..2 {
            if let Some(address) = self.known(key) {
                return Ok(address);
            }
            self.refresh(client).await?;
        }
        self.known(key).ok_or_else(|| {
            Error::unavailable("no server of the cluster has the slot of this name now")
        })
    }

    /// Refreshes the map unless it is up to date.
    pub(super) async fn ensure_known(&self, client: &Arc<Client>) -> Result<()> {
        let is_known = {
            let map = self.lock();
            !map.stale && (map.one.is_some() || !map.ranges.is_empty())
        };
        if is_known {
            Ok(())
        } else {
            self.refresh(client).await
        }
    }

    /// Asks the sentinels or the cluster, once for all callers at the same time.
    pub(super) async fn refresh(&self, client: &Arc<Client>) -> Result<()> {
        if let Site::Single(_) = client.settings.site {
            self.lock().stale = false;
            return Ok(());
        }
        let refreshing = {
            let mut map = self.lock();
            match &map.refreshing {
                Some(refreshing) if !refreshing.is_done() => refreshing.clone(),
                _ => {
                    let refreshing = SharedTask::spawn(refresh(Arc::clone(client)));
                    map.refreshing = Some(refreshing.clone());
                    refreshing
                }
            }
        };
        refreshing.result().await
    }

    /// The servers to ask, beginning with another one after each failure.
    fn to_ask(&self, first: &[Address]) -> Vec<Address> {
        let map = self.lock();
        let mut all: Vec<Address> = first.to_vec();
        if map.one.is_none() {
            let others = map.primaries().into_iter();
            all.extend(others.filter(|server| !first.contains(server)));
        }
        let turn = map.turn % all.len().max(1);
        all.rotate_left(turn);
        all
    }

    /// A sentinel names this primary. One that does not know of a switch yet names the old one.
    fn set_primary(&self, address: Address) {
        let mut map = self.lock();
        map.stale = false;
        let outdated = map
            .replaced
            .as_ref()
            .is_some_and(|old| old.primary == address && old.at.elapsed() < OUTDATED);
        if !outdated || map.one.is_none() {
            map.one = Some(address);
        }
    }

    /// The sentinels have agreed on another primary; `true` when that is new to us.
    pub(super) fn switched(&self, from: Address, to: &Address) -> bool {
        let mut map = self.lock();
        map.stale = false;
        map.replaced = Some(Replaced {
            primary: from,
            at: Instant::now(),
        });
        map.one
            .replace(to.clone())
            .is_none_or(|before| before != *to)
    }
}

impl Map {
    fn server_of(&self, key: &str) -> Option<Address> {
        if self.one.is_some() {
            return self.one.clone();
        }
        let slot = cluster::slot(key);
        let mut latest_first = self.ranges.iter().rev();
        latest_first
            .find(|range| range.slots.contains(&slot))
            .map(|range| range.primary.clone())
    }

    fn primaries(&self) -> Vec<Address> {
        let ranges = self.ranges.iter().map(|range| &range.primary);
        let mut primaries: Vec<Address> = match &self.one {
            Some(one) => vec![one.clone()],
            None => ranges.cloned().collect(),
        };
        primaries.sort();
        primaries.dedup();
        primaries
    }
}

async fn refresh(client: Arc<Client>) -> Result<()> {
    match &client.settings.site {
        Site::Single(_) => Ok(()),
        Site::Sentinel { sentinels, master } => {
            let ask = |client: Arc<Client>, sentinel| {
                let master = master.clone();
                async move { sentinel::primary(&client.settings, &sentinel, &master).await }
            };
            let address = ask_in_turn(&client, sentinels, ask).await?;
            client.topology.set_primary(address);
            sentinel::listen(&client);
            Ok(())
        }
        Site::Cluster(seeds) => {
            let ask = |client: Arc<Client>, server| async move {
                cluster::slots(&client.settings, &server).await
            };
            let ranges = ask_in_turn(&client, seeds, ask).await?;
            let mut map = client.topology.lock();
            map.ranges = ranges;
            map.stale = false;
            Ok(())
        }
    }
}

/// Asks one server after the other until one answers, and the next one already when one takes long:
/// it may hang. Of several failures, one that the user can act on is reported.
async fn ask_in_turn<T, F>(
    client: &Arc<Client>,
    servers: &[Address],
    ask: impl Fn(Arc<Client>, Address) -> F,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let mut failure = None;
    let mut next = client.topology.to_ask(servers).into_iter();
    let mut asked = tokio::task::JoinSet::new();
    loop {
        if let Some(server) = next.next() {
            let limit = client.settings.connect_timeout;
            let answer = ask(Arc::clone(client), server.clone());
            asked.spawn(async move {
                let late = |_| {
                    Err(Error::unavailable(format!(
                        "{server} does not answer within the connect_timeout"
                    )))
                };
                tokio::time::timeout(limit, answer)
                    .await
                    .unwrap_or_else(late)
            });
        }
        let answer = tokio::select! {
            answer = asked.join_next() => answer,
            () = tokio::time::sleep(HEDGE), if next.len() > 0 => {
                client.topology.lock().turn += 1;
                continue;
            }
        };
        match answer {
            Some(Ok(Ok(answer))) => return Ok(answer),
            Some(Ok(Err(error))) => {
                client.topology.lock().turn += 1;
                if failure
                    .as_ref()
                    .is_none_or(|known: &Error| known.retry_may_help())
                {
                    failure = Some(error);
                }
            }
            Some(Err(_)) => {}
            None => return Err(failure.unwrap_or_else(|| Error::unavailable("no server is known"))),
        }
    }
}
