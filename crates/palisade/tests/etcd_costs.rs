//! What locks cost in etcd, by the server's own count, and that nothing is left of them.

#![cfg(feature = "etcd")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::actors::{connect, is_renewed};
use common::etcd::{LIMIT, LONG, Metrics, client, keys, leases, line_is};
use common::etcd_lines::{LINES, Takes};
use palisade::blocking::Wait;
use palisade::{Client, Guard, Released};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;

/// How often a waiter renews its place.
const HEARTBEAT: Duration = Duration::from_millis(5000 / 3);

/// `PALISADE_SOAK=10` makes the long tests ten times as long.
fn soak() -> usize {
    std::env::var("PALISADE_SOAK")
        .ok()
        .map_or(1, |soak| soak.parse().expect("a number"))
}

/// The requests that the server got since.
struct Since(Metrics, Instant);

impl Since {
    fn now(server: &Etcd) -> Since {
        Since(Metrics::of(server), Instant::now())
    }

    fn requests(&self, server: &Etcd, method: &str) -> u64 {
        Metrics::of(server).begun(method) - self.0.begun(method)
    }

    fn received(&self, server: &Etcd, method: &str) -> u64 {
        Metrics::of(server).received(method) - self.0.received(method)
    }

    fn sent(&self, server: &Etcd, method: &str) -> u64 {
        Metrics::of(server).sent(method) - self.0.sent(method)
    }

    /// All that the server has said to clients.
    fn bytes(&self, server: &Etcd) -> u64 {
        Metrics::of(server).bytes() - self.0.bytes()
    }

    /// How often requests that depend on the clock may have come.
    fn ticks(&self, every: Duration) -> u64 {
        1 + (self.1.elapsed().as_millis() / every.as_millis()) as u64
    }

    /// The requests of each method that is not to be asked at all.
    fn none_but(&self, server: &Etcd, allowed: &[&str]) {
        for method in [
            "Range",
            "Txn",
            "Put",
            "DeleteRange",
            "LeaseGrant",
            "LeaseRevoke",
            "LeaseTimeToLive",
            "LeaseKeepAlive",
            "Watch",
        ] {
            let requests = self.requests(server, method);
            assert!(
                requests == 0 || allowed.contains(&method),
                "{requests} requests of {method}"
            );
        }
    }
}

async fn acquire(client: &Client, name: &str) -> Guard {
    client
        .mutex(name)
        .lease(LONG)
        .store_wait(LONG)
        .acquire()
        .await
        .expect("a grant")
}

async fn release(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
}

/// The table of the store's page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_costs_what_the_page_says() {
    const ROUNDS: u64 = 50;
    let server = Etcd::start();
    let (ours, theirs) = (client(&server), client(&server));
    let first = Since::now(&server);
    release(acquire(&ours, "warm").await).await;
    assert_eq!(
        (
            first.requests(&server, "LeaseGrant"),
            first.requests(&server, "Txn")
        ),
        (1, 2)
    );
    // A free name.
    let since = Since::now(&server);
    for _ in 0..ROUNDS {
        release(acquire(&ours, "free").await).await;
    }
    assert_eq!(
        since.requests(&server, "Txn"),
        2 * ROUNDS,
        "one to acquire, and one to release"
    );
    since.none_but(&server, &["Txn"]);
    // A taken one, which is not waited for.
    let held = acquire(&ours, "taken").await;
    release(
        theirs
            .mutex("other")
            .lease(LONG)
            .acquire()
            .await
            .expect("its session"),
    )
    .await;
    let since = Since::now(&server);
    assert!(
        theirs
            .mutex("taken")
            .lease(LONG)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    assert_eq!(since.requests(&server, "Txn"), 1);
    // Standing in line: the first wait opens its session, and the line is read once more if
    // something was written meanwhile.
    let since = Since::now(&server);
    let lock = theirs.mutex("taken").lease(LONG).store_wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("both watches", async || Metrics::of(&server).watches() >= 3).await;
    assert!(
        (1..=4 + since.ticks(HEARTBEAT)).contains(&since.requests(&server, "Txn")),
        "{}",
        since.requests(&server, "Txn")
    );
    assert_eq!(since.requests(&server, "LeaseGrant"), 1);
    // The hand-off: the release, the waiter's look, and heartbeats.
    let since = Since::now(&server);
    release(held).await;
    let next = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("its turn")
        .expect("no panic")
        .expect("a grant");
    let handed = since.requests(&server, "Txn");
    assert!(
        (2..=2 + since.ticks(HEARTBEAT)).contains(&handed),
        "{handed} transactions"
    );
    release(next).await;
    // Lists.
    let since = Since::now(&server);
    ours.list("").await.expect("a page");
    assert_eq!(
        (
            since.requests(&server, "Range"),
            since.requests(&server, "Txn")
        ),
        (1, 0)
    );
}

