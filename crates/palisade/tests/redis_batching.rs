//! Requests of many tasks of one client at the same time are batched. Only the cost may differ.

#![cfg(feature = "redis")]

mod common;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::Poll;

use common::redis::{LONG, commands, connect, fields, give_back, key, soon};
use palisade::{Client, ErrorKind, Guard, Mutex, Released, Result};
use palisade_conformance::eventually;
use palisade_testkit::proxy::{Protocol, Proxy};
use palisade_testkit::redis::Redis;
use tokio::task::JoinHandle;

const TASKS: usize = 40;

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("n{number}"))
}

/// A client that is connected and has its inbox, and whose server has the scripts.
async fn warm(url: &str) -> Client {
    let client = connect(url);
    for _ in 0..2 {
        let cycles: Vec<_> = names(TASKS)
            .map(|name| tokio::spawn(cycle(long(&client, &name))))
            .collect();
        for cycle in cycles {
            soon("a cycle", cycle).await.expect("no panic");
        }
    }
    client
}

async fn cycle(mutex: Mutex) {
    give_back(mutex.acquire().await.expect("a grant")).await;
}

/// Asks for all of these while the server is paused, so that all but the first find others in flight.
async fn ask_at_once(
    redis: &Redis,
    client: &Client,
    names: impl Iterator<Item = String>,
) -> Vec<JoinHandle<Result<Guard>>> {
    redis.pause();
    let asking = names.map(|name| {
        let mutex = long(client, &name);
        tokio::spawn(async move { mutex.acquire().await })
    });
    let asking = asking.collect();
    // One thread: all of them have been polled when this task runs again.
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    asking
}

async fn guards(asking: Vec<JoinHandle<Result<Guard>>>) -> Vec<Guard> {
    let mut guards = Vec::new();
    for asked in asking {
        guards.push(
            soon("a grant", asked)
                .await
                .expect("no panic")
                .expect("a grant"),
        );
    }
    guards
}

async fn release_all(guards: Vec<Guard>) {
    let releasing: Vec<_> = guards
        .into_iter()
        .map(|guard| tokio::spawn(guard.release()))
        .collect();
    for released in releasing {
        assert_eq!(
            soon("released", released)
                .await
                .expect("no panic")
                .expect("an answer"),
            Released::Done
        );
    }
}

struct Count<'a>(&'a Redis, BTreeMap<String, u64>);

impl Count<'_> {
    fn of(&self, names: &[&str]) -> u64 {
        let now = commands(self.0);
        let count = |of: &BTreeMap<String, u64>| {
            names
                .iter()
                .map(|name| of.get(*name).copied().unwrap_or_default())
                .sum::<u64>()
        };
        count(&now) - count(&self.1)
    }

    fn scripts(&self) -> u64 {
        self.of(&["eval", "evalsha"])
    }
}

fn count(redis: &Redis) -> Count<'_> {
    Count(redis, commands(redis))
}

#[tokio::test]
async fn many_cycles_at_once_cost_few_scripts() {
    const ROUNDS: u64 = 20;
    let redis = Redis::start();
    let client = warm(&redis.url()).await;
    let since = count(&redis);
    for _ in 0..ROUNDS {
        let cycles: Vec<_> = names(64)
            .map(|name| tokio::spawn(cycle(long(&client, &name))))
            .collect();
        for cycle in cycles {
            soon("a cycle", cycle).await.expect("no panic");
        }
    }
    let (scripts, writes) = (since.scripts(), since.of(&["hset"]));
    println!("{} cycles in {scripts} scripts", 64 * ROUNDS);
    assert_eq!(writes, 2 * 64 * ROUNDS, "each verb was done once");
    assert!(scripts <= 128 * ROUNDS * 3 / 4, "{scripts} scripts");
    // A single cycle is not batched.
    let since = count(&redis);
    for _ in 0..10 {
        cycle(long(&client, "n0")).await;
    }
    assert_eq!(since.scripts(), 20);
}

