//! Three etcd servers of which some fail, with a lock that is held and waited for meanwhile.

#![cfg(feature = "etcd")]

mod common;

use std::time::{Duration, Instant};

use common::actors::{Confirmed, connect, is_renewed, rise};
use common::etcd::{LIMIT, Pair, SHORT, proxy};
use palisade::{Client, LossReason, Released, Status};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Cluster;
use palisade_testkit::lan::Lan;
use palisade_testkit::proxy::Way;

/// Longer than it takes until another leads, on a machine with much else to do.
const LEASE: Duration = Duration::from_secs(15);

fn client(three: &Cluster) -> Client {
    connect(format!(
        "etcd://{}/lock?request_timeout=2s&connect_timeout=1s",
        three.addresses()
    ))
}

fn clients(three: &Cluster) -> [Client; 3] {
    [client(three), client(three), client(three)]
}

async fn begin(clients: &[Client; 3], name: &str, lease: Duration) -> Pair {
    Pair::begin(clients.each_ref(), name, lease).await
}

/// A client gets a lock, whichever member it begins at.
async fn new_claims_succeed(three: &Cluster, what: &str) {
    for number in 0..4 {
        let fresh = client(three);
        let guard = fresh
            .mutex(format!("new-{what}-{number}"))
            .acquire_timeout(LIMIT)
            .await
            .expect("two of three are enough");
        assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_costs_no_lock() {
    let three = Cluster::start();
    let clients = clients(&three);
    let pair = begin(&clients, "killed", LEASE).await;
    let confirmed = Confirmed::of(&pair.held);
    let old = three.leader();
    old.kill();
    new_claims_succeed(&three, "killed").await;
    confirmed.again(&pair.held).await;
    pair.stands();
    let next = pair.hands_over().await;
    old.restart();
    eventually("the next one is sure", async || {
        next.status() == Status::Held
    })
    .await;
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
}

/// One of three is down, and it is not the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_is_down() {
    let three = Cluster::start();
    let clients = clients(&three);
    let leader = three.leader();
    let down = three
        .nodes()
        .iter()
        .find(|node| node.address() != leader.address())
        .expect("a follower");
    let pair = begin(&clients, "down", LEASE).await;
    down.kill();
    new_claims_succeed(&three, "killed").await;
    pair.stands();
    drop(pair.hands_over().await);
    down.restart();
    // The same, of one that hangs.
    let pair = begin(&clients, "hangs", LEASE).await;
    down.pause();
    new_claims_succeed(&three, "paused").await;
    pair.stands();
    let next = pair.hands_over().await;
    down.resume();
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
}

/// For less than the lease: another member leads meanwhile, and no grant is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hangs_is_replaced() {
    let three = Cluster::start();
    let clients = clients(&three);
    let pair = begin(&clients, "hangs", LEASE).await;
    let confirmed = Confirmed::of(&pair.held);
    let old = three.leader();
    old.pause();
    new_claims_succeed(&three, "hangs").await;
    confirmed.again(&pair.held).await;
    pair.stands();
    // It wakes, and thinks that it leads.
    old.resume();
    let next = pair.hands_over().await;
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
}

/// For longer than the lease, and the holder is cut off besides: it is told by its own clock, and
/// then the next gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hangs_for_longer_than_the_lease() {
    let three = Cluster::start();
    let [_, waiter, outside] = clients(&three);
    let leader = three.leader();
    let follower = three
        .nodes()
        .iter()
        .find(|node| node.address() != leader.address())
        .expect("a follower");
    let proxy = proxy(follower);
    let holder = connect(format!("etcd://{}/lock", proxy.address()));
    let pair = Pair::begin([&holder, &waiter, &outside], "paused", SHORT).await;
    leader.pause();
    proxy.stall(Way::Both);
    let (reason, next) = pair.loses_it_to_the_next().await;
    assert_eq!(reason, LossReason::Expired);
    rise(&[palisade::Fence::NONE, next.fence()]);
    assert!(three.leader_after(leader).is_running());
    leader.resume();
}

