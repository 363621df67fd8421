//! Where Redisson's layout has traps. The peer here is the bytes that Redisson writes; its own jar
//! is in `interop`.

#![cfg(feature = "redis")]

mod common;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::ms;
use common::redis::{
    commands, connect, gets_in, give_back, in_line, is_told, listener, rise, soon, wait_for,
};
use palisade::{Client, ErrorKind, Mutex, Released};
use palisade_conformance::eventually;
use palisade_testkit::redis::{Cluster, Redis};
use palisade_testkit::shared;

/// A client of Redisson and one of its threads.
const PEER: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:46";
/// Hand-overs by a message take milliseconds, and by the re-check half a second on average.
const ROUNDS: u32 = 10;
const BY_MESSAGE: Duration = Duration::from_millis(2500);

fn url(redis: &Redis, words: &str) -> String {
    format!("{}?format=redisson{words}", redis.url())
}

fn number(redis: &Redis, words: &[&str]) -> i64 {
    redis.call(words).text().trim().parse().expect("a number")
}

fn exists(redis: &Redis, key: &str) -> bool {
    redis.call(&["EXISTS", key]).int() == Some(1)
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("later");
    i64::try_from(now.as_millis()).expect("in range")
}

/// A peer takes a free lock.
fn locked_by_peer(redis: &Redis, name: &str) {
    redis.call(&["HSET", name, PEER, "1"]);
    redis.call(&["PEXPIRE", name, "60000"]);
}

/// A waiter of ours listens to this channel.
async fn is_listening(redis: &Redis, verb: &str, channel: &str) {
    eventually("a waiter listens", async || {
        redis.call(&["PUBSUB", verb, channel]).list()[1].text() != "0"
    })
    .await;
}

/// The commands by which scripts were called.
fn scripts(redis: &Redis) -> u64 {
    let commands = commands(redis);
    ["eval", "evalsha"]
        .iter()
        .filter_map(|verb| commands.get(*verb))
        .sum()
}

fn field(redis: &Redis, name: &str) -> String {
    redis.call(&["HKEYS", name]).list()[0].text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_is_the_hash_of_an_rlock() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    let guard = locks.mutex("orders").acquire().await.expect("a grant");
    let owner = field(&redis, "orders");
    let (client, thread) = owner.split_once(':').expect("a client and a thread");
    assert!(client.len() == 36 && client.split('-').count() == 5 && thread.parse::<u64>().is_ok());
    assert_eq!(redis.call(&["HGET", "orders", &owner]).text(), "1");
    let left = number(&redis, &["PTTL", "orders"]);
    assert!((1..=30_000).contains(&left), "{left}");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    assert!(!exists(&redis, "orders"));
    // What is left ends by itself.
    let rest = redis.call(&["KEYS", "*"]);
    assert!(!rest.list().is_empty());
    for key in rest.list() {
        let left = number(&redis, &["PTTL", &key.text()]);
        assert!((1..=630_000).contains(&left), "{}: {left}", key.text());
    }
}

/// By the message alone: the re-check after a second would be noticed.
async fn wakes_us(locks: &Client, node: &Redis, name: &str, listens: &str, publishes: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let mut taken = Duration::ZERO;
    for _ in 0..ROUNDS {
        locked_by_peer(node, name);
        let waiting = wait_for(&locks.mutex(name));
        is_listening(node, listens, &channel).await;
        // Past the attempt that follows a subscription.
        tokio::time::sleep(ms(50)).await;
        assert!(!waiting.is_finished());
        node.call(&["DEL", name]);
        let freed = Instant::now();
        node.call(&[publishes, &channel, "0"]);
        let guard = gets_in(waiting).await;
        taken += freed.elapsed();
        give_back(guard).await;
    }
    assert!(taken < BY_MESSAGE, "{taken:?} by {publishes}");
    println!("{ROUNDS} hand-overs by {publishes} in {taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peers_release_wakes_us_and_ours_wakes_the_peer() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    wakes_us(&locks, &redis, "orders", "NUMSUB", "PUBLISH").await;
    let mut heard = listener(&redis, "SUBSCRIBE", "redisson_lock__channel:{orders}").await;
    give_back(locks.mutex("orders").acquire().await.expect("a grant")).await;
    assert_eq!(soon("a message", heard.recv()).await.expect("heard"), "0");
}

/// The version of a peer does not tell which of both it uses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_both_kinds_of_messages_are_heard_and_sent() {
    let cluster = shared::redis_cluster();
    let locks = connect(format!("{}?format=redisson", cluster.url()));
    for (name, listens, publishes, subscribes) in [
        ("redisson-plain", "NUMSUB", "PUBLISH", "SUBSCRIBE"),
        ("redisson-shard", "SHARDNUMSUB", "SPUBLISH", "SSUBSCRIBE"),
    ] {
        let node = cluster.primary_of(name);
        wakes_us(&locks, node, name, listens, publishes).await;
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let mut heard = listener(node, subscribes, &channel).await;
        give_back(locks.mutex(name).acquire().await.expect("a grant")).await;
        assert_eq!(soon("a message", heard.recv()).await.expect("heard"), "0");
    }
}

