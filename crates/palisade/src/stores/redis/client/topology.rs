//! Which server has a key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;

use super::super::settings::{Settings, Site};
use super::super::shared::Shared;
use super::address::Address;
use super::connect::connect;
use super::connection::Deaf;
use super::link::told;
use super::sentinel_events;
use super::shared_task::SharedTask;
use crate::error::{Error, Result};

/// How long the first one asked has before another is asked beside it.
const HEDGE: Duration = Duration::from_millis(200);
/// How long after a switch some sentinel may not have heard of it.
const OUTDATED: Duration = Duration::from_secs(10);
/// How many slots a cluster has.
const SLOTS: usize = 16384;

pub(crate) struct Topology(Mutex<Map>);

#[derive(Default)]
struct Map {
    /// Of one server, or of the primary that the sentinels name.
    one: Option<Address>,
    /// Of a cluster: the places in `servers`.
    slots: Vec<Option<u16>>,
    servers: Vec<Address>,
    /// Whether what is known is to be asked for anew.
    stale: bool,
    finding: Option<Arc<SharedTask<()>>>,
    /// The primary that the sentinels said was replaced, and when we heard of it.
    left: Option<(Address, Instant)>,
    /// Which sentinel or server to ask first: the next one after each failure.
    turn: usize,
}

