//! What many tasks of one client ask at the same time goes to the server together. Nobody may notice, but for what it costs.

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

/// A client that is connected and at home, and whose server has its scripts.
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

/// All of these ask while the server is paused, so that all but the first find others on their way.
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
    // One thread: they have all been polled when this task is again.
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
    // Alone it is as ever.
    let since = count(&redis);
    for _ in 0..10 {
        cycle(long(&client, "n0")).await;
    }
    assert_eq!(since.scripts(), 20);
}

#[tokio::test]
async fn one_key_of_another_kind_hurts_nobody_else() {
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
        "they went together: {}",
        since.scripts()
    );
}

/// Redis looks at the rights to all keys before it does anything.
#[tokio::test]
async fn one_key_that_is_denied_hurts_nobody_else() {
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

/// One that belongs to a cluster wants the keys of different slots apart, though it has them all.
#[tokio::test]
async fn a_server_that_takes_no_keys_together_is_asked_for_each() {
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
async fn a_server_that_has_lost_the_scripts_is_sent_them_again() {
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
        "they went together: {}",
        since.scripts()
    );
}

/// Two claims that may queue, side by side: only a request that has several names has this.
fn is_group(request: &[u8]) -> bool {
    request
        .windows(4)
        .any(|part| part == b"c\x02c\x02" || part == b"r\x03r\x03")
}

#[tokio::test]
async fn a_group_whose_reply_is_lost_was_done_once() {
    let redis = Redis::start();
    let address = redis.address();
    let proxy = std::thread::spawn(move || Proxy::speaking(Protocol::Redis, address))
        .join()
        .expect("a proxy");
    let client = warm(&format!("redis://{}", proxy.address())).await;
    proxy.lose_reply_to(is_group);
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
    proxy.lose_reply_to(is_group);
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
async fn connections_that_end_with_a_crowd_on_its_way_lose_nobody() {
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
async fn who_leaves_while_others_are_on_their_way_leaves_nothing() {
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

/// A future that is not polled has its answer and does not look. No time limit may be what helps the others.
#[tokio::test]
async fn who_does_not_look_for_his_answer_holds_nobody_up() {
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

/// Those of one name, too: first come, first served, and fences that rise.
#[tokio::test]
async fn those_who_ask_for_one_name_together_stand_in_line() {
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