/// The server ends the sharded subscription unasked. That is no reply to any request, and the waiter
/// subscribes where the slot is now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_takes_its_waiters_along() {
    let cluster = Cluster::start();
    let locks = connect(format!("{}?format=redisson", cluster.url()));
    let lease = Duration::from_secs(60);
    let lock = locks.mutex("moves").lease(lease);
    let held = lock.acquire().await.expect("a grant");
    let waiting = wait_for(&lock);
    let from = cluster.primary_of("moves");
    let channel = "redisson_lock__channel:{moves}";
    is_listening(from, "SHARDNUMSUB", channel).await;
    let to = cluster.nodes().iter().find(|node| {
        node.call(&["ROLE"]).list()[0].text() == "master" && node.address() != from.address()
    });
    let to = to.expect("another primary");
    let slot = from.call(&["CLUSTER", "KEYSLOT", "moves"]).text();
    let id = |node: &Redis| node.call(&["CLUSTER", "MYID"]).text();
    to.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    from.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    let (host, port) = (to.ip().to_string(), to.address().port().to_string());
    for key in from
        .call(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])
        .list()
    {
        from.call(&["MIGRATE", &host, &port, &key.text(), "0", "5000"]);
    }
    for node in [to, from] {
        node.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
    }
    is_listening(to, "SHARDNUMSUB", channel).await;
    // Every reply still comes to its own request.
    assert!(held.verify().await.expect("an answer"));
    let first = held.fence();
    give_back(held).await;
    let next = gets_in(waiting).await;
    rise(&[first, next.fence()]);
    give_back(next).await;
}

/// Redisson would take them, and could not give them back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_break_the_slots_of_a_cluster_are_refused_untouched() {
    let cluster = shared::redis_cluster();
    let locks = connect(format!("{}?format=redisson", cluster.url()));
    for name in ["ab{ro", "ab{}ro", "ab}ro"] {
        let refused = locks.mutex(name).try_acquire().await.map(drop);
        let refused = refused.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains("in a cluster"), "{refused}");
        assert!(!exists(cluster.primary_of(name), name), "{name} is touched");
    }
    let tagged = locks.mutex("ab{tag}ro").try_acquire().await;
    give_back(tagged.expect("an answer").expect("free")).await;
}

/// A key of another type, and a name that serves another object, are errors and stay as they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_are_never_mixed_on_one_name() {
    let redis = Redis::start();
    let (locks, fair) = (connect(url(&redis, "")), connect(url(&redis, "&fair=yes")));
    redis.call(&["SET", "text", "theirs"]);
    for refused in [
        locks.mutex("text").try_acquire().await.map(drop),
        locks.rwlock("text").try_read().await.map(drop),
        locks.rwlock("text").try_write().await.map(drop),
        fair.mutex("text").try_acquire().await.map(drop),
    ] {
        let refused = refused.expect_err("it is no lock");
        assert_eq!(refused.kind(), ErrorKind::Protocol, "{refused}");
    }
    assert_eq!(redis.call(&["GET", "text"]).text(), "theirs");
    redis.call(&["HSET", "rw", "mode", "read", PEER, "1"]);
    redis.call(&["PEXPIRE", "rw", "60000"]);
    locked_by_peer(&redis, "lock");
    redis.call(&["RPUSH", "redisson_lock_queue:{fair}", PEER]);
    redis.call(&[
        "ZADD",
        "redisson_lock_timeout:{fair}",
        &(now() + 60_000).to_string(),
        PEER,
    ]);
    let before = redis.call(&["HGETALL", "rw"]).list().len();
    for (refused, names) in [
        (locks.mutex("rw").try_acquire().await.map(drop), "rwlock"),
        (fair.mutex("rw").try_acquire().await.map(drop), "rwlock"),
        (locks.rwlock("lock").try_write().await.map(drop), "mutex"),
        (locks.rwlock("lock").try_read().await.map(drop), "mutex"),
        (locks.mutex("fair").try_acquire().await.map(drop), "fair"),
    ] {
        let refused = refused.expect_err("it is another object");
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains(names), "{refused}");
    }
    assert_eq!(redis.call(&["HGETALL", "rw"]).list().len(), before);
    assert_eq!(field(&redis, "lock"), PEER);
    assert!(!exists(&redis, "fair"));
}