impl Topology {
    pub(crate) fn new(settings: &Settings) -> Topology {
        let one = match &settings.site {
            Site::Single(address) => Some(address.clone()),
            Site::Sentinel { .. } | Site::Cluster(_) => None,
        };
        Topology(Mutex::new(Map { one, ..Map::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a key is, as far as is known.
    pub(crate) fn known(&self, key: &str) -> Option<Address> {
        let map = self.lock();
        if map.stale { None } else { map.place(key) }
    }

    /// Where a key was when we last looked: tells parts of the keys apart, and may be wrong.
    pub(crate) fn last_known(&self, key: &str) -> Option<Address> {
        self.lock().place(key)
    }

    /// Every primary that is known.
    pub(crate) fn primaries(&self) -> Vec<Address> {
        let map = self.lock();
        let mut primaries: Vec<Address> = match &map.one {
            Some(one) => vec![one.clone()],
            None => map.slots.iter().flatten().filter_map(|place| map.servers.get(usize::from(*place)).cloned()).collect(),
        };
        primaries.sort();
        primaries.dedup();
        primaries
    }

    /// What is known is doubtful: the next request looks anew.
    pub(crate) fn forget(&self) {
        self.lock().stale = true;
    }

    /// A server said where a slot is.
    pub(crate) fn learn(&self, slot: u16, address: Address) {
        let mut map = self.lock();
        if map.slots.is_empty() {
            return;
        }
        let place = map.place_of(address);
        if let Some(entry) = map.slots.get_mut(usize::from(slot)) {
            *entry = Some(place);
        }
    }

    /// Where a key is; asks sentinels or the cluster where that is not known.
    pub(crate) async fn find(&self, shared: &Arc<Shared>, key: &str) -> Result<Address> {
        for _ in 0..2 {
            if let Some(address) = self.known(key) {
                return Ok(address);
            }
            self.look(shared).await?;
        }
        self.known(key).ok_or_else(|| Error::unavailable("no server of the cluster has the slot of this name now"))
    }

    /// Looks anew, once for all who ask at the same time.
    pub(crate) async fn look(&self, shared: &Arc<Shared>) -> Result<()> {
        if let Site::Single(_) = shared.settings.site {
            self.lock().stale = false;
            return Ok(());
        }
        let task = {
            let mut map = self.lock();
            match &map.finding {
                Some(task) if !task.is_done() => Arc::clone(task),
                _ => {
                    let work = look(Arc::clone(shared));
                    let task = SharedTask::start(&shared.runtime()?, work);
                    map.finding = Some(Arc::clone(&task));
                    task
                }
            }
        };
        task.result().await
    }

    /// The servers to ask, beginning with another one after each failure.
    fn to_ask(&self, first: &[Address]) -> Vec<Address> {
        let map = self.lock();
        let mut all: Vec<Address> = first.to_vec();
        if map.one.is_none() {
            all.extend(map.servers.iter().filter(|server| !first.contains(server)).cloned());
        }
        let turn = map.turn % all.len().max(1);
        all.rotate_left(turn);
        all
    }

    /// A sentinel was asked, and names this primary. One that has not heard of a switch yet names the old one.
    fn named(&self, address: Address) {
        let mut map = self.lock();
        map.stale = false;
        let outdated = map.left.as_ref().is_some_and(|(left, at)| *left == address && at.elapsed() < OUTDATED);
        if !outdated || map.one.is_none() {
            map.one = Some(address);
        }
    }

    /// The sentinels have agreed on another primary; `true` when that is new to us.
    pub(crate) fn switched(&self, from: Address, to: &Address) -> bool {
        let mut map = self.lock();
        map.stale = false;
        map.left = Some((from, Instant::now()));
        map.one.replace(to.clone()).is_none_or(|before| before != *to)
    }
}

impl Map {
    fn place(&self, key: &str) -> Option<Address> {
        if self.one.is_some() {
            return self.one.clone();
        }
        let place = (*self.slots.get(slot(key))?)?;
        self.servers.get(usize::from(place)).cloned()
    }

    fn place_of(&mut self, address: Address) -> u16 {
        let at = self.servers.iter().position(|server| *server == address).unwrap_or_else(|| {
            self.servers.push(address);
            self.servers.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }
}

/// The slot of a key: of what stands in its first braces, if anything does.
fn slot(key: &str) -> usize {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    usize::from(crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key).as_bytes())) % SLOTS
}

async fn look(shared: Arc<Shared>) -> Result<()> {
    match &shared.settings.site {
        Site::Single(_) => Ok(()),
        Site::Sentinel { sentinels, master } => {
            let ask = |shared: Arc<Shared>, sentinel| {
                let master = master.clone();
                async move { ask_sentinel(&shared, &sentinel, &master).await }
            };
            let address = ask_in_turn(&shared, sentinels, ask).await?;
            shared.topology.named(address);
            sentinel_events::listen(&shared);
            Ok(())
        }
        Site::Cluster(seeds) => {
            let ranges =
                ask_in_turn(&shared, seeds, |shared: Arc<Shared>, server| async move { ask_cluster(&shared, &server).await })
                    .await?;
            let mut map = shared.topology.lock();
            map.servers.clear();
            map.slots = vec![None; SLOTS];
            for (from, to, address) in ranges {
                let place = map.place_of(address);
                map.slots.iter_mut().take(to + 1).skip(from).for_each(|slot| *slot = Some(place));
            }
            map.stale = false;
            Ok(())
        }
    }
}

/// Asks one after the other until one answers, and the next one already when one takes its time: it may hang. Of several failures
/// the one is told that people can do something about.
async fn ask_in_turn<T, F>(shared: &Arc<Shared>, servers: &[Address], ask: impl Fn(Arc<Shared>, Address) -> F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let mut failure = None;
    let mut next = shared.topology.to_ask(servers).into_iter();
    let mut asked = tokio::task::JoinSet::new();
    loop {
        if let Some(server) = next.next() {
            let limit = shared.settings.connect_timeout;
            let answer = ask(Arc::clone(shared), server.clone());
            asked.spawn(async move {
                let late = |_| Err(Error::unavailable(format!("{server} does not answer within the connect_timeout")));
                tokio::time::timeout(limit, answer).await.unwrap_or_else(late)
            });
        }
        let answer = tokio::select! {
            answer = asked.join_next() => answer,
            () = tokio::time::sleep(HEDGE), if next.len() > 0 => {
                shared.topology.lock().turn += 1;
                continue;
            }
        };
        match answer {
            Some(Ok(Ok(answer))) => return Ok(answer),
            Some(Ok(Err(error))) => {
                shared.topology.lock().turn += 1;
                if failure.as_ref().is_none_or(|known: &Error| known.retry_may_help()) {
                    failure = Some(error);
                }
            }
            Some(Err(_)) => {}
            None => return Err(failure.unwrap_or_else(|| Error::unavailable("no server is known"))),
        }
    }
}

async fn ask_sentinel(shared: &Shared, sentinel: &Address, master: &str) -> Result<Address> {
    let client = shared.settings.sentinel_connection(sentinel)?;
    let failed = |error| match told(&error, sentinel) {
        told if error.code() == Some("ERR") && error.detail().is_some_and(|detail| detail.contains("unknown command")) => {
            Error::bad_url(format!("{sentinel} is not a sentinel; write redis://{sentinel}")).with_source(told)
        }
        told => told,
    };
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let answer: Option<(String, u16)> = ask.query_async(&mut connection).await.map_err(failed)?;
    match answer {
        Some((host, port)) => Ok(Address::new(&host, port)),
        None => {
            Err(Error::bad_url(format!("the sentinel {sentinel} knows no primary by the name in the URL; see SENTINEL MASTERS")))
        }
    }
}

async fn ask_cluster(shared: &Shared, server: &Address) -> Result<Vec<(usize, usize, Address)>> {
    let failed = |error| match told(&error, server) {
        told if error.detail().is_some_and(|detail| detail.contains("cluster support disabled")) => {
            Error::bad_url(format!("{server} is not part of a cluster; write redis://{server}")).with_source(told)
        }
        told => told,
    };
    let connection = connect(&shared.settings, server, Deaf).await.map_err(failed)?;
    let answer = connection.answer(&redis::cmd("CLUSTER").arg("SLOTS").get_packed_command()).await;
    let slots = answer.and_then(Value::extract_error).map_err(failed)?;
    let ranges =
        read_slots(&slots, server).ok_or_else(|| Error::protocol(format!("{server} answers slots that cannot be read")))?;
    match ranges.is_empty() {
        true => Err(Error::unavailable(format!("{server} knows no slots; its cluster is not ready"))),
        false => Ok(ranges),
    }
}

fn read_slots(value: &Value, asked: &Address) -> Option<Vec<(usize, usize, Address)>> {
    let Value::Array(ranges) = value else { return None };
    let mut read = Vec::with_capacity(ranges.len());
    for range in ranges {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(from), Value::Int(to), Value::Array(primary), ..] = parts.as_slice() else { return None };
        let (from, to) = (usize::try_from(*from).ok()?, usize::try_from(*to).ok()?);
        let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            _ => "",
        };
        // No name of its own: it is where we asked.
        let host = if host.is_empty() || host == "?" { &asked.host } else { host };
        if from > to || to >= SLOTS {
            return None;
        }
        read.push((from, to, Address::new(host, u16::try_from(*port).ok()?)));
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the Redis documentation has them.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(slot("123456789"), 0x31C3);
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("foo{}{bar}"), usize::from(crc16::State::<crc16::XMODEM>::calculate(b"foo{}{bar}")) % SLOTS);
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
        assert_eq!(slot("palisade:1:{orders}"), slot("orders"));
    }
}
