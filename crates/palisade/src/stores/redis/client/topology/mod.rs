//! Which server has a key.

mod cluster;
mod sentinel;
mod sentinel_events;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    /// Of a cluster: the place in `servers` for each slot.
    slots: Vec<Option<u16>>,
    servers: Vec<Address>,
    /// Whether the servers must be asked anew.
    stale: bool,
    looking: Option<SharedTask<()>>,
    /// The primary that the sentinels replaced, and when we heard of it.
    replaced: Option<(Address, Instant)>,
    /// Which sentinel or server to ask first: the next one after each failure.
    turn: usize,
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
        if map.stale { None } else { map.place(key) }
    }

    /// Every primary that is known.
    pub(super) fn primaries(&self) -> Vec<Address> {
        let map = self.lock();
        let mut primaries: Vec<Address> = match &map.one {
            Some(one) => vec![one.clone()],
            None => map
                .slots
                .iter()
                .flatten()
                .filter_map(|place| map.servers.get(usize::from(*place)).cloned())
                .collect(),
        };
        primaries.sort();
        primaries.dedup();
        primaries
    }

    /// The map is doubtful: the next request looks anew.
    pub(super) fn forget(&self) {
        self.lock().stale = true;
    }

    /// A server said which one has a slot.
    pub(super) fn learn(&self, slot: u16, address: Address) {
        let mut map = self.lock();
        if map.slots.is_empty() {
            return;
        }
        let place = map.place_of(address);
        if let Some(entry) = map.slots.get_mut(usize::from(slot)) {
            *entry = Some(place);
        }
    }

    /// The server of a key; asks sentinels or the cluster where it is not known.
    pub(super) async fn find(&self, client: &Arc<Client>, key: &str) -> Result<Address> {
        for _ in 0..2 {
            if let Some(address) = self.known(key) {
                return Ok(address);
            }
            self.look(client).await?;
        }
        self.known(key).ok_or_else(|| {
            Error::unavailable("no server of the cluster has the slot of this name now")
        })
    }

    /// Looks unless the servers are known.
    pub(super) async fn ensure_known(&self, client: &Arc<Client>) -> Result<()> {
        let is_known = {
            let map = self.lock();
            !map.stale && (map.one.is_some() || !map.slots.is_empty())
        };
        if is_known {
            Ok(())
        } else {
            self.look(client).await
        }
    }

    /// Looks anew, once for all callers at the same time.
    pub(super) async fn look(&self, client: &Arc<Client>) -> Result<()> {
        if let Site::Single(_) = client.settings.site {
            self.lock().stale = false;
            return Ok(());
        }
        let looking = {
            let mut map = self.lock();
            match &map.looking {
                Some(looking) if !looking.is_done() => looking.clone(),
                _ => {
                    let looking = SharedTask::spawn(look(Arc::clone(client)));
                    map.looking = Some(looking.clone());
                    looking
                }
            }
        };
        looking.result().await
    }

    /// The servers to ask, beginning with another one after each failure.
    fn to_ask(&self, first: &[Address]) -> Vec<Address> {
        let map = self.lock();
        let mut all: Vec<Address> = first.to_vec();
        if map.one.is_none() {
            all.extend(
                map.servers
                    .iter()
                    .filter(|server| !first.contains(server))
                    .cloned(),
            );
        }
        let turn = map.turn % all.len().max(1);
        all.rotate_left(turn);
        all
    }

    /// A sentinel names this primary. A sentinel that has not heard of a switch yet names the old one.
    fn named(&self, address: Address) {
        let mut map = self.lock();
        map.stale = false;
        let outdated = map
            .replaced
            .as_ref()
            .is_some_and(|(old, at)| *old == address && at.elapsed() < OUTDATED);
        if !outdated || map.one.is_none() {
            map.one = Some(address);
        }
    }

    /// The sentinels have agreed on another primary; `true` when that is new to us.
    pub(super) fn switched(&self, from: Address, to: &Address) -> bool {
        let mut map = self.lock();
        map.stale = false;
        map.replaced = Some((from, Instant::now()));
        map.one
            .replace(to.clone())
            .is_none_or(|before| before != *to)
    }
}

impl Map {
    fn place(&self, key: &str) -> Option<Address> {
        if self.one.is_some() {
            return self.one.clone();
        }
        let place = (*self.slots.get(cluster::slot(key))?)?;
        self.servers.get(usize::from(place)).cloned()
    }

    fn place_of(&mut self, address: Address) -> u16 {
        let at = self
            .servers
            .iter()
            .position(|server| *server == address)
            .unwrap_or_else(|| {
                self.servers.push(address);
                self.servers.len() - 1
            });
        u16::try_from(at).unwrap_or(u16::MAX)
    }
}

async fn look(client: Arc<Client>) -> Result<()> {
    match &client.settings.site {
        Site::Single(_) => Ok(()),
        Site::Sentinel { sentinels, master } => {
            let ask = |client: Arc<Client>, sentinel| {
                let master = master.clone();
                async move { sentinel::primary(&client.settings, &sentinel, &master).await }
            };
            let address = ask_in_turn(&client, sentinels, ask).await?;
            client.topology.named(address);
            sentinel_events::listen(&client);
            Ok(())
        }
        Site::Cluster(seeds) => {
            let ask = |client: Arc<Client>, server| async move {
                cluster::slots(&client.settings, &server).await
            };
            let ranges = ask_in_turn(&client, seeds, ask).await?;
            let mut map = client.topology.lock();
            map.servers.clear();
            map.slots = vec![None; cluster::SLOTS];
            for (slots, address) in ranges {
                let place = map.place_of(address);
                map.slots[slots].fill(Some(place));
            }
            map.stale = false;
            Ok(())
        }
    }
}

/// Asks one after the other until one answers, and the next one already when one takes its time: it may hang. Of several failures
/// the one is reported that a user can do something about.
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
