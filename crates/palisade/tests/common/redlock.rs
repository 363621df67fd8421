//! What the tests of Redlock share: five servers, and clients that reach only some of them.

use std::time::{Duration, Instant};

use palisade::{Client, Fence, Guard, Mutex};
use palisade_conformance::eventually;
use palisade_testkit::proxy::{Protocol, Proxy};
use palisade_testkit::redis::{Five, Redis};

use super::actors::{connect, give_back, soon};
use super::ms;

pub const SIXTY: Duration = Duration::from_secs(60);

/// Five servers with clocks of their own, which keep nothing on disk.
pub fn five() -> Five {
    Five::start_as(&Redis::with().clock())
}

/// A client that asks every server, however young.
pub fn client(five: &Five) -> Client {
    connect(format!("{}?young=vote", five.url()))
}

/// A way to each server of its own, which can be cut.
pub struct Ways(pub Vec<Proxy>);

impl Ways {
    /// Starting them blocks, which a task must not.
    pub fn to(five: &Five) -> Ways {
        let addresses: Vec<_> = five.nodes().iter().map(|node| node.address()).collect();
        let start = move || {
            let way = |address| Proxy::speaking(Protocol::Redis, address);
            Ways(addresses.into_iter().map(way).collect())
        };
        std::thread::spawn(start).join().expect("proxies")
    }

    /// The same with only these servers to be reached.
    pub fn only(five: &Five, places: &[usize]) -> Ways {
        let ways = Ways::to(five);
        for (place, way) in ways.0.iter().enumerate() {
            if !places.contains(&place) {
                way.refuse();
            }
        }
        ways
    }

    pub fn client(&self, words: &str) -> Client {
        connect(self.url(words))
    }

    pub fn url(&self, words: &str) -> String {
        let hosts: Vec<String> = self.0.iter().map(|way| way.address().to_string()).collect();
        format!("redlock://{}?{words}", hosts.join(","))
    }
}

/// One cycle, and its fence.
pub async fn cycle(client: &Client, name: &str) -> Fence {
    let mutex = client.mutex(name).lease(Duration::from_secs(30));
    let guard = soon("a grant", mutex.acquire()).await.expect("a grant");
    let fence = guard.fence();
    give_back(guard).await;
    fence
}

/// Cycles until one of them is done on all five, and its fence.
pub async fn cycle_on_all(client: &Client, five: &Five, name: &str) -> Fence {
    let key = format!("palisade:1:fence:{{{name}}}");
    let begun = Instant::now();
    let last = loop {
        let last = cycle(client, name).await;
        let stored = |node: &Redis| node.call(&["GET", &key]).text() == last.get().to_string();
        if five.nodes().iter().all(stored) {
            break last;
        }
        assert!(begun.elapsed() < SIXTY, "some server is not reached");
    };
    nothing_is_left(five, name).await;
    last
}

/// Acquires until a grant is on all five: a server that answers late on a busy machine is left out of a
/// grant, and a renewal does not add it.
pub async fn held_on_all(mutex: &Mutex, five: &Five, name: &str) -> Guard {
    let begun = Instant::now();
    loop {
        let guard = soon("a grant", mutex.acquire()).await.expect("a grant");
        let granted = Instant::now();
        while granted.elapsed() < ms(1000) {
            if five.nodes().iter().all(|node| has(node, name)) {
                return guard;
            }
            tokio::time::sleep(ms(2)).await;
        }
        assert!(begun.elapsed() < SIXTY, "some server is not reached");
        give_back(guard).await;
    }
}

/// Whether a server that runs has the key of a lock.
pub fn has(node: &Redis, name: &str) -> bool {
    node.call(&["EXISTS", name]).int() == Some(1)
}

/// Soon no server has the key, long before the end of its lease.
pub async fn nothing_is_left(five: &Five, name: &str) {
    let begun = Instant::now();
    eventually("no key is left", async || {
        let mut running = five.nodes().iter().filter(|node| node.is_running());
        !running.any(|node| has(node, name))
    })
    .await;
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "{name} was left to its lease"
    );
}