#[tokio::test]
async fn a_key_of_another_type_fails_only_its_own_request() {
    let redis = Redis::start();
    let client = warm(&redis.url()).await;
    redis.call(&["SET", &key("bad"), "something"]);
    let since = count(&redis);
    let mut asking = ask_at_once(
        &redis,
        &client,
        names(TASKS / 2)
            .chain(["bad".to_owned()])
            .chain(names(TASKS).skip(TASKS / 2)),
    )
    .await;
    redis.resume();
    let refused = soon("an answer", asking.remove(TASKS / 2))
        .await
        .expect("no panic")
        .expect_err("it is no lock");
    assert_eq!(refused.kind(), ErrorKind::Protocol, "{refused}");
    release_all(guards(asking).await).await;
    assert!(
        since.scripts() <= TASKS as u64,
        "they were batched: {}",
        since.scripts()
    );
}

/// Redis checks the rights to all keys before it runs a script.
#[tokio::test]
async fn a_key_that_is_denied_fails_only_its_own_request() {
    let redis = Redis::with()
        .acl("locker on >lockpw ~palisade:1:{n*} &palisade:1:inbox:* +@all")
        .start();
    let url = format!("redis://locker:lockpw@{}", redis.address());
    let client = warm(&url).await;
    let mut asking = ask_at_once(
        &redis,
        &client,
        names(TASKS / 2)
            .chain(["denied".to_owned()])
            .chain(names(TASKS).skip(TASKS / 2)),
    )
    .await;
    redis.resume();
    let refused = soon("an answer", asking.remove(TASKS / 2))
        .await
        .expect("no panic")
        .expect_err("it is denied");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    release_all(guards(asking).await).await;
}

/// A server of a cluster refuses keys of different slots in one script, though it has them all.
#[tokio::test]
async fn a_server_that_refuses_a_batch_gets_each_request_alone() {
    let redis = Redis::with().clustered().start();
    redis.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("its slots are served", async || {
        redis
            .call(&["CLUSTER", "INFO"])
            .text()
            .contains("cluster_state:ok")
    })
    .await;
    let client = warm(&redis.url()).await;
    let asking = ask_at_once(&redis, &client, names(TASKS)).await;
    redis.resume();
    release_all(guards(asking).await).await;
}

#[tokio::test]
async fn a_server_that_has_lost_the_scripts_gets_them_again() {
    let redis = Redis::start();
    let client = warm(&redis.url()).await;
    redis.call(&["SCRIPT", "FLUSH"]);
    let since = count(&redis);
    let asking = ask_at_once(&redis, &client, names(TASKS)).await;
    redis.resume();
    release_all(guards(asking).await).await;
    assert!(
        (1..TASKS as u64).contains(&since.of(&["eval"])),
        "{}",
        since.of(&["eval"])
    );
    assert!(
        since.scripts() < TASKS as u64,
        "they were batched: {}",
        since.scripts()
    );
}

/// Two claims that may queue, side by side: only a batch has this.
fn is_batch(request: &[u8]) -> bool {
    request
        .windows(4)
        .any(|part| part == b"c\x02c\x02" || part == b"r\x03r\x03")
}

#[tokio::test]
async fn a_batch_whose_reply_is_lost_was_done_once() {
    let redis = Redis::start();
    let address = redis.address();
    let proxy = std::thread::spawn(move || Proxy::speaking(Protocol::Redis, address))
        .join()
        .expect("a proxy");
    let client = warm(&format!("redis://{}", proxy.address())).await;
    proxy.lose_reply_to(is_batch);
    let asking = ask_at_once(&redis, &client, names(TASKS)).await;
    redis.resume();
    let held = guards(asking).await;
    assert_eq!(proxy.lost(), 1);
    for (name, guard) in names(TASKS).zip(&held) {
        let line = client.show(&name).await.expect("an answer").expect("held");
        assert_eq!(
            (
                line.holders.len(),
                line.waiters.len(),
                line.holders[0].fence
            ),
            (1, 0, guard.fence())
        );
    }
    proxy.lose_reply_to(is_batch);
    let releasing: Vec<_> = held
        .into_iter()
        .map(|guard| tokio::spawn(guard.release()))
        .collect();
    for released in releasing {
        let released = soon("released", released)
            .await
            .expect("no panic")
            .expect("an answer");
        assert!(
            matches!(released, Released::Done | Released::Unknown),
            "{released:?}"
        );
    }
    assert_eq!(proxy.lost(), 2);
    for name in names(TASKS) {
        assert!(
            client.show(&name).await.expect("an answer").is_none(),
            "{name} is free"
        );
    }
}