/// Redisson's fenced lock takes such a hash for its own. It is held here, and ours never looks so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hash_always_has_an_end() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    redis.call(&["HSET", "endless", PEER, "1"]);
    let waiting = wait_for(&locks.mutex("endless"));
    is_listening(&redis, "NUMSUB", "redisson_lock__channel:{endless}").await;
    assert!(!waiting.is_finished());
    assert_eq!(
        number(&redis, &["PTTL", "endless"]),
        -1,
        "it is not ours to end"
    );
    // Without a message.
    redis.call(&["DEL", "endless"]);
    let held = gets_in(waiting).await;
    let reader = locks.rwlock("side").read().await.expect("a grant");
    for key in ["endless", "side"] {
        assert!(number(&redis, &["PTTL", key]) > 0, "{key}");
    }
    give_back(held).await;
    assert_eq!(reader.release().await.expect("released"), Released::Done);
}

/// An `RSpinLock` is freed without a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_spins_needs_no_message() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    let lock = locks.mutex("spins").spin(ms(5)..ms(50));
    let mut taken = Duration::ZERO;
    for _ in 0..ROUNDS {
        locked_by_peer(&redis, "spins");
        let waiting = wait_for(&lock);
        is_listening(&redis, "NUMSUB", "redisson_lock__channel:{spins}").await;
        tokio::time::sleep(ms(50)).await;
        redis.call(&["DEL", "spins"]);
        let freed = Instant::now();
        let guard = gets_in(waiting).await;
        taken += freed.elapsed();
        give_back(guard).await;
    }
    assert!(taken < BY_MESSAGE, "{taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_peer_forces_open_is_told() {
    let redis = Redis::start();
    for words in ["", "&fair=yes"] {
        let locks = connect(url(&redis, words));
        let lock = locks.mutex("forced").lease(ms(3000));
        let guard = lock.acquire().await.expect("a grant");
        redis.call(&["DEL", "forced"]);
        is_told(&guard).await;
        locked_by_peer(&redis, "forced");
        assert_eq!(
            guard.release().await.expect("an answer"),
            Released::AlreadyLost
        );
        assert_eq!(field(&redis, "forced"), PEER);
        redis.call(&["DEL", "forced"]);
    }
}

/// The counter of a fenced lock: raised to our clock, and never lowered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_the_counter_of_a_fenced_lock() {
    let redis = Redis::start();
    let counter = "redisson_lock_token:{fenced}";
    let (locks, fenced) = (
        connect(url(&redis, "")),
        connect(url(&redis, "&fenced=yes")),
    );
    async fn fence_of(locks: &Client) -> i64 {
        let guard = locks.mutex("fenced").acquire().await.expect("a grant");
        let fence = guard.fence().to_string().parse().expect("a number");
        give_back(guard).await;
        fence
    }
    // As Redisson leaves it.
    redis.call(&["SET", counter, "41"]);
    let first = fence_of(&locks).await;
    assert!(
        first >= now() * 1000 - 60_000_000,
        "{first} is below the clock"
    );
    assert_eq!(number(&redis, &["GET", counter]), first);
    assert_eq!(number(&redis, &["PTTL", counter]), -1, "it had no end");
    let theirs = number(&redis, &["INCR", counter]);
    let second = fence_of(&locks).await;
    rise(&[first, theirs, second]);
    // A counter ahead of the clock is counted on.
    let ahead = second + 1_000_000_000_000;
    redis.call(&["SET", counter, &ahead.to_string()]);
    assert_eq!(fence_of(&fenced).await, ahead + 1);
    redis.call(&["DEL", counter]);
    fence_of(&locks).await;
    assert!(
        number(&redis, &["PTTL", counter]) > 0,
        "ours ends by itself"
    );
    // By a client that has not seen the fence which is lost with the counter.
    fence_of(&connect(url(&redis, "&fenced=yes"))).await;
    assert_eq!(
        number(&redis, &["PTTL", counter]),
        -1,
        "a peer counts on it"
    );
    redis.call(&["SET", counter, "none"]);
    let refused = locks.mutex("fenced").try_acquire().await.map(drop);
    assert_eq!(refused.expect_err("no number").kind(), ErrorKind::Protocol);
    assert_eq!(redis.call(&["GET", counter]).text(), "none");
}

