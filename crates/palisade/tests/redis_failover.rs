//! A primary with a replica under sentinels, which is killed or stands still while locks are held and waited for.

#![cfg(feature = "redis")]

mod common;

use std::time::Instant;

use common::redis::{Confirmed, LONG, connect, gets_in, give_back, in_line, key, rise, some_gets_in, soon, wait_for};
use palisade::{Client, Mutex};
use palisade_conformance::eventually;
use palisade_testkit::redis::{Redis, Sentinel};

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

/// How many connections of this library a server has: nobody else here speaks the new protocol.
fn connections(redis: &Redis) -> usize {
    redis.call(&["CLIENT", "LIST"]).text().matches(" resp=3").count()
}

/// So many clients listen to all sentinels.
async fn all_listen(pair: &Sentinel, clients: usize) {
    eventually("the sentinels are listened to", async || {
        let listeners = |sentinel: &Redis| sentinel.call(&["CLIENT", "LIST"]).text().matches(" sub=1 ").count();
        pair.sentinels().iter().all(|sentinel| listeners(sentinel) >= clients)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_costs_nobody_a_confirmed_grant() {
    let pair = Sentinel::start();
    let (holder, waiter, outside) = (connect(pair.url()), connect(pair.url()), connect(pair.url()));
    let held = long(&holder, "killed").acquire().await.expect("a grant");
    let waiting: Vec<_> = (0..3).map(|_| wait_for(&long(&waiter, "killed"))).collect();
    in_line(&outside, "killed", 3).await;
    let (old, new) = (pair.primary(), pair.replica());
    let confirmed = Confirmed::of(&held);
    old.kill();
    // One who comes while nobody is there waits for the store.
    let early = wait_for(&long(&connect(pair.url()), "early"));
    pair.wait_for_primary(new);
    let switched = Instant::now();
    // A replica had it before anybody held it.
    confirmed.again(&held).await;
    println!("renewed {:?} after the switch", switched.elapsed());
    assert!(held.is_held());
    drop(gets_in(early).await);
    // New claims, of somebody who has never known another primary.
    let fresh = soon("a new claim", long(&connect(pair.url()), "fresh").acquire()).await.expect("a grant");
    assert!(fresh.is_held());
    println!("new claims {:?} after the switch", switched.elapsed());
    let mut fences = vec![held.fence()];
    give_back(held).await;
    // Each gets in, in whatever order: a place in line need not have reached the replica.
    let mut rest = waiting;
    while !rest.is_empty() {
        let next = some_gets_in(&mut rest).await;
        fences.push(next.fence());
        give_back(next).await;
    }
    rise(&fences);
    println!("all in {:?} after the switch", switched.elapsed());
}

/// It stands still, is replaced, and goes on as if nothing had been: for some seconds it takes itself for the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_comes_back_is_not_written_to() {
    let pair = Sentinel::start();
    let (holder, waiter, idle) = (connect(pair.url()), connect(pair.url()), connect(pair.url()));
    let held = long(&holder, "paused").acquire().await.expect("a grant");
    let waiting = wait_for(&long(&waiter, "paused"));
    in_line(&idle, "paused", 1).await;
    // Has connections in this runtime too, and asks for nothing while it happens.
    give_back(long(&idle, "before").acquire().await.expect("a grant")).await;
    all_listen(&pair, 3).await;
    let (old, new) = (pair.primary(), pair.replica());
    let confirmed = Confirmed::of(&held);
    old.pause();
    pair.wait_for_primary(new);
    let switched = Instant::now();
    confirmed.again(&held).await;
    // All three have heard of it, also the one that asked nothing.
    eventually("all have gone over", async || connections(new) >= 3).await;
    println!("gone over {:?} after the switch", switched.elapsed());
    old.resume();
    assert_eq!(old.call(&["ROLE"]).list()[0].text(), "master", "it does not know yet");
    for (number, client) in [&idle, &holder, &waiter].into_iter().enumerate() {
        let name = format!("after-{number}");
        let guard = soon("a new claim", long(client, &name).acquire()).await.expect("a grant");
        assert_eq!(new.call(&["EXISTS", &key(&name)]).int(), Some(1), "granted by the new primary");
        assert_eq!(old.call(&["EXISTS", &key(&name)]).int(), Some(0), "and not by the old one");
        give_back(guard).await;
    }
    let fence = held.fence();
    give_back(held).await;
    let next = gets_in(waiting).await;
    rise(&[fence, next.fence()]);
    assert!(next.is_held());
}

/// Nobody is subscribed and nobody asks the sentinels: the silence of the primary is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_stands_still_is_left_by_whoever_waits_for_its_answer() {
    let pair = Sentinel::start();
    let client = connect(pair.url());
    give_back(long(&client, "before").acquire().await.expect("a grant")).await;
    let (old, new) = (pair.primary(), pair.replica());
    old.pause();
    // On its way to a server that does not answer.
    let waiting = wait_for(&long(&client, "during"));
    pair.wait_for_primary(new);
    let switched = Instant::now();
    let guard = gets_in(waiting).await;
    println!("granted {:?} after the switch", switched.elapsed());
    assert_eq!(new.call(&["EXISTS", &key("during")]).int(), Some(1));
    assert!(guard.is_held());
}