#[tokio::test]
async fn connections_that_end_with_batches_in_flight_lose_no_claim() {
    let redis = Redis::start();
    let address = redis.address();
    let proxy = std::thread::spawn(move || Proxy::speaking(Protocol::Redis, address))
        .join()
        .expect("a proxy");
    let client = warm(&format!("redis://{}", proxy.address())).await;
    let asking = ask_at_once(&redis, &client, names(TASKS)).await;
    let reset = tokio::task::spawn_blocking(move || {
        proxy.reset();
        proxy
    });
    let _proxy = soon("a reset", reset).await.expect("no panic");
    redis.resume();
    release_all(guards(asking).await).await;
}

#[tokio::test]
async fn a_caller_that_leaves_while_others_are_in_flight_leaves_nothing() {
    let redis = Redis::start();
    let client = warm(&redis.url()).await;
    let mut asking = ask_at_once(&redis, &client, names(TASKS)).await;
    let mut left = Vec::new();
    for at in (0..TASKS).rev().step_by(2) {
        left.push(asking.remove(at));
    }
    left.iter().for_each(JoinHandle::abort);
    redis.resume();
    for left in left {
        assert!(left.await.is_err());
    }
    release_all(guards(asking).await).await;
    soon("withdrawn", client.shutdown()).await;
    assert_eq!(client.stats().kept, 0);
    for name in names(TASKS) {
        assert_eq!(
            fields(&redis, &name),
            1,
            "nothing but the last fence of {name}"
        );
        assert!(
            redis
                .call(&["HGET", &key(&name), "s"])
                .text()
                .starts_with("1i"),
            "{name} is idle"
        );
    }
}

/// A future whose reply has come and that is not polled holds up no other, without any time limit.
#[tokio::test]
async fn a_caller_that_is_not_polled_holds_up_no_other() {
    let redis = Redis::start();
    let client = warm(&format!("{}?request_timeout=600s", redis.url())).await;
    redis.pause();
    let mut looking_away = Vec::new();
    for number in 0..4 {
        let mutex = long(&client, &format!("away-{number}"));
        let mut acquiring = Box::pin(async move { mutex.acquire().await });
        assert!(
            poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context).is_pending())).await
        );
        looking_away.push(acquiring);
    }
    let asking = ask_at_once(&redis, &client, names(TASKS)).await;
    redis.resume();
    release_all(guards(asking).await).await;
    for acquiring in looking_away {
        give_back(soon("a grant", acquiring).await.expect("a grant")).await;
    }
}

/// Claims for one name too: first come, first served, with rising fences.
#[tokio::test]
async fn claims_for_one_name_in_one_batch_queue_in_order() {
    let redis = Redis::start();
    let client = warm(&redis.url()).await;
    let asking = ask_at_once(&redis, &client, (0..TASKS).map(|_| "one".to_owned())).await;
    redis.resume();
    let mut last = None;
    for asked in asking {
        let guard = soon("its turn", asked)
            .await
            .expect("no panic")
            .expect("a grant");
        assert!(last < Some(guard.fence()));
        last = Some(guard.fence());
        give_back(guard).await;
    }
    assert_eq!(fields(&redis, "one"), 1);
}
