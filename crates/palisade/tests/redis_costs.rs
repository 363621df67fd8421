//! The cost of locks by the server's own count, and that they leave nothing behind.

#![cfg(feature = "redis")]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::ms;
use common::redis::{LONG, commands, connect, fields, gets_in, give_back, soon, wait_for};
use palisade::{Client, Guard, Mutex, Released};
use palisade_conformance::eventually;
use palisade_testkit::redis::Redis;

/// How often a waiter renews its place.
const HEARTBEAT: Duration = Duration::from_millis(5000 / 3);
/// How often a connection asks how many replicas there are.
const ROLE: Duration = Duration::from_secs(10);

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

/// The commands that the server has run since.
struct Since(BTreeMap<String, u64>, Instant);

impl Since {
    fn now(redis: &Redis) -> Since {
        Since(commands(redis), Instant::now())
    }

    fn ran(&self, redis: &Redis) -> Ran {
        let all = commands(redis).into_iter();
        let new = all.map(|(name, count)| {
            (
                name.clone(),
                count - self.0.get(&name).copied().unwrap_or_default(),
            )
        });
        Ran {
            counts: new.filter(|(_, count)| *count > 0).collect(),
            took: self.1.elapsed(),
        }
    }
}

#[derive(Debug)]
struct Ran {
    counts: BTreeMap<String, u64>,
    took: Duration,
}

impl Ran {
    fn of(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or_default()
    }

    fn scripts(&self) -> u64 {
        self.of("eval") + self.of("evalsha")
    }

    /// How often a periodic request may have been sent.
    fn ticks(&self, every: Duration) -> u64 {
        1 + (self.took.as_millis() / every.as_millis()) as u64
    }

