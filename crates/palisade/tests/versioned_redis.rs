//! Versioned keys on a real Redis: a late writer gets a conflict, no update is lost, and lost replies
//! are settled.

#![cfg(feature = "redis")]

mod common;

use std::time::Duration;

use common::keys::{connect, fresh};
use palisade::versioned::redis::redis::aio::{ConnectionManager, MultiplexedConnection};
use palisade::versioned::redis::redis::{self, cmd};
use palisade::versioned::redis::{SwapError, UpdateError, VersionedKeys};
use palisade::versioned::{PendingSwap, Settled, Swapped, Version, Versioned};
use palisade_testkit::proxy::{Protocol, Proxy, Way};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

const KEYS: VersionedKeys = VersionedKeys::new();

#[track_caller]
fn done(swapped: Result<Swapped, SwapError>) -> Version {
    match swapped {
        Ok(Swapped::Done(version)) => version,
        other => panic!("not done: {other:?}"),
    }
}

#[track_caller]
fn conflict(swapped: Result<Swapped, SwapError>) -> Option<Versioned> {
    match swapped {
        Ok(Swapped::Conflict(current)) => current,
        other => panic!("no conflict: {other:?}"),
    }
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| {
        std::str::from_utf8(value).unwrap().parse().unwrap()
    })
}

fn one_more(value: Option<&[u8]>) -> Option<Vec<u8>> {
    Some((number(value) + 1).to_string().into_bytes())
}

#[tokio::test]
async fn only_the_current_version_can_be_swapped() {
    let (mut redis, key) = fresh("rules").await;
    assert_eq!(KEYS.get(&mut redis, &key).await.unwrap(), None);
    assert_eq!(
        conflict(
            KEYS.swap(&mut redis, &key, Some(Version::new(7)), "x")
                .await
        ),
        None
    );
    assert_eq!(
        conflict(KEYS.remove(&mut redis, &key, Version::new(7)).await),
        None
    );
    let first = done(KEYS.swap(&mut redis, &key, None, "a\0\r\n").await);
    let seen = conflict(KEYS.swap(&mut redis, &key, None, "b").await).unwrap();
    assert_eq!((&seen.value[..], seen.version), (&b"a\0\r\n"[..], first));
    let second = done(KEYS.swap(&mut redis, &key, Some(first), "c").await);
    assert!(second > first);
    assert_eq!(
        conflict(KEYS.swap(&mut redis, &key, Some(first), "d").await)
            .unwrap()
            .version,
        second
    );
    assert_eq!(
        conflict(KEYS.remove(&mut redis, &key, first).await)
            .unwrap()
            .version,
        second
    );
    let now = KEYS.get(&mut redis, &key).await.unwrap().unwrap();
    assert_eq!(
        (&now.value[..], now.version),
        (&b"c"[..], second),
        "a conflict changes nothing"
    );
}

#[tokio::test]
async fn versions_do_not_repeat_after_a_removal() {
    let (mut redis, key) = fresh("removed").await;
    let first = done(KEYS.swap(&mut redis, &key, None, "a").await);
    let removed = done(KEYS.remove(&mut redis, &key, first).await);
    assert_eq!(KEYS.get(&mut redis, &key).await.unwrap(), None);
    assert_eq!(
        conflict(KEYS.remove(&mut redis, &key, removed).await),
        None,
        "a removal is not a value"
    );
    let left: i64 = cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
    assert!(
        (86_300_000..=86_400_000).contains(&left),
        "the version is kept for a day: {left}"
    );
    let again = done(KEYS.swap(&mut redis, &key, None, "a").await);
    assert!(first < removed && removed < again);
    assert_eq!(cmd("PTTL").arg(&key).query_async(&mut redis).await, Ok(-1));
    // ABA: the same bytes are there again, with another version.
    assert_eq!(
        conflict(KEYS.swap(&mut redis, &key, Some(first), "b").await)
            .unwrap()
            .version,
        again
    );
    assert!(KEYS.keep(Duration::ZERO).is_err() && KEYS.keep(Duration::MAX).is_err());
}

