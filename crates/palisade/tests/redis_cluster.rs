//! A cluster whose slots move, and whose primaries are killed or paused, while locks are held and
//! waited for.

#![cfg(feature = "redis")]

mod common;

use std::time::Instant;

use common::ms;
use common::redis::{
    Confirmed, LONG, connect, gets_in, give_back, in_line, is_renewed, key, rise, some_gets_in,
    soon, wait_for,
};
use palisade::{Client, Mutex};
use palisade_conformance::eventually;
use palisade_testkit::redis::{Cluster, Redis};

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

fn id(node: &Redis) -> String {
    node.call(&["CLUSTER", "MYID"]).text()
}

fn port(node: &Redis) -> String {
    node.address().port().to_string()
}

fn ok(node: &Redis, words: &[&str]) {
    assert_eq!(node.call(words).text(), "OK", "{words:?}");
}

/// Names whose keys are on these servers, so many on each.
fn names_on<'a>(
    cluster: &'a Cluster,
    about: &str,
    wanted: impl Fn(&Redis) -> bool + 'a,
    count: usize,
) -> Vec<String> {
    let names = (0..).map(|number| format!("{about}-{number}"));
    names
        .filter(|name| wanted(cluster.primary_of(&key(name))))
        .take(count)
        .collect()
}