/// However many locks are held, each renewal is one keep-alive and one read. No key is looked at
/// once its watch is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_locks_cost_one_keep_alive() {
    const LOCKS: usize = 10_000;
    const TASKS: usize = 50;
    let lease = Duration::from_secs(9);
    let server = Etcd::start();
    let client = client(&server);
    let begun = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for number in 0..LOCKS / TASKS {
                    let lock = client
                        .mutex(format!("many-{task}-{number}"))
                        .lease(lease)
                        .store_wait(LONG);
                    guards.push(lock.acquire().await.expect("a grant"));
                }
                guards
            })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.extend(task.await.expect("no panic"));
    }
    println!("{LOCKS} locks in {:?}", begun.elapsed());
    assert_eq!(keys(&server).len(), LOCKS);
    assert_eq!(leases(&server).len(), 1, "one session for all");
    eventually("all are watched", async || {
        Metrics::of(&server).watches() >= LOCKS as u64
    })
    .await;
    // Each is looked at once after that, with its next renewal.
    is_renewed(&guards[0]).await;
    is_renewed(&guards[0]).await;
    is_renewed(&guards[0]).await;
    let since = Since::now(&server);
    for _ in 0..3 {
        is_renewed(&guards[0]).await;
    }
    let (beats, looks) = (
        since.received(&server, "LeaseKeepAlive"),
        since.requests(&server, "Txn"),
    );
    let reads = since.requests(&server, "Range");
    let most = since.ticks(lease / 3) + 1;
    println!(
        "{beats} keep-alives and {looks} transactions in {:?}",
        since.1.elapsed()
    );
    assert!(
        (2..=most).contains(&beats),
        "{beats} keep-alives in {:?}",
        since.1.elapsed()
    );
    assert_eq!(looks, 0);
    assert!(reads <= most, "{reads} reads for {beats} keep-alives");
    assert_eq!(
        since.requests(&server, "LeaseKeepAlive"),
        0,
        "the stream stays"
    );
    assert!(
        since.received(&server, "Watch") <= most,
        "a sign of life each time, and no more"
    );
    assert!(guards.iter().all(Guard::is_held));
    let begun = Instant::now();
    drop(guards);
    client.shutdown().await;
    assert_eq!(keys(&server), [""; 0]);
    println!("given back in {:?}", begun.elapsed());
}

/// One release, one look and at most one claim for each turn, and one event for the next in line,
/// whether few wait or many; and an answer is as short, whatever the waiters wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_the_same_with_many_waiters() {
    let server = Etcd::start();
    let (holder, waiter) = (client(&server), client(&server));
    for (line, waiters) in LINES
        .iter()
        .filter(|line| line.queues)
        .flat_map(|line| [(*line, 16_u64), (*line, 300)])
    {
        let name = format!("crowd-{}-{waiters}", line.what);
        let held = line
            .holder
            .take(&holder, &name, LONG)
            .await
            .expect("a grant");
        let turns: Vec<_> = (0..waiters)
            .map(|_| {
                let (waiter, name) = (waiter.clone(), name.clone());
                tokio::spawn(async move {
                    let guard = line
                        .waiter
                        .take(&waiter, &name, LONG)
                        .await
                        .expect("a grant");
                    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
                })
            })
            .collect();
        line_is(&holder, &name, (1, waiters as usize)).await;
        eventually("all watch", async || {
            Metrics::of(&server).watches() >= 2 * waiters
        })
        .await;
        let since = Since::now(&server);
        assert_eq!(held.release().await.expect("an answer"), Released::Done);
        for turn in turns {
            // Hundreds stand before the last.
            tokio::time::timeout(LIMIT * 3, turn)
                .await
                .expect("its turn")
                .expect("no panic");
        }
        let (requests, events, bytes) = (
            since.requests(&server, "Txn"),
            since.sent(&server, "Watch"),
            since.bytes(&server),
        );
        // On a busy machine some are not answered in time, and are sent again.
        let heartbeats = 3 * waiters * since.ticks(HEARTBEAT);
        println!(
            "{waiters} of {}: {requests} requests, {events} messages of watches, {bytes} bytes, {:?}",
            line.what,
            since.1.elapsed()
        );
        let turns = waiters + 1;
        // The release, the look of the next, and a renewal where little is left of its lease as a
        // waiter. Permits are written when they are granted, and then the next looks.
        let most = if line.waiter == Takes::Permits { 5 } else { 3 };
        assert!(
            (turns..=most * turns + heartbeats).contains(&requests),
            "{}: {requests} requests",
            line.what
        );
        // The deletion to the next in line and to its own watch, and the end of three watches: a
        // herd would be hundreds each.
        assert!(
            events <= 3 * most * turns + since.ticks(HEARTBEAT),
            "{}: {events} messages",
            line.what
        );
        // A few keys, and never the line. Only a heartbeat of a reader lists the claims before it,
        // and none is due while the turns take no longer than one.
        let listed = (since.ticks(HEARTBEAT) - 1) * waiters * waiters * 150;
        assert!(
            bytes <= 1500 * (requests + events) + listed,
            "{}: {bytes} bytes for {requests} requests",
            line.what
        );
        // A heartbeat that is answered after its own release asks what became of the session.
        // And a server that is too busy to give a sign of life is asked for the watches again.
        since.none_but(
            &server,
            &[
                "Txn",
                "LeaseKeepAlive",
                "Range",
                "LeaseGrant",
                "LeaseTimeToLive",
                "Watch",
            ],
        );
    }
}