    /// The commands besides scripts, without those that scripts and this test run.
    fn besides(&self) -> Vec<&str> {
        const INSIDE: [&str; 9] = [
            "eval", "evalsha", "time", "exists", "hget", "hset", "hdel", "expireat", "info",
        ];
        self.counts
            .keys()
            .map(String::as_str)
            .filter(|name| !INSIDE.contains(name))
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_is_sent_whole_once_and_then_by_its_hash() {
    let redis = Redis::start();
    let client = connect(redis.url());
    let mutex = long(&client, "whole");
    let since = Since::now(&redis);
    give_back(mutex.acquire().await.expect("a grant")).await;
    let ran = since.ran(&redis);
    assert_eq!((ran.of("eval"), ran.of("evalsha")), (2, 0), "{ran:?}");
    for _ in 0..10 {
        give_back(mutex.acquire().await.expect("a grant")).await;
    }
    let ran = since.ran(&redis);
    assert_eq!((ran.of("eval"), ran.of("evalsha")), (2, 20), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_costs_two_requests_and_nothing_else() {
    const CYCLES: u64 = 300;
    let redis = Redis::start();
    let client = connect(redis.url());
    let mutex = long(&client, "free");
    give_back(mutex.acquire().await.expect("a grant")).await;
    let since = Since::now(&redis);
    for _ in 0..CYCLES {
        give_back(mutex.acquire().await.expect("a grant")).await;
    }
    let ran = since.ran(&redis);
    assert_eq!(
        (ran.of("eval"), ran.of("evalsha")),
        (0, 2 * CYCLES),
        "{ran:?}"
    );
    assert_eq!(
        (ran.of("hget"), ran.of("hset"), ran.of("time")),
        (2 * CYCLES, 2 * CYCLES, 2 * CYCLES),
        "{ran:?}"
    );
    assert!(ran.besides().iter().all(|name| *name == "role"), "{ran:?}");
    assert!(
        ran.of("role") <= ran.ticks(ROLE) && ran.of("expireat") <= 2,
        "{ran:?}"
    );
}

/// One release and one claim for each turn, one push for each hand-off, whether few wait or many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_the_same_with_a_thousand_waiters() {
    let redis = Redis::start();
    let (holder, waiter) = (connect(redis.url()), connect(redis.url()));
    for waiters in [16_u64, 1000] {
        let name = format!("crowd-{waiters}");
        let held = long(&holder, &name).acquire().await.expect("a grant");
        // The connection, the inbox and the scripts are there.
        give_back(long(&waiter, "warm").acquire().await.expect("a grant")).await;
        let since = Since::now(&redis);
        let turns: Vec<_> = (0..waiters)
            .map(|_| {
                let mutex = long(&waiter, &name);
                tokio::spawn(async move {
                    let guard = mutex.acquire().await.expect("a grant");
                    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
                })
            })
            .collect();
        eventually("all in line", async || {
            fields(&redis, &name) == 2 * waiters as i64 + 1
        })
        .await;
        let claims = since.ran(&redis);
        let heartbeats = |ran: &Ran| waiters * ran.ticks(HEARTBEAT);
        // Each writes once, and some are batched.
        assert!(
            (waiters..=waiters + heartbeats(&claims)).contains(&claims.of("hset")),
            "{claims:?}"
        );
        assert!(claims.scripts() <= claims.of("hset"), "{claims:?}");
        let since = Since::now(&redis);
        give_back(held).await;
        for turn in turns {
            soon("its turn", turn).await.expect("no panic");
        }
        let drained = since.ran(&redis);
        let releases = waiters + 1;
        assert_eq!(
            drained.of("publish"),
            waiters,
            "one push each, and no herd: {drained:?}"
        );
        let verbs = releases + heartbeats(&drained);
        assert!(
            (releases..=verbs).contains(&drained.of("hset")) && drained.scripts() <= verbs,
            "{drained:?}"
        );
        // By its own count each verb is as cheap as with one waiter. A heartbeat looks four times.
        assert!(drained.of("hget") <= 4 * verbs, "{drained:?}");
        println!(
            "{waiters} waiters: {} scripts, {} pushes, {:?}",
            drained.scripts(),
            drained.of("publish"),
            drained.took
        );
    }
}

/// How often the server read from a socket, not how many commands it ran.
fn reads(redis: &Redis) -> u64 {
    let stats = redis.call(&["INFO", "stats"]).text();
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_reads_processed:"));
    line.and_then(|count| count.trim().parse().ok())
        .expect("Redis 6 or later counts reads")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_renewals_are_one_pipeline() {
    const HELD: usize = 500;
    let redis = Redis::start();
    let client = connect(redis.url());
    let mut guards: Vec<Guard> = Vec::new();
    for number in 0..HELD {
        guards.push(
            client
                .mutex(format!("held-{number}"))
                .lease(ms(9000))
                .acquire()
                .await
                .expect("a grant"),
        );
    }
    // From after one round of renewals to after the next.
    let round = async |since: &Since| {
        let mut asked = 0;
        loop {
            tokio::time::sleep(ms(100)).await;
            asked += 1;
            if since.ran(&redis).scripts() >= HELD as u64 {
                return asked;
            }
            assert!(since.1.elapsed() < Duration::from_secs(20), "not renewed");
        }
    };
    round(&Since::now(&redis)).await;
    tokio::time::sleep(ms(500)).await;
    let (since, before) = (Since::now(&redis), reads(&redis));
    let asked = round(&since).await;
    let ran = since.ran(&redis);
    let read = reads(&redis) - before;
    // About 200 bytes each, of which the server reads 16 kB at once; and the requests of this test,
    // at most two reads each.
    let ours = 2 * (asked + 3);
    println!(
        "{} renewals in {} reads, {ours} of them ours at most",
        ran.scripts(),
        read
    );
    assert!(
        ran.scripts() >= HELD as u64 && read <= ours + 60,
        "{read} reads for {ran:?}"
    );
    assert!(guards.iter().all(Guard::is_held));
}

/// `PALISADE_SOAK=10` makes it ten times as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_many_cycles_nothing_is_left() {
    const TASKS: usize = 8;
    let soak: usize = std::env::var("PALISADE_SOAK")
        .ok()
        .map_or(1, |soak| soak.parse().expect("a number"));
    let cycles = 10_000 * soak / TASKS;
    let redis = Redis::start();
    let clients: Vec<Client> = (0..4).map(|_| connect(redis.url())).collect();
    let work = (0..TASKS).map(|task| {
        let client = clients[task % clients.len()].clone();
        tokio::spawn(async move {
            for cycle in 0..cycles {
                // Half of them are contended: they wait, and are pushed to.
                let name = if cycle % 2 == 0 {
                    format!("own-{task}-{}", cycle % 100)
                } else {
                    format!("all-{}", cycle % 4)
                };
                let guard = long(&client, &name).acquire().await.expect("a grant");
                match cycle % 5 {
                    0 => drop(guard),
                    _ => assert_eq!(guard.release().await.expect("an answer"), Released::Done),
                }
            }
        })
    });
    for task in work.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    for client in clients {
        client.shutdown().await;
        let closed = tokio::task::spawn_blocking(move || client.close(Duration::from_secs(20)))
            .await
            .expect("no panic");
        assert!(closed, "a client does not end");
    }
    eventually("no channel", async || {
        redis.call(&["PUBSUB", "CHANNELS"]).list().is_empty()
    })
    .await;
    assert_eq!(redis.call(&["PUBSUB", "NUMPAT"]).int(), Some(0));
    let mine = || {
        redis
            .call(&["CLIENT", "LIST"])
            .text()
            .matches(" resp=3")
            .count()
    };
    eventually("no connection", async || mine() == 0).await;
    let keys = redis.call(&["KEYS", "*"]);
    assert!(!keys.list().is_empty());
    for key in keys.list() {
        let ttl = redis.call(&["TTL", &key.text()]).int().expect("a number");
        assert!(
            (1..=2 * 3600).contains(&ttl),
            "{} stays for {ttl} s",
            key.text()
        );
        assert_eq!(
            redis.call(&["HLEN", &key.text()]).int(),
            Some(1),
            "nothing but the last fence: {}",
            key.text()
        );
    }
}

/// Shared with other programs, which push nothing: waiters poll, within the bounds that were set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_must_poll_stay_within_their_bounds() {
    const WAITERS: u64 = 5;
    let redis = Redis::start();
    let url = format!("{}?format=simple", redis.url());
    let (holder, waiter) = (connect(&url), connect(&url));
    let held = long(&holder, "spins").acquire().await.expect("a grant");
    let since = Since::now(&redis);
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| wait_for(&long(&waiter, "spins").spin(ms(100)..ms(400))))
        .collect();
    tokio::time::sleep(ms(2000)).await;
    let ran = since.ran(&redis);
    // Never more often than each 100 ms, and at least each 400 ms if the machine lets them.
    let most = WAITERS * ran.ticks(ms(100)) + WAITERS;
    println!(
        "{} asked {} times in {:?}, {most} at most",
        WAITERS,
        ran.scripts(),
        ran.took
    );
    assert!((WAITERS + 1..=most).contains(&ran.scripts()), "{ran:?}");
    give_back(held).await;
    for waiter in waiting {
        // In any order: this format has no line.
        tokio::spawn(async move { drop(gets_in(waiter).await) });
    }
    drop(
        soon("free again", long(&holder, "spins").acquire())
            .await
            .expect("a grant"),
    );
}

/// A server with keyspace events: waiters send nothing while nothing changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_with_keyspace_events_send_almost_nothing() {
    const WAITERS: u64 = 5;
    let redis = Redis::with().set("notify-keyspace-events", "Kgx").start();
    let url = format!("{}?format=simple", redis.url());
    let (holder, waiter) = (connect(&url), connect(&url));
    let held = long(&holder, "told").acquire().await.expect("a grant");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| wait_for(&long(&waiter, "told").spin(ms(20)..ms(50))))
        .collect();
    let channels = || {
        redis
            .call(&["PUBSUB", "CHANNELS", "__keyspace*"])
            .list()
            .len()
    };
    eventually("the key is watched", async || channels() == 1).await;
    // Each asks once more after the subscription.
    tokio::time::sleep(ms(200)).await;
    let since = Since::now(&redis);
    tokio::time::sleep(ms(2000)).await;
    let ran = since.ran(&redis);
    println!("{WAITERS} asked {} times in {:?}", ran.scripts(), ran.took);
    assert!(ran.scripts() <= WAITERS * ran.ticks(HEARTBEAT), "{ran:?}");
    let begun = Instant::now();
    give_back(held).await;
    let mut waiting = waiting;
    while !waiting.is_empty() {
        give_back(common::redis::some_gets_in(&mut waiting).await).await;
    }
    println!("all in {:?}", begun.elapsed());
}
