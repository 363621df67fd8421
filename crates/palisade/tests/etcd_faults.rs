//! One etcd server under faults, with a lock that is held and waited for meanwhile.

#![cfg(feature = "etcd")]

mod common;

use std::time::Duration;

use common::actors::{Confirmed, connect, in_line, is_renewed};
use common::etcd::{LIMIT, LONG, Metrics, Pair, SHORT, client, keys, leases, line_is, proxy, revoke_all};
use palisade::store::Revoked;
use palisade::{Client, LossReason, Released, Status};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::proxy::{Proxy, Way};

/// A server, and a proxy for those who hold and wait; the onlooker goes around it.
struct Scene {
    server: Etcd,
    proxy: Proxy,
    holder: Client,
    waiter: Client,
    outside: Client,
}

impl Scene {
    fn start() -> Scene {
        let server = Etcd::start();
        let proxy = proxy(&server);
        let url = format!("etcd://{}/lock?request_timeout=2s", proxy.address());
        Scene { holder: connect(&url), waiter: connect(&url), outside: client(&server), server, proxy }
    }

    async fn begin(&self, name: &str, lease: Duration) -> Pair {
        Pair::begin([&self.holder, &self.waiter, &self.outside], name, lease).await
    }
}

/// A client of two addresses of one server, which asks through the proxy just now. To it they are two members.
async fn of_two_members(server: &Etcd, proxy: &Proxy) -> Client {
    let url = format!("etcd://{},{}/lock", proxy.address(), server.address());
    loop {
        let client = connect(&url);
        let warm = client.mutex("warm").lease(SHORT).acquire().await.expect("a grant");
        assert_eq!(warm.release().await.expect("an answer"), Released::Done);
        if proxy.connections() > 0 {
            return client;
        }
    }
}

// Connections.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_are_reset_at_once() {
    let scene = Scene::start();
    let pair = scene.begin("reset", LONG).await;
    for _ in 0..5 {
        scene.proxy.reset();
        eventually("connected again", async || scene.proxy.connections() > 0).await;
    }
    pair.stands();
    let next = pair.hands_over().await;
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
    assert_eq!(keys(&scene.server), [""; 0]);
}

/// Nothing arrives any more and nobody says so. The holder's renewal finds out, and the waiter's heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_died_without_a_word_are_found_out() {
    let scene = Scene::start();
    let pair = scene.begin("frozen", Duration::from_secs(15)).await;
    let confirmed = Confirmed::of(&pair.held);
    scene.proxy.freeze();
    confirmed.again(&pair.held).await;
    pair.stands();
    drop(pair.hands_over().await);
}

/// The claim has arrived, and its answer has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_finds_its_one_grant() {
    let scene = Scene::start();
    // Who waits with so short a lease waits on the session of those who hold.
    let lease = Duration::from_secs(5);
    let warm = scene.holder.mutex("warm").lease(lease).acquire().await.expect("a grant");
    for (round, waits) in [false, true].into_iter().enumerate() {
        let name = format!("answer-{round}");
        let first = match waits {
            true => Some(scene.outside.mutex(&name).acquire().await.expect("a grant")),
            false => None,
        };
        scene.proxy.stall(Way::ToClient);
        let lock = scene.holder.mutex(&name).lease(lease).store_wait(LONG);
        let claiming = tokio::spawn(async move { lock.acquire().await });
        line_is(&scene.outside, &name, (1, usize::from(waits))).await;
        let made = keys(&scene.server);
        scene.proxy.reset();
        scene.proxy.heal();
        let fence = first.as_ref().map(|guard| guard.fence());
        drop(first);
        let guard = tokio::time::timeout(LIMIT, claiming).await.expect("a grant in time").expect("no panic").expect("a grant");
        let line = scene.outside.show(&name).await.expect("an answer").expect("held");
        assert_eq!((line.holders.len(), line.waiters.len()), (1, 0));
        assert_eq!(line.holders[0].fence, guard.fence());
        assert!(fence.is_none_or(|fence| fence < guard.fence()));
        let now = keys(&scene.server);
        assert!(now.iter().all(|key| made.contains(key)), "another key was made: {made:?}, {now:?}");
        assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    }
    drop(warm);
}

/// A release that hangs at one member for longer than the lease, while the session lives on by another: the key must not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_did_not_arrive_is_made_good() {
    let server = Etcd::start();
    let (proxy, outside) = (proxy(&server), client(&server));
    let ours = of_two_members(&server, &proxy).await;
    let kept = ours.mutex("kept").lease(SHORT).acquire().await.expect("a grant");
    let pair = Pair::begin([&ours, &outside, &outside], "left", SHORT).await;
    proxy.stall(Way::Both);
    let next = pair.hands_over().await;
    assert!(next.is_held());
    // The others of its session are none the worse for it, unless the stall has cost them a lease.
    println!("the other one: {:?}", kept.status());
}

/// The server is away for longer than the lease, and the lock is given back meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_while_the_server_is_away_is_made_good() {
    let scene = Scene::start();
    let held = scene.holder.mutex("away").lease(SHORT).acquire().await.expect("a grant");
    scene.server.kill();
    drop(held);
    // So long does a client try to release.
    tokio::time::sleep(SHORT * 2).await;
    scene.server.restart();
    // The same session as before, if nobody minds: and with it the key that should be gone.
    let other = scene.holder.mutex("other").lease(SHORT).acquire_timeout(LIMIT).await.expect("a grant");
    let next = scene.waiter.mutex("away").lease(SHORT).acquire_timeout(LIMIT).await.expect("nobody holds it");
    assert!(next.is_held() && other.is_held());
}