// The read/write lock.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_shrinks_in_silence_is_noticed() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    redis.call(&["HSET", "shrinks", "mode", "read", PEER, "1"]);
    redis.call(&["PEXPIRE", "shrinks", "600000"]);
    let lock = locks.rwlock("shrinks");
    let writing = tokio::spawn(async move { lock.write().await });
    is_listening(&redis, "NUMSUB", "redisson_rwlock:{shrinks}").await;
    tokio::time::sleep(ms(50)).await;
    // The reader with the longest lease has left.
    redis.call(&["PEXPIRE", "shrinks", "200"]);
    let shrunk = Instant::now();
    let writer = soon("the writer gets in", writing).await;
    println!("noticed after {:?}", shrunk.elapsed());
    let writer = writer.expect("no panic").expect("a grant");
    assert_eq!(redis.call(&["HGET", "shrinks", "mode"]).text(), "write");
    assert_eq!(writer.release().await.expect("released"), Released::Done);
}

/// Each reader has a key for its lease, without which a peer would take it for dead; and the hash
/// lives as long as the longest of those that are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_have_leases_of_their_own() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    let lock = locks.rwlock("shared");
    let short = lock
        .clone()
        .lease(Duration::from_secs(5))
        .read()
        .await
        .expect("a grant");
    let owner = redis
        .call(&["HKEYS", "shared"])
        .list()
        .iter()
        .map(|field| field.text())
        .find(|field| field != "mode")
        .expect("a reader");
    let lease = format!("{{shared}}:{owner}:rwlock_timeout:1");
    assert!((1..=5000).contains(&number(&redis, &["PTTL", &lease])));
    let long = lock
        .clone()
        .lease(Duration::from_secs(600))
        .read()
        .await
        .expect("a grant");
    assert!(number(&redis, &["PTTL", "shared"]) > 500_000);
    let mut heard = listener(&redis, "SUBSCRIBE", "redisson_rwlock:{shared}").await;
    assert_eq!(long.release().await.expect("released"), Released::Done);
    assert!((1..=5000).contains(&number(&redis, &["PTTL", "shared"])));
    soon("waiters hear that it ends earlier", heard.recv())
        .await
        .expect("heard");
    assert!(lock.try_write().await.expect("an answer").is_none());
    assert_eq!(short.release().await.expect("released"), Released::Done);
    assert!(!exists(&redis, &lease) && !exists(&redis, "shared"));
}

/// A reader that died leaves its field behind as long as others read: it does not hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_reader_is_gone_with_its_lease() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    let lock = locks.rwlock("dead");
    redis.call(&["HSET", "dead", "mode", "read", PEER, "1"]);
    redis.call(&["PEXPIRE", "dead", "60000"]);
    let live = lock.read().await.expect("a grant");
    assert_eq!(live.release().await.expect("released"), Released::Done);
    assert!(!exists(&redis, "dead"), "the peer that is left is dead");
    let (dead, live) = (lock.read().await, lock.read().await);
    let (dead, live) = (dead.expect("a grant"), live.expect("a grant"));
    let leases = redis.call(&["KEYS", "{dead}:*:rwlock_timeout:1"]);
    assert_eq!(leases.list().len(), 2);
    for lease in leases.list() {
        // One of both, by its fence.
        let owner = lease.text();
        let owner = owner.trim_start_matches("{dead}:");
        let owner = owner.trim_end_matches(":rwlock_timeout:1");
        let note = redis.call(&["HGET", "palisade:1:redisson:{dead}", owner]);
        if note.text().starts_with(&dead.fence().to_string()) {
            redis.call(&["DEL", &lease.text()]);
        }
    }
    assert!(!dead.verify().await.expect("an answer"), "revived");
    assert!(live.verify().await.expect("an answer"));
    assert_eq!(live.release().await.expect("released"), Released::Done);
    assert!(!exists(&redis, "dead"), "no reader is left");
    assert_eq!(
        dead.release().await.expect("an answer"),
        Released::AlreadyLost
    );
}

// The fair lock.

const QUEUE: &str = "redisson_lock_queue:{fair}";
const TIMES: &str = "redisson_lock_timeout:{fair}";

fn fair(redis: &Redis) -> Mutex {
    connect(url(redis, "&fair=yes")).mutex("fair")
}

/// A waiter without a time would block Redisson for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ghost_at_the_head_is_passed_by() {
    let redis = Redis::start();
    redis.call(&["RPUSH", QUEUE, PEER]);
    let guard = soon("it gets in", fair(&redis).acquire()).await;
    let guard = guard.expect("a grant");
    assert!(!exists(&redis, QUEUE));
    give_back(guard).await;
}