/// Where some take turns, each waits behind the same one again: its watch stays open, and a turn is
/// a claim, a look and a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taking_turns_opens_no_watch_for_each_turn() {
    const TURNS: u64 = 100;
    let server = Etcd::start();
    let clients: Vec<Client> = (0..4).map(|_| client(&server)).collect();
    let take_turns = async |turns: u64| {
        let tasks: Vec<_> = clients
            .iter()
            .map(|client| {
                let client = client.clone();
                tokio::spawn(async move {
                    for _ in 0..turns {
                        release(acquire(&client, "turns").await).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    };
    // Requests that each client needs to wait for the first time.
    take_turns(2).await;
    let since = Since::now(&server);
    take_turns(TURNS).await;
    let turns = TURNS * clients.len() as u64;
    let (requests, messages) = (
        since.requests(&server, "Txn"),
        since.received(&server, "Watch"),
    );
    println!(
        "{turns} turns: {requests} transactions, {messages} messages on watches, {:?}",
        since.1.elapsed()
    );
    let heartbeats = clients.len() as u64 * since.ticks(HEARTBEAT);
    // One read more where two waiters have changed places just then.
    assert!(
        requests <= 3 * turns + turns / 20 + heartbeats,
        "{requests} transactions for {turns} turns"
    );
    // Two of each turn would be one opened and one closed.
    assert!(
        messages <= turns / 2 + heartbeats,
        "{messages} messages for {turns} turns"
    );
    eventually("no watch is left that is not needed", async || {
        Metrics::of(&server).watches() == 0
    })
    .await;
}

/// One process of [`after_many_cycles_and_kills_nothing_is_left`].
#[test]
#[ignore = "started by another test"]
fn a_worker() {
    let Ok(task) = std::env::var("PALISADE_WORKER") else {
        return;
    };
    let [url, number, cycles]: [&str; 3] = task
        .split(' ')
        .collect::<Vec<_>>()
        .try_into()
        .expect("three words");
    let cycles: usize = cycles.parse().expect("a number");
    let client = connect(url);
    for cycle in 0..cycles {
        // One in ten is contended: those wait, and are woken.
        let name = if cycle % 10 == 0 {
            "all".to_owned()
        } else {
            format!("own-{number}-{}", cycle % 7)
        };
        let lock = client.mutex(&name).lease(Duration::from_secs(3));
        let guard = lock.acquire_timeout(LIMIT).wait().expect("a grant");
        // Not at the contended one: who is killed there holds up all others for a lease.
        if cycle == cycles / 2 + 1 {
            println!("\nhalf");
        }
        match cycle % 5 {
            0 => drop(guard),
            _ => drop(guard.release().wait().expect("an answer")),
        }
    }
    client.shutdown().wait();
}

/// Fifty processes with two hundred cycles each, of which every tenth is killed in the middle of
/// its work.
#[test]
fn after_many_cycles_and_kills_nothing_is_left() {
    const PROCESSES: usize = 50;
    let cycles = 200 * soak();
    let server = Etcd::start();
    let (next, killed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begun = Instant::now();
    let work = |number: usize| {
        let mut worker = Command::new(std::env::current_exe().expect("this test"));
        worker.args(["--exact", "a_worker", "--ignored", "--nocapture"]);
        worker.env(
            "PALISADE_WORKER",
            format!("etcd://{}/lock {number} {cycles}", server.address()),
        );
        let mut worker = worker.stdout(Stdio::piped()).spawn().expect("a process");
        let mut lines = BufReader::new(worker.stdout.take().expect("a pipe"))
            .lines()
            .map_while(Result::ok);
        assert!(
            lines.any(|line| line == "half"),
            "worker {number} has not come so far"
        );
        if number % 10 == 9 {
            worker.kill().expect("killed");
            killed.fetch_add(1, Ordering::Relaxed);
            worker.wait().expect("ended");
        } else {
            drop(lines.last());
            assert!(worker.wait().expect("ended").success(), "worker {number}");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= PROCESSES {
                        return;
                    }
                    work(number);
                }
            });
        }
    });
    println!(
        "{PROCESSES} processes of {cycles} cycles, {killed:?} killed, in {:?}",
        begun.elapsed()
    );
    let ended = Instant::now();
    palisade_testkit::eventually("nothing is left", LIMIT, || {
        match (keys(&server).len(), leases(&server).len()) {
            (0, 0) => Ok(()),
            (keys, leases) => Err(format!("{keys} keys and {leases} leases")),
        }
    });
    println!("nothing is left after {:?}", ended.elapsed());
}