/// A member hangs that has the watches: the holder does not go on believing by their word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_hangs_is_not_believed() {
    let lease = Duration::from_secs(3);
    let server = Etcd::start();
    let (proxy, outside) = (proxy(&server), client(&server));
    let ours = of_two_members(&server, &proxy).await;
    let held = ours.mutex("hung").lease(lease).acquire().await.expect("a grant");
    eventually("its key is watched", async || Metrics::of(&server).watches() > 0).await;
    // By then it was looked at once after that.
    is_renewed(&held).await;
    is_renewed(&held).await;
    proxy.stall(Way::Both);
    is_renewed(&held).await;
    assert_eq!(outside.revoke("hung", held.fence()).await.expect("an answer"), Revoked::Done);
    let mut renewals = 0;
    loop {
        tokio::select! {
            reason = held.lost() => {
                println!("{reason:?} after {renewals} renewals");
                break;
            }
            () = is_renewed(&held) => renewals += 1,
        }
        assert!(renewals <= 4, "renewed {renewals} times though its key was gone");
    }
}

// Servers.

/// Who holds goes on holding, who waits is not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_survived() {
    let scene = Scene::start();
    let pair = scene.begin("restart", Duration::from_secs(15)).await;
    let confirmed = Confirmed::of(&pair.held);
    scene.server.kill();
    scene.server.restart();
    confirmed.again(&pair.held).await;
    pair.stands();
    drop(pair.hands_over().await);
}

/// Nothing answers: the holder is told by its own clock, and nobody else believes before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_longer_than_the_lease_never_makes_two_believers() {
    let scene = Scene::start();
    let pair = scene.begin("paused", SHORT).await;
    scene.server.pause();
    assert_eq!(tokio::time::timeout(LIMIT, pair.held.lost()).await.expect("told"), LossReason::Expired);
    scene.server.resume();
    let (_, next) = pair.loses_it_to_the_next().await;
    eventually("the next one is sure", async || next.status() == Status::Held).await;
}

/// The holder is cut off, and nobody else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_told_before_the_next_is_admitted() {
    let server = Etcd::start();
    let (proxy, outside) = (proxy(&server), client(&server));
    let ours = connect(format!("etcd://{}/lock", proxy.address()));
    for way in [Way::ToServer, Way::ToClient, Way::Both] {
        let pair = Pair::begin([&ours, &outside, &outside], "cut", SHORT).await;
        proxy.stall(way);
        let (reason, next) = pair.loses_it_to_the_next().await;
        assert_eq!(reason, LossReason::Expired, "{way:?}");
        assert_eq!(next.release().await.expect("an answer"), Released::Done);
        proxy.reset();
        proxy.heal();
    }
}

/// Compaction behind the back of those who wait changes nothing for them, with their connections broken or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_during_a_wait_is_survived() {
    let scene = Scene::start();
    for (round, breaks) in [false, true].into_iter().enumerate() {
        let pair = scene.begin(&format!("compacted-{round}"), LONG).await;
        if breaks {
            scene.proxy.refuse();
            scene.proxy.reset();
        }
        for round in 0..20 {
            scene.server.etcdctl(&["put", "noise", &round.to_string()]);
        }
        let answer = scene.server.etcdctl(&["put", "noise", "last", "-w", "json"]);
        let (_, revision) = answer.split_once("\"revision\":").expect("a revision");
        let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
        scene.server.etcdctl(&["compact", &revision]);
        scene.proxy.heal();
        pair.stands();
        drop(pair.hands_over().await);
    }
}

/// Leases that are revoked by hand take all their claims with them. Who held is told, and who waited stands in line again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_leases_are_told_and_nobody_is_lost() {
    let scene = Scene::start();
    let other = scene.holder.mutex("other").lease(LONG).acquire().await.expect("a grant");
    let pair = scene.begin("revoked", LONG).await;
    // The keys of both holders, and of the waiter, and what it waits for.
    eventually("all are watched", async || Metrics::of(&scene.server).watches() >= 4).await;
    assert!(leases(&scene.server).len() >= 2);
    revoke_all(&scene.server);
    let (reason, next) = pair.has_it_dropped().await;
    assert_eq!(reason, LossReason::SessionEnded);
    let told = tokio::time::timeout(LIMIT, other.lost()).await.expect("told long before its next renewal");
    assert_eq!(told, LossReason::SessionEnded);
    assert!(next.is_held());
    let again = scene.holder.mutex("other").acquire_timeout(LIMIT).await.expect("another session");
    assert!(again.fence() > other.fence());
}

/// The session of a waiter alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_is_revoked_stands_in_line_again() {
    let scene = Scene::start();
    let before = leases(&scene.server);
    assert!(before.is_empty());
    let held = scene.holder.mutex("again").lease(LONG).acquire().await.expect("a grant");
    let holders = leases(&scene.server);
    let lock = scene.waiter.mutex("again").lease(LONG).store_wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    in_line(&scene.outside, "again", 1).await;
    let waiters = keys(&scene.server);
    for lease in leases(&scene.server).iter().filter(|lease| !holders.contains(lease)) {
        scene.server.etcdctl(&["lease", "revoke", lease]);
    }
    eventually("in line by another key", async || {
        let now = keys(&scene.server);
        now.len() == 2 && now != waiters
    })
    .await;
    assert!(held.is_held());
    assert_eq!(held.release().await.expect("an answer"), Released::Done);
    let next = tokio::time::timeout(LIMIT, waiting).await.expect("gets in").expect("no panic").expect("a grant");
    assert!(next.is_held());
}