/// A key with a holder and a waiter is on its old server, then redirected by ASK, then moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_takes_its_line_along() {
    let cluster = Cluster::start();
    let (holder, waiter, outside) = (
        connect(cluster.url()),
        connect(cluster.url()),
        connect(cluster.url()),
    );
    let held = holder
        .mutex("moves")
        .lease(ms(3000))
        .acquire()
        .await
        .expect("a grant");
    let mut waiting: Vec<_> = (0..3).map(|_| wait_for(&long(&waiter, "moves"))).collect();
    in_line(&outside, "moves", 3).await;
    let from = cluster.primary_of(&key("moves"));
    let to = cluster.nodes().iter().find(|node| {
        let role = node.call(&["ROLE"]).list()[0].text();
        role == "master" && node.address() != from.address()
    });
    let to = to.expect("another primary");
    let slot = from.call(&["CLUSTER", "KEYSLOT", &key("moves")]).text();
    ok(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    ok(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    is_renewed(&held).await;
    ok(
        from,
        &[
            "MIGRATE",
            &to.ip().to_string(),
            &port(to),
            &key("moves"),
            "0",
            "5000",
        ],
    );
    // Now the old server says ASK: for renewals, releases, the waiters' heartbeats and new claims.
    is_renewed(&held).await;
    in_line(&outside, "moves", 3).await;
    let mut fences = vec![held.fence()];
    give_back(held).await;
    let second = some_gets_in(&mut waiting).await;
    fences.push(second.fence());
    waiting.push(wait_for(&long(&holder, "moves")));
    in_line(&outside, "moves", 3).await;
    for node in [to, from] {
        ok(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
    }
    // And now MOVED.
    give_back(second).await;
    while !waiting.is_empty() {
        let next = some_gets_in(&mut waiting).await;
        fences.push(next.fence());
        give_back(next).await;
    }
    rise(&fences);
    assert_eq!(to.call(&["EXISTS", &key("moves")]).int(), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_loses_no_confirmed_grant() {
    let cluster = Cluster::start();
    let (holder, waiter, outside) = (
        connect(cluster.url()),
        connect(cluster.url()),
        connect(cluster.url()),
    );
    let held = long(&holder, "killed").acquire().await.expect("a grant");
    let waiting = wait_for(&long(&waiter, "killed"));
    in_line(&outside, "killed", 1).await;
    let confirmed = Confirmed::of(&held);
    let old = cluster.primary_of(&key("killed"));
    let old_port = old.address();
    old.kill();
    eventually("another primary", async || {
        cluster.primary_of(&key("killed")).address() != old_port
    })
    .await;
    cluster.wait_served();
    let promoted = Instant::now();
    confirmed.again(&held).await;
    println!("renewed {:?} after the promotion", promoted.elapsed());
    let fresh = soon(
        "a new claim",
        long(&connect(cluster.url()), "fresh").acquire(),
    )
    .await
    .expect("a grant");
    give_back(fresh).await;
    let fence = held.fence();
    give_back(held).await;
    rise(&[fence, gets_in(waiting).await.fence()]);
    println!("all in {:?} after the promotion", promoted.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_primary_is_replaced_and_left() {
    let cluster = Cluster::start();
    let (holder, waiter, outside) = (
        connect(cluster.url()),
        connect(cluster.url()),
        connect(cluster.url()),
    );
    let held = long(&holder, "still").acquire().await.expect("a grant");
    let waiting = wait_for(&long(&waiter, "still"));
    in_line(&outside, "still", 1).await;
    let old = cluster.primary_of(&key("still"));
    old.pause();
    let asks = cluster
        .nodes()
        .iter()
        .find(|node| node.address() != old.address())
        .expect("six");
    let slot = asks.call(&["CLUSTER", "KEYSLOT", &key("still")]).int();
    eventually("another primary", async || {
        let ranges = asks.call(&["CLUSTER", "SLOTS"]);
        let range = ranges
            .list()
            .iter()
            .find(|range| range.list()[0].int() <= slot && slot <= range.list()[1].int());
        let primary = range.and_then(|range| range.list()[2].list()[1].int());
        primary.is_some_and(|primary| primary != i64::from(old.address().port()))
    })
    .await;
    let promoted = Instant::now();
    let fence = held.fence();
    give_back(held).await;
    let next = gets_in(waiting).await;
    rise(&[fence, next.fence()]);
    println!("handed over {:?} after the promotion", promoted.elapsed());
    old.resume();
    assert!(next.is_held());
}

/// Neither the primary nor its replica answers: names on other servers are renewed, claimed and
/// handed over as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_hangs_holds_up_no_other() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        ok(
            node,
            &["CONFIG", "SET", "cluster-require-full-coverage", "no"],
        );
    }
    let client = connect(cluster.url());
    let hung = cluster.nodes()[0].address();
    let hangs = |node: &Redis| node.address() == hung;
    let there = names_on(&cluster, "hangs", hangs, 4);
    let elsewhere = names_on(&cluster, "works", |node| !hangs(node), 8);
    let mut guards = Vec::new();
    for name in &elsewhere {
        guards.push(
            client
                .mutex(name)
                .lease(ms(2000))
                .acquire()
                .await
                .expect("a grant"),
        );
    }
    let mut stuck = Vec::new();
    for name in &there {
        stuck.push(
            client
                .mutex(name)
                .lease(ms(2000))
                .acquire()
                .await
                .expect("a grant"),
        );
    }
    let nodes = cluster.nodes()[0].call(&["CLUSTER", "NODES"]).text();
    let its_replica = |node: &&Redis| {
        let line = nodes
            .lines()
            .find(|line| line.contains(&format!(":{}@", node.address().port())));
        line.is_some_and(|line| line.contains(&id(&cluster.nodes()[0])) && line.contains("slave"))
    };
    let replica = cluster
        .nodes()
        .iter()
        .find(its_replica)
        .expect("one replica");
    replica.pause();
    cluster.nodes()[0].pause();
    // Grants on that shard are lost by the clock, one lease later. Grants on the others are renewed
    // all the time.
    for guard in &stuck {
        assert_eq!(
            common::redis::is_told(guard).await,
            palisade::LossReason::Expired
        );
    }
    for guard in &guards {
        is_renewed(guard).await;
        assert!(guard.is_held());
    }
    // New claims too, also of a new client.
    for client in [&client, &connect(cluster.url())] {
        let begun = Instant::now();
        give_back(
            soon("a new claim", long(client, "works-too-0").acquire())
                .await
                .expect("a grant"),
        )
        .await;
        println!("a new claim took {:?}", begun.elapsed());
    }
    assert!(guards.iter().all(palisade::Guard::is_held));
    cluster.nodes()[0].resume();
    replica.resume();
}

/// The inboxes that are subscribed on a node.
fn inboxes(node: &Redis) -> Vec<String> {
    node.call(&["PUBSUB", "CHANNELS"])
        .list()
        .iter()
        .map(palisade_testkit::resp::Reply::text)
        .collect()
}

/// The server answers as before, but messages published elsewhere do not reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_moves_away_from_a_server_that_left_the_cluster() {
    let cluster = Cluster::start();
    let (holder, waiter, outside) = (
        connect(cluster.url()),
        connect(cluster.url()),
        connect(cluster.url()),
    );
    let leaves = cluster.primary_of(&key("first"));
    let stays = cluster.nodes().iter().find(|node| {
        let role = node.call(&["ROLE"]).list()[0].text();
        role == "master" && node.address() != leaves.address()
    });
    let stays = stays.expect("another primary");
    // A client subscribes its inbox on the server where it waits first.
    let held = long(&holder, "first").acquire().await.expect("a grant");
    let waiting = wait_for(&long(&waiter, "first"));
    in_line(&outside, "first", 1).await;
    let listens = inboxes(leaves);
    assert!(!listens.is_empty(), "the waiter listens there");
    give_back(held).await;
    give_back(gets_in(waiting).await).await;
    let mut reshard = std::process::Command::new("redis-cli");
    reshard.args([
        "--cluster",
        "reshard",
        &stays.address().to_string(),
        "--cluster-from",
        &id(leaves),
    ]);
    reshard.args([
        "--cluster-to",
        &id(stays),
        "--cluster-slots",
        "16384",
        "--cluster-yes",
        "--cluster-pipeline",
        "100",
    ]);
    let moved = reshard.output().expect("redis-cli runs");
    assert!(
        moved.status.success(),
        "{}",
        String::from_utf8_lossy(&moved.stdout)
    );
    let gone = id(leaves);
    ok(leaves, &["CLUSTER", "RESET", "HARD"]);
    for node in cluster
        .nodes()
        .iter()
        .filter(|node| node.address() != leaves.address())
    {
        let _ = node.call(&["CLUSTER", "FORGET", &gone]);
    }
    let moved = async || {
        let others = || {
            cluster
                .nodes()
                .iter()
                .filter(|node| node.address() != leaves.address())
        };
        listens
            .iter()
            .all(|inbox| others().any(|node| inboxes(node).contains(inbox)))
    };
    eventually("the inbox is elsewhere", moved).await;
    let name = &names_on(
        &cluster,
        "later",
        |node| node.address() == stays.address(),
        1,
    )[0];
    let held = long(&holder, name).acquire().await.expect("a grant");
    let waiting = wait_for(&long(&waiter, name));
    in_line(&outside, name, 1).await;
    give_back(held).await;
    give_back(gets_in(waiting).await).await;
}