/// A leader is paused, is replaced, wakes, and answers a keep-alive out of its memory before it
/// knows; then the holder is cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keep_alive_of_a_deposed_leader_is_not_counted() {
    // A third of it is longer than an election takes, and shorter than the time for which a
    // keep-alive is waited for.
    let lease = Duration::from_secs(18);
    let three = Cluster::start();
    let old = three.leader();
    let others: Vec<_> = three
        .nodes()
        .iter()
        .map(|node| node.address())
        .filter(|address| *address != old.address())
        .collect();
    let others = others
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let proxy = proxy(old);
    let holder = connect(format!("etcd://{}/lock", proxy.address()));
    let [waiter, outside] = [(); 2].map(|()| connect(format!("etcd://{others}/lock")));
    let pair = Pair::begin([&holder, &waiter, &outside], "deposed", lease).await;
    // By now its key is watched, and nothing but the next keep-alive is sent.
    is_renewed(&pair.held).await;
    old.pause();
    assert!(three.leader_after(old).is_running());
    let sent = lease * 2 / 3 - Duration::from_millis(500);
    eventually("the keep-alive is in the leader's socket", async || {
        pair.held.remaining() < sent
    })
    .await;
    let renewed = Confirmed::of(&pair.held);
    old.resume();
    // By the old leader's word at once, or soon after by that of the new one, which then knows of
    // it.
    let renewed = tokio::time::timeout(Duration::from_secs(3), renewed.again(&pair.held)).await;
    proxy.stall(Way::Both);
    println!(
        "renewed before the cut: {}; {:?} left",
        renewed.is_ok(),
        pair.held.remaining()
    );
    let (reason, _next) = pair.loses_it_to_the_next().await;
    assert_eq!(reason, LossReason::Expired);
}

/// A holder that dies just before its leader: leases begin anew with the next leader, and so the
/// name is free a lease later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_keeps_the_name_for_a_whole_lease_after_a_new_leader() {
    let lease = Duration::from_secs(4);
    let three = Cluster::start();
    let [_, waiter, outside] = clients(&three);
    let leader = three.leader();
    let follower = three
        .nodes()
        .iter()
        .find(|node| node.address() != leader.address())
        .expect("a follower");
    let proxy = proxy(follower);
    let holder = connect(format!("etcd://{}/lock", proxy.address()));
    let pair = Pair::begin([&holder, &waiter, &outside], "dies", lease).await;
    let begun = Instant::now();
    proxy.stall(Way::Both);
    eventually("half of the lease is over", async || {
        begun.elapsed() > lease / 2
    })
    .await;
    leader.kill();
    let killed = Instant::now();
    let (reason, _next) = pair.loses_it_to_the_next().await;
    let took = killed.elapsed();
    println!(
        "{took:?} after the leader was killed, {:?} after the holder died",
        begun.elapsed()
    );
    assert_eq!(reason, LossReason::Expired);
    assert!(
        took >= lease,
        "the page says a whole lease, and it was {took:?}"
    );
    // An election, the lease, and the server's own second; the rest is for busy machines.
    assert!(took < lease * 2 + Duration::from_secs(10), "{took:?}");
}

/// Cables are pulled: first the leader's from all others, then a leader's from the other members
/// only, so that we still reach it and it has nothing to say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_cut_off_is_left() {
    let lan = Lan::new();
    let hosts = [lan.host(), lan.host(), lan.host()];
    let three = std::thread::spawn({
        let hosts = hosts.clone();
        move || Cluster::start_on(&hosts)
    });
    let three = three.join().expect("a cluster");
    let clients = clients(&three);
    for (round, from_us_too) in [true, false].into_iter().enumerate() {
        let pair = begin(&clients, &format!("cut-{round}"), LEASE).await;
        let confirmed = Confirmed::of(&pair.held);
        let leader = three.leader();
        let at = three
            .nodes()
            .iter()
            .position(|node| node.address() == leader.address())
            .expect("one of them");
        let others = || {
            hosts
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .map(|(_, host)| host)
        };
        match from_us_too {
            true => hosts[at].cut(),
            false => others().for_each(|other| hosts[at].cut_from(other)),
        }
        let new = three.leader_after(leader);
        println!("{} leads after {}", new.address(), leader.address());
        new_claims_succeed(&three, &format!("cut-{round}")).await;
        confirmed.again(&pair.held).await;
        pair.stands();
        let next = pair.hands_over().await;
        match from_us_too {
            true => hosts[at].heal(),
            false => others().for_each(|other| hosts[at].heal_with(other)),
        }
        assert!(next.is_held());
        drop(next);
        eventually("all three are one again", async || {
            three
                .nodes()
                .iter()
                .all(|node| node.try_etcdctl(&["endpoint", "health"]).is_ok())
        })
        .await;
    }
}