/// Either half of max(last + 1, clock) is needed.
#[tokio::test]
async fn versions_rise_when_the_clock_goes_back_and_when_the_last_one_is_forgotten() {
    let server = Redis::with().clock().start();
    let mut redis = connect(server.url()).await;
    server.clock().set_ahead(Duration::from_secs(3600));
    let first = done(KEYS.swap(&mut redis, "a", None, "x").await);
    server.clock().set_ahead(Duration::ZERO);
    let second = done(KEYS.swap(&mut redis, "a", Some(first), "x").await);
    assert_eq!(second.get(), first.get() + 1, "the clock is an hour behind");
    let removed = done(KEYS.remove(&mut redis, "a", second).await);
    assert_eq!(removed.get(), second.get() + 1);
    server.clock().set_ahead(Duration::from_secs(7200));
    let third = done(KEYS.swap(&mut redis, "a", None, "x").await);
    assert!(
        third.get() > removed.get() + 1_000_000,
        "the clock counts where it is ahead"
    );
    server.call(&["FLUSHALL"]);
    assert!(done(KEYS.swap(&mut redis, "a", None, "x").await) > third);
}

/// Many tasks add one, many times, with or without the check. Returns the sum.
async fn race(key: &str, checked: bool) -> u64 {
    let redis = connect(shared::redis().url()).await;
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (mut redis, key) = (redis.clone(), key.to_owned());
            tokio::spawn(async move {
                for _ in 0..10 {
                    if checked {
                        let keys = KEYS.tries(1000);
                        keys.update(&mut redis, &key, one_more)
                            .await
                            .unwrap()
                            .unwrap();
                    } else {
                        let old: Option<Vec<u8>> =
                            cmd("GET").arg(&key).query_async(&mut redis).await.unwrap();
                        cmd("SET")
                            .arg(&key)
                            .arg(one_more(old.as_deref()))
                            .exec_async(&mut redis)
                            .await
                            .unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut redis = redis;
    if checked {
        return number(
            KEYS.get(&mut redis, key)
                .await
                .unwrap()
                .map(|now| now.value)
                .as_deref(),
        );
    }
    cmd("GET").arg(key).query_async(&mut redis).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_updates_lose_nothing_and_the_sabotaged_twin_does() {
    assert_eq!(race(&shared::name("race"), true).await, 200);
    let left = race(&shared::name("race-twin"), false).await;
    assert!(
        left < 200,
        "GET and SET have lost nothing, so the test above shows nothing"
    );
}

#[tokio::test]
async fn an_update_keeps_the_value_if_told_so_and_gives_up_in_time() {
    let (mut redis, key) = fresh("update").await;
    assert_eq!(
        KEYS.update(&mut redis, &key, |old| old.map(<[u8]>::to_vec))
            .await
            .unwrap(),
        None,
        "nothing to change"
    );
    assert_eq!(KEYS.get(&mut redis, &key).await.unwrap(), None);
    let first = KEYS
        .update(&mut redis, &key, one_more)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        KEYS.get(&mut redis, &key).await.unwrap().unwrap().version,
        first
    );

    let mut calls = 0;
    let mut another = connect(shared::redis().url()).await;
    let keys = KEYS.tries(4);
    let disturbed = keys.update(&mut redis, &key, |old| {
        calls += 1;
        // Another writer is faster, every time.
        shared::redis().call(&["HINCRBY", &key, "version", "1"]);
        one_more(old)
    });
    assert!(matches!(
        disturbed.await,
        Err(UpdateError::Contended { tries: 4 })
    ));
    assert_eq!(calls, 4);
    assert_eq!(
        KEYS.get(&mut another, &key).await.unwrap().unwrap().value,
        b"1"
    );

    let mut once = true;
    let after_one = KEYS.update(&mut redis, &key, |old| {
        if std::mem::take(&mut once) {
            shared::redis().call(&["HINCRBY", &key, "version", "1"]);
            shared::redis().call(&["HSET", &key, "value", "41"]);
        }
        one_more(old)
    });
    after_one.await.unwrap();
    assert_eq!(
        KEYS.get(&mut another, &key).await.unwrap().unwrap().value,
        b"42",
        "decided again on what is there"
    );
}

/// A server behind a proxy, a connection through it that comes back, and one around it.
struct Shaky {
    proxy: Proxy,
    ours: ConnectionManager,
    theirs: MultiplexedConnection,
    server: Redis,
}

impl Shaky {
    async fn new() -> Shaky {
        let server = Redis::start();
        let address = server.address();
        // It runs a runtime of its own while it starts.
        let proxy = tokio::task::spawn_blocking(move || Proxy::speaking(Protocol::Redis, address))
            .await
            .unwrap();
        let client = redis::Client::open(format!("redis://{}", proxy.address())).unwrap();
        let mut shaky = Shaky {
            ours: ConnectionManager::new(client).await.unwrap(),
            theirs: connect(server.url()).await,
            proxy,
            server,
        };
        done(KEYS.swap(&mut shaky.theirs, "warm", None, "x").await); // the server knows the script: one request per swap
        shaky
    }

    /// The next swap is done, and its reply is lost.
    fn lose_the_answer(&self) {
        self.proxy
            .lose_reply_to(|request| request.windows(7).any(|word| word == b"EVALSHA"));
    }

    /// The next swaps are neither done nor answered.
    fn lose_the_request(&self) {
        self.proxy.swallow(Way::ToServer);
    }

    /// Makes the connection work again.
    async fn heal(&mut self) {
        self.proxy.heal();
        self.proxy.reset();
        for _ in 0..100 {
            if cmd("PING").exec_async(&mut self.ours).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the manager does not come back");
    }

    async fn version(&mut self) -> Version {
        KEYS.get(&mut self.theirs, "a")
            .await
            .unwrap()
            .unwrap()
            .version
    }
}

#[track_caller]
fn pending(swapped: Result<Swapped, SwapError>) -> PendingSwap {
    match swapped {
        Err(SwapError::Unanswered { swap, .. }) => *swap,
        other => panic!("answered: {other:?}"),
    }
}

#[tokio::test]
async fn a_swap_whose_reply_was_lost_is_found_done() {
    let mut shaky = Shaky::new().await;
    shaky.lose_the_answer();
    let swap = pending(KEYS.swap(&mut shaky.ours, "a", None, "secret").await);
    assert_eq!((swap.key(), swap.expected()), (&b"a"[..], None));
    assert!(!format!("{swap:?}").contains("secret"), "{swap:?}");
    let version = shaky.version().await;
    for _ in 0..2 {
        // On another connection, and as often as you like.
        assert_eq!(
            KEYS.settle(&mut shaky.theirs, &swap).await.unwrap(),
            Settled::Done(version)
        );
    }
    assert_eq!(shaky.version().await, version, "done once");

    shaky.heal().await;
    shaky.lose_the_answer();
    let swap = pending(KEYS.remove(&mut shaky.ours, "a", version).await);
    let Settled::Done(removed) = KEYS.settle(&mut shaky.theirs, &swap).await.unwrap() else {
        panic!("it was removed")
    };
    assert!(removed > version);
    assert_eq!(KEYS.get(&mut shaky.theirs, "a").await.unwrap(), None);
}

#[tokio::test]
async fn a_swap_that_never_arrived_is_done_when_it_is_settled() {
    let mut shaky = Shaky::new().await;
    shaky.lose_the_request();
    let swap = pending(KEYS.swap(&mut shaky.ours, "a", None, "x").await);
    assert_eq!(KEYS.get(&mut shaky.theirs, "a").await.unwrap(), None);
    let settled = KEYS.settle(&mut shaky.theirs, &swap).await.unwrap();
    assert_eq!(settled, Settled::Done(shaky.version().await));
}

#[tokio::test]
async fn a_swap_that_was_replaced_since_is_unknown_and_one_that_was_beaten_is_a_conflict() {
    let mut shaky = Shaky::new().await;
    let first = done(KEYS.swap(&mut shaky.theirs, "a", None, "x").await);
    shaky.lose_the_answer();
    let swap = pending(KEYS.swap(&mut shaky.ours, "a", Some(first), "ours").await);
    let ours = shaky.version().await;
    let theirs = done(
        KEYS.swap(&mut shaky.theirs, "a", Some(ours), "theirs")
            .await,
    );
    let settled = KEYS.settle(&mut shaky.theirs, &swap).await.unwrap();
    assert!(
        matches!(settled, Settled::Unknown(Some(now)) if now.version == theirs),
        "it was done, but that cannot be seen"
    );

    shaky.heal().await;
    shaky.lose_the_request();
    let swap = pending(KEYS.swap(&mut shaky.ours, "a", Some(theirs), "ours").await);
    let faster = done(
        KEYS.swap(&mut shaky.theirs, "a", Some(theirs), "faster")
            .await,
    );
    let settled = KEYS.settle(&mut shaky.theirs, &swap).await.unwrap();
    assert!(
        matches!(settled, Settled::Conflict(Some(now)) if now.version == faster),
        "what it expected was replaced by another"
    );
    let _ = done(
        KEYS.swap(&mut shaky.theirs, "a", Some(faster), "further")
            .await,
    );
    assert!(
        matches!(
            KEYS.settle(&mut shaky.theirs, &swap).await.unwrap(),
            Settled::Unknown(_)
        ),
        "two changes later it cannot be known"
    );
}

#[tokio::test]
async fn an_update_survives_lost_replies() {
    let mut shaky = Shaky::new().await;
    for round in 1..=5 {
        // The read before the swap is a script as well.
        shaky
            .proxy
            .lose_reply_to(|request| request.windows(8).any(|word| word == b"$3\r\nset\r"));
        KEYS.update(&mut shaky.ours, "a", one_more)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(shaky.proxy.lost(), round, "an answer was lost");
    }
    assert_eq!(
        shaky.server.call(&["HGET", "a", "value"]).text(),
        "5",
        "each was done once"
    );
}

#[tokio::test]
async fn a_server_that_refuses_has_done_nothing() {
    let server = Redis::start();
    let mut redis = connect(server.url()).await;
    let first = done(KEYS.swap(&mut redis, "a", None, "x").await);
    server.call(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = KEYS.swap(&mut redis, "a", Some(first), "y").await;
    assert!(matches!(&refused, Err(SwapError::Redis(_))), "{refused:?}");
    assert_eq!(server.call(&["HGET", "a", "value"]).text(), "x");
}

#[tokio::test]
async fn a_foreign_key_is_not_touched() {
    let (mut redis, key) = fresh("foreign").await;
    let others: [(&[&str], &str); 4] = [
        (&["SET", &key, "7"], "string"),
        (&["SADD", &key, "7"], "set"),
        (&["HSET", &key, "value", "7", "version", "1"], "hash"),
        (
            &["HSET", &key, "palisade", "fenced:1", "fence", "1"],
            "fenced:1",
        ),
    ];
    for (words, what) in others {
        shared::redis().call(&["DEL", &key]);
        shared::redis().call(words);
        let before = shared::redis().call(&["DUMP", &key]);
        for refused in [
            KEYS.swap(&mut redis, &key, None, "x").await.map(drop),
            KEYS.swap(&mut redis, &key, Some(Version::new(1)), "x")
                .await
                .map(drop),
            KEYS.remove(&mut redis, &key, Version::new(1))
                .await
                .map(drop),
            KEYS.get(&mut redis, &key).await.map(drop),
        ] {
            assert!(
                matches!(&refused, Err(SwapError::Foreign { found }) if found == what),
                "{refused:?}"
            );
        }
        assert_eq!(shared::redis().call(&["DUMP", &key]), before, "{what}");
    }
    shared::redis().call(&["DEL", &key]);
    for bad in [
        "",
        "0",
        "01",
        "1e3",
        "9007199254740991",
        "9223372036854775807",
    ] {
        shared::redis().call(&[
            "HSET",
            &key,
            "palisade",
            "versioned:1",
            "version",
            bad,
            "value",
            "7",
        ]);
        let refused = KEYS.swap(&mut redis, &key, None, "x").await;
        assert!(
            matches!(&refused, Err(SwapError::Corrupt { found }) if found == bad),
            "{bad:?}: {refused:?}"
        );
        assert_eq!(shared::redis().call(&["HGET", &key, "value"]).text(), "7");
    }
    // The last one of which the next keeps every digit.
    shared::redis().call(&["HSET", &key, "version", "9007199254740990"]);
    let last = Version::new(9_007_199_254_740_990);
    assert_eq!(
        done(KEYS.swap(&mut redis, &key, Some(last), "x").await).get(),
        9_007_199_254_740_991
    );
}

#[tokio::test]
async fn flushed_scripts_are_sent_again() {
    let server = Redis::start();
    let mut redis = connect(server.url()).await;
    let first = done(KEYS.swap(&mut redis, "a", None, "x").await);
    server.call(&["SCRIPT", "FLUSH"]);
    let second = done(KEYS.swap(&mut redis, "a", Some(first), "y").await);
    server.call(&["SCRIPT", "FLUSH"]);
    assert_eq!(
        KEYS.get(&mut redis, "a").await.unwrap().unwrap().version,
        second
    );
}

#[tokio::test]
async fn a_cluster_serves_them() {
    let nodes: Vec<_> = shared::redis_cluster()
        .nodes()
        .iter()
        .map(|node| node.url())
        .collect();
    let mut redis = redis::cluster::ClusterClient::new(nodes)
        .unwrap()
        .get_async_connection()
        .await
        .unwrap();
    for _ in 0..20 {
        let key = shared::name("cluster");
        for _ in 0..3 {
            KEYS.update(&mut redis, &key, one_more)
                .await
                .unwrap()
                .unwrap();
        }
        assert_eq!(
            KEYS.get(&mut redis, &key).await.unwrap().unwrap().value,
            b"3"
        );
    }
}