/// A dead waiter of Redisson blocks until its time, and none of ours spins meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_at_the_head_neither_stalls_nor_spins_us() {
    let redis = Redis::start();
    redis.call(&["RPUSH", QUEUE, PEER]);
    let ends = now() + 3000;
    redis.call(&["ZADD", TIMES, &ends.to_string(), PEER]);
    let before = scripts(&redis);
    let guard = soon("it gets in", fair(&redis).acquire()).await;
    let guard = guard.expect("a grant");
    let late = now() - ends;
    let calls = scripts(&redis) - before;
    assert!((0..2500).contains(&late), "{late} ms after its time");
    assert!(calls < 30, "{calls} calls in 3 s");
    println!("{late} ms after its time, with {calls} calls");
    give_back(guard).await;
}

/// Ours raise their time while they live, and leave nothing when they give up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_waiter_keeps_its_place_and_one_that_leaves_frees_it() {
    let redis = Redis::start();
    locked_by_peer(&redis, "fair");
    let outside = connect(url(&redis, "&fair=yes"));
    let first = wait_for(&fair(&redis));
    in_line(&outside, "fair", 1).await;
    let me = redis.call(&["LINDEX", QUEUE, "0"]).text();
    let score = || number(&redis, &["ZSCORE", TIMES, &me]);
    let began = score();
    eventually("its time is raised", async || score() > began + 1000).await;
    // A peer's waiter behind it.
    let theirs = "8743c9c0-0795-4907-87fd-6c719a6b4586:47";
    redis.call(&["RPUSH", QUEUE, theirs]);
    redis.call(&["ZADD", TIMES, &(score() + 300_000).to_string(), theirs]);
    // And ours behind that, so late that the grant before it does not end it.
    let leaves = fair(&redis);
    let left = tokio::spawn(async move { leaves.acquire_timeout(ms(2500)).await });
    in_line(&outside, "fair", 3).await;
    let last = redis.call(&["LINDEX", QUEUE, "2"]).text();
    assert!(number(&redis, &["ZSCORE", TIMES, &last]) - 300_000 > now());
    assert!(left.await.expect("no panic").is_err());
    eventually("it has left", async || {
        redis.call(&["LLEN", QUEUE]).int() == Some(2)
            && redis.call(&["ZCARD", TIMES]).int() == Some(2)
    })
    .await;
    // As a peer releases: the head alone is told, on its own channel.
    redis.call(&["DEL", "fair"]);
    redis.call(&[
        "PUBLISH",
        &format!("redisson_lock__channel:{{fair}}:{me}"),
        "0",
    ]);
    let guard = gets_in(first).await;
    assert_eq!(redis.call(&["LRANGE", QUEUE, "0", "-1"]).list().len(), 1);
    // And our release tells theirs.
    let mut heard = listener(
        &redis,
        "SUBSCRIBE",
        &format!("redisson_lock__channel:{{fair}}:{theirs}"),
    )
    .await;
    give_back(guard).await;
    assert_eq!(soon("a message", heard.recv()).await.expect("heard"), "0");
    let attempt = fair(&redis).try_acquire().await.expect("an answer");
    assert!(attempt.is_none(), "it is the turn of the peer");
}

/// A push wakes the next in the queue, without the heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fair_hand_over_takes_one_message() {
    let redis = Redis::start();
    let (locks, outside) = (
        connect(url(&redis, "&fair=yes")),
        connect(url(&redis, "&fair=yes")),
    );
    let mut held = locks.mutex("fair").acquire().await.expect("a grant");
    let mut taken = Duration::ZERO;
    for _ in 0..ROUNDS {
        let waiting = wait_for(&locks.mutex("fair"));
        in_line(&outside, "fair", 1).await;
        let me = redis.call(&["LINDEX", QUEUE, "0"]).text();
        is_listening(
            &redis,
            "NUMSUB",
            &format!("redisson_lock__channel:{{fair}}:{me}"),
        )
        .await;
        tokio::time::sleep(ms(50)).await;
        let freed = Instant::now();
        give_back(held).await;
        held = gets_in(waiting).await;
        taken += freed.elapsed();
    }
    assert!(taken < BY_MESSAGE, "{taken:?}");
    give_back(held).await;
}

/// Redisson's would not keep what Redlock promises.
#[tokio::test]
async fn redlock_has_no_such_format() {
    let refused = palisade::connect("redlock://a,b,c?format=redisson").await;
    let refused = refused.map(drop).expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("RedLock"), "{refused}");
}
