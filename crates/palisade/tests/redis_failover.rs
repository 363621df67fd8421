//! A failover while locks are held and waited for: of a primary under sentinels that is killed or
//! paused, and of one behind an address that leads to the new primary afterwards.

#![cfg(feature = "redis")]

mod common;

use std::time::{Duration, Instant};

use common::redis::{
    Confirmed, LONG, connect, gets_in, give_back, in_line, key, rise, some_gets_in, soon, wait_for,
};
use palisade::{Client, Guard, Mutex};
use palisade_conformance::eventually;
use palisade_testkit::proxy::{Protocol, Proxy};
use palisade_testkit::redis::{Redis, Sentinel};

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

/// How many connections of this library a server has: only it uses RESP3 here.
fn connections(redis: &Redis) -> usize {
    redis
        .call(&["CLIENT", "LIST"])
        .text()
        .matches(" resp=3")
        .count()
}

/// Waits until so many clients are subscribed to all sentinels.
async fn all_listen(pair: &Sentinel, clients: usize) {
    eventually("the sentinels are listened to", async || {
        let listeners = |sentinel: &Redis| {
            sentinel
                .call(&["CLIENT", "LIST"])
                .text()
                .matches(" sub=1 ")
                .count()
        };
        pair.sentinels()
            .iter()
            .all(|sentinel| listeners(sentinel) >= clients)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_loses_no_confirmed_grant() {
    let pair = Sentinel::start();
    let (holder, waiter, outside) = (
        connect(pair.url()),
        connect(pair.url()),
        connect(pair.url()),
    );
    let held = long(&holder, "killed").acquire().await.expect("a grant");
    let waiting: Vec<_> = (0..3).map(|_| wait_for(&long(&waiter, "killed"))).collect();
    in_line(&outside, "killed", 3).await;
    let (old, new) = (pair.primary(), pair.replica());
    let confirmed = Confirmed::of(&held);
    old.kill();
    // A claim during the failover waits for the store.
    let early = wait_for(&long(&connect(pair.url()), "early"));
    pair.wait_for_primary(new);
    let switched = Instant::now();
    // A replica had the grant before the client did.
    confirmed.again(&held).await;
    println!("renewed {:?} after the switch", switched.elapsed());
    assert!(held.is_held());
    drop(gets_in(early).await);
    // New claims, of a client that has known no other primary.
    let fresh = soon("a new claim", long(&connect(pair.url()), "fresh").acquire())
        .await
        .expect("a grant");
    assert!(fresh.is_held());
    println!("new claims {:?} after the switch", switched.elapsed());
    let mut fences = vec![held.fence()];
    give_back(held).await;
    // All waiters are granted, in any order: a place in line need not have reached the replica.
    let mut rest = waiting;
    while !rest.is_empty() {
        let next = some_gets_in(&mut rest).await;
        fences.push(next.fence());
        give_back(next).await;
    }
    rise(&fences);
    println!("all in {:?} after the switch", switched.elapsed());
}

/// The primary is paused, replaced and resumed: for some seconds it still acts as the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_comes_back_is_not_written_to() {
    let pair = Sentinel::start();
    let (holder, waiter, idle) = (
        connect(pair.url()),
        connect(pair.url()),
        connect(pair.url()),
    );
    let held = long(&holder, "paused").acquire().await.expect("a grant");
    let waiting = wait_for(&long(&waiter, "paused"));
    in_line(&idle, "paused", 1).await;
    // Is connected, and sends no request meanwhile.
    give_back(long(&idle, "before").acquire().await.expect("a grant")).await;
    all_listen(&pair, 3).await;
    let (old, new) = (pair.primary(), pair.replica());
    let confirmed = Confirmed::of(&held);
    old.pause();
    pair.wait_for_primary(new);
    let switched = Instant::now();
    confirmed.again(&held).await;
    // All three clients know of it, also the idle one.
    eventually("all have gone over", async || connections(new) >= 3).await;
    println!("gone over {:?} after the switch", switched.elapsed());
    old.resume();
    assert_eq!(
        old.call(&["ROLE"]).list()[0].text(),
        "master",
        "it does not know yet"
    );
    for (number, client) in [&idle, &holder, &waiter].into_iter().enumerate() {
        let name = format!("after-{number}");
        let guard = soon("a new claim", long(client, &name).acquire())
            .await
            .expect("a grant");
        assert_eq!(
            new.call(&["EXISTS", &key(&name)]).int(),
            Some(1),
            "granted by the new primary"
        );
        assert_eq!(
            old.call(&["EXISTS", &key(&name)]).int(),
            Some(0),
            "and not by the old one"
        );
        give_back(guard).await;
    }
    let fence = held.fence();
    give_back(held).await;
    let next = gets_in(waiting).await;
    rise(&[fence, next.fence()]);
    assert!(next.is_held());
}

/// Without a subscription to the sentinels: the silence of the primary is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_primary_is_left_while_a_request_is_in_flight() {
    let pair = Sentinel::start();
    let client = connect(pair.url());
    give_back(long(&client, "before").acquire().await.expect("a grant")).await;
    let (old, new) = (pair.primary(), pair.replica());
    old.pause();
    // In flight to a server that does not answer.
    let waiting = wait_for(&long(&client, "during"));
    pair.wait_for_primary(new);
    let switched = Instant::now();
    let guard = gets_in(waiting).await;
    println!("granted {:?} after the switch", switched.elapsed());
    assert_eq!(new.call(&["EXISTS", &key("during")]).int(), Some(1));
    assert!(guard.is_held());
}

/// A virtual address, a DNS name or a proxy leads to the new primary. The old one is its replica
/// now, keeps the connections that it has, and refuses all writes.
async fn a_failover_behind_one_address_costs_no_grant(words: &str) {
    let (old, new) = (Redis::start(), Redis::start());
    follow(&new, &old).await;
    let address = old.address();
    let starts = std::thread::spawn(move || Proxy::speaking(Protocol::Redis, address));
    let proxy = starts.join().expect("a proxy");
    let url = format!("redis://{}{words}", proxy.address());
    let (holder, waiter, outside) = (connect(&url), connect(&url), connect(new.url()));
    // The renewals have their own connection from the first renewal on.
    let held = holder
        .mutex("vip")
        .lease(Duration::from_secs(6))
        .store_wait(LONG)
        .acquire()
        .await
        .expect("a grant");
    let waiting = wait_for(&long(&waiter, "vip"));
    renewed(&held).await;
    eventually("the replica has the line", async || {
        new.call(&["HLEN", &key("vip")]).int() == Some(3)
    })
    .await;
    new.call(&["REPLICAOF", "NO", "ONE"]);
    proxy.point_at(new.address());
    follow(&old, &new).await;
    let switched = Instant::now();
    let confirmed = Confirmed::of(&held);
    tokio::select! {
        reason = held.lost() => panic!("{words:?}: lost {:?} after the switch: {reason:?}", switched.elapsed()),
        () = confirmed.again(&held) => println!("{words:?}: renewed {:?} after the switch", switched.elapsed()),
    }
    // A claim that the old primary refuses is sent again: no caller sees the failover.
    let idle = soon("an answer", holder.mutex("idle").try_acquire())
        .await
        .expect("an answer")
        .expect("free");
    let line = outside.show("vip").await.expect("an answer").expect("held");
    assert_eq!(
        line.holders[0].fence,
        held.fence(),
        "renewed on the new primary"
    );
    let fence = held.fence();
    give_back(held).await;
    rise(&[fence, gets_in(waiting).await.fence()]);
    give_back(idle).await;
}

/// Makes one server the replica of another, and waits until it is up to date.
async fn follow(replica: &Redis, primary: &Redis) {
    let (ip, port) = (
        primary.address().ip().to_string(),
        primary.address().port().to_string(),
    );
    replica.call(&["REPLICAOF", &ip, &port]);
    eventually("the replica is there", async || {
        replica
            .call(&["INFO", "replication"])
            .text()
            .contains("master_link_status:up")
    })
    .await;
}

/// The store confirms the lease again, before it is lost.
async fn renewed(held: &Guard) {
    let confirmed = Confirmed::of(held);
    tokio::select! {
        reason = held.lost() => panic!("lost: {reason:?}"),
        () = confirmed.again(held) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_locks_follow_an_address_to_the_new_primary() {
    a_failover_behind_one_address_costs_no_grant("").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_locks_that_replicas_confirm_follow_an_address_too() {
    a_failover_behind_one_address_costs_no_grant("?replicas=1").await;
}
