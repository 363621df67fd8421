//! The ZooKeeper store on real servers: its nodes, counted request by request, and through faults.
#![cfg(feature = "zookeeper")]

use std::time::{Duration, Instant};

use palisade::{Client, ErrorKind, LossReason, Released};
use palisade_conformance::{PATIENCE, eventually};
use palisade_testkit::lan::Lan;
use palisade_testkit::proxy::{Proxy, Way};
use palisade_testkit::zookeeper::{Ensemble, ZooKeeper};

/// A lease that is soon over.
const SHORT: Duration = Duration::from_secs(4);

async fn client(server: &ZooKeeper) -> Client {
    palisade::connect(&format!("zk://{}", server.address())).await.expect("a client")
}

/// It has a runtime of its own, which cannot be started in ours.
async fn proxy_before(server: &ZooKeeper) -> Proxy {
    let address = server.address();
    tokio::task::spawn_blocking(move || Proxy::start(address)).await.expect("a proxy")
}

async fn line(client: &Client, name: &str) -> (usize, usize) {
    client.show(name).await.expect("an answer").map_or((0, 0), |line| (line.holders.len(), line.waiters.len()))
}

async fn line_is(client: &Client, name: &str, wanted: (usize, usize)) {
    eventually(&format!("{wanted:?} in line"), async || line(client, name).await == wanted).await;
}

/// What Curator and go-zookeeper expect to find.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_named_as_curator_names_them() {
    let server = ZooKeeper::start();
    let client = client(&server).await;
    let mutex = client.mutex("mixed").acquire().await.expect("acquired");
    let reader = client.rwlock("sides").read().await.expect("acquired");
    let permit = client.semaphore("pool", 3).acquire().await.expect("acquired");
    let node = |path: &str| {
        let said = server.cli(&["ls", path]);
        let list = said.lines().find_map(|line| line.trim().strip_prefix('[')?.strip_suffix(']')).unwrap_or_default();
        list.to_owned()
    };
    let is_named = |node: &str, mark: &str| {
        let (guid, rest) = node.strip_prefix("_c_").and_then(|rest| rest.split_at_checked(36)).unwrap_or_default();
        let dashes: Vec<usize> = guid.match_indices('-').map(|(at, _)| at).collect();
        dashes == [8, 13, 18, 23] && rest == format!("-{mark}0000000000")
    };
    for (path, mark) in [("/mixed", "lock-"), ("/sides", "__READ__"), ("/pool/leases", "lease-")] {
        assert!(is_named(&node(path), mark), "{path}: {}", node(path));
    }
    assert_eq!(node("/pool/locks"), "", "whoever has its permit has left the line");
    let stat = server.cli(&["stat", &format!("/mixed/{}", node("/mixed"))]);
    assert!(stat.contains(&format!("cZxid = 0x{:x}", mutex.fence().get())), "the fence is the czxid: {stat}");
    drop((mutex, reader, permit));
    client.shutdown().await;
}

/// What the page of the store says about requests.
#[tokio::test(flavor = "multi_thread")]
async fn every_verb_costs_what_the_page_says() {
    const ROUNDS: u64 = 50;
    let server = ZooKeeper::start();
    let client = client(&server).await;
    let received = || server.count("zk_packets_received");
    let (first, second) = (received(), received());
    let asking = second - first;
    let cost = |before: u64| received() - before - asking;
    let warm = client.mutex("free").acquire().await.expect("acquired");
    assert_eq!(warm.release().await.expect("released"), Released::Done);
    let before = received();
    for _ in 0..ROUNDS {
        let guard = client.mutex("free").acquire().await.expect("acquired");
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
    // A hold that takes a tenth of a second on a busy machine has its node watched.
    let cycles = cost(before);
    assert!((3 * ROUNDS..=3 * ROUNDS + 5).contains(&cycles), "create, list and delete: {cycles} for {ROUNDS}");
    let before = received();
    let pool = client.semaphore("pool", 2);
    for _ in 0..ROUNDS {
        assert_eq!(pool.acquire().await.expect("acquired").release().await.expect("released"), Released::Done);
    }
    // The line, the permits, their limit and the kind are looked at in one go; then one step takes the permit.
    let cycles = cost(before);
    assert!((7 * ROUNDS..=7 * ROUNDS + 10).contains(&cycles), "{cycles} for {ROUNDS} of a semaphore");
}

/// A hundred locks of one client are renewed by one request.
#[tokio::test(flavor = "multi_thread")]
async fn one_heartbeat_renews_all_claims() {
    let server = ZooKeeper::start();
    let client = client(&server).await;
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(client.mutex(format!("many/{number}")).lease(Duration::from_secs(9)).acquire().await.expect("acquired"));
    }
    // Their nodes are watched by then.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = server.count("zk_packets_received");
    tokio::time::sleep(Duration::from_secs(9)).await;
    let heartbeats = server.count("zk_packets_received") - before;
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert!((3..=40).contains(&heartbeats), "{heartbeats} requests in one lease of a hundred locks");
}

/// Two requests at once, and not one after the other: with 400 ms there and back, one round trip is less than 700 ms.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_takes_one_round_trip() {
    let server = ZooKeeper::with().long_sessions().start();
    let proxy = proxy_before(&server).await;
    let client = palisade::connect(&format!("zk://{}", proxy.address())).await.expect("a client");
    let warm = client.mutex("warm").lease(Duration::from_secs(60)).acquire().await.expect("acquired");
    for way in [Way::ToServer, Way::ToClient] {
        proxy.delay(way, Duration::from_millis(200), Duration::ZERO);
    }
    // A name that nobody has used, and one that is known.
    for name in ["new", "warm2", "new"] {
        let begun = Instant::now();
        let guard = client.mutex(name).lease(Duration::from_secs(60)).acquire().await.expect("acquired");
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(400) && took < Duration::from_millis(700), "{name}: {took:?}");
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
    drop(warm);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_the_server_does_not_grant_is_refused_with_its_limits() {
    let server = ZooKeeper::start();
    let client = client(&server).await;
    let error = client.mutex("long").lease(Duration::from_secs(60)).acquire().await.expect_err("the server grants 10 s");
    assert_eq!(*error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("1s to 10s"), "{error}");
    // Nobody asked for the default: it becomes what the server grants.
    let guard = client.mutex("long").acquire().await.expect("acquired");
    assert_eq!(guard.lease(), Duration::from_millis(7_500), "three quarters of the session");
}

/// Every request keeps all nodes of its session alive: so the client itself must end what nobody renews.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_renews_ends_though_its_session_lives() {
    let server = ZooKeeper::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let kept = ours.mutex("kept").lease(SHORT).acquire().await.expect("acquired");
    let forgotten = ours.mutex("forgotten").lease(SHORT).auto_renew(false).acquire().await.expect("acquired");
    let next = theirs.mutex("forgotten").acquire_timeout(PATIENCE).await.expect("it ends in its own time");
    assert!(!forgotten.is_held() && kept.is_held());
    assert!(next.fence() > forgotten.fence());
}

/// The node of a claim whose answer was lost is found again, and not made twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_found_again() {
    let server = ZooKeeper::start();
    let proxy = proxy_before(&server).await;
    let ours = palisade::connect(&format!("zk://{}", proxy.address())).await.expect("a client");
    let other = client(&server).await;
    let warm = ours.mutex("warm").acquire().await.expect("acquired");
    proxy.lose_reply_to(|bytes| bytes.windows(6).any(|six| six == b"-lock-"));
    let guard = tokio::time::timeout(PATIENCE, ours.mutex("lost").acquire()).await.expect("in time").expect("acquired");
    assert_eq!(proxy.lost(), 1, "an answer was lost");
    assert_eq!(line(&other, "lost").await, (1, 0), "one node, and it holds");
    assert!(warm.is_held(), "the session has lived through it");
    // And a release whose answer is lost is done all the same.
    proxy.lose_reply_to(|bytes| bytes.windows(6).any(|six| six == b"-lock-"));
    let _ = guard.release().await.expect("an answer");
    line_is(&other, "lost", (0, 0)).await;
}

/// Somebody deletes the name's node, with all that is in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_deleted_begins_anew() {
    let server = ZooKeeper::start();
    let client = client(&server).await;
    let guard = client.mutex("deleted").acquire().await.expect("acquired");
    let lock = client.mutex("deleted");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    line_is(&client, "deleted", (1, 1)).await;
    server.cli(&["deleteall", "/deleted"]);
    assert_eq!(tokio::time::timeout(PATIENCE, guard.lost()).await.expect("told"), LossReason::Revoked);
    let next = tokio::time::timeout(PATIENCE, waiting).await.expect("served").expect("no panic").expect("acquired");
    // The numbers of the nodes have begun anew; the fences have not.
    assert!(next.fence() > guard.fence(), "{} after {}", next.fence(), guard.fence());
}

/// A waiter that gives up is not a release: whoever stood behind it goes on waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gives_up_wakes_nobody_into_the_lock() {
    let server = ZooKeeper::start();
    let client = client(&server).await;
    let guard = client.mutex("patient").acquire().await.expect("acquired");
    let lock = client.mutex("patient");
    let first = tokio::spawn(async move { lock.acquire().await });
    line_is(&client, "patient", (1, 1)).await;
    let lock = client.mutex("patient");
    let second = tokio::spawn(async move { lock.acquire().await });
    line_is(&client, "patient", (1, 2)).await;
    first.abort();
    line_is(&client, "patient", (1, 1)).await;
    assert!(guard.is_held() && !second.is_finished());
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let next = tokio::time::timeout(PATIENCE, second).await.expect("served").expect("no panic").expect("acquired");
    assert!(next.is_held());
}

/// With a login, what we make is for that login only.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_for_those_who_made_them() {
    let server = ZooKeeper::start();
    let url = |login: &str| format!("zk://{login}{}", server.address());
    let ours = palisade::connect(&url("alice:secret@")).await.expect("a client");
    let guard = ours.mutex("private").acquire().await.expect("acquired");
    for stranger in ["", "bob:other@"] {
        let theirs = palisade::connect(&url(stranger)).await.expect("a client");
        let error = theirs.mutex("private").try_acquire().await.expect_err("no right");
        assert_eq!(*error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("other"), "{error}");
    }
    let again = palisade::connect(&url("alice:secret@")).await.expect("a client");
    assert!(again.mutex("private").try_acquire().await.expect("the same login").is_none());
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// Names that were used leave no nodes: their parents are containers, which the server takes away.
#[tokio::test(flavor = "multi_thread")]
async fn names_leave_nothing_behind() {
    let names = 200 * std::env::var("PALISADE_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let server = ZooKeeper::with()
        .property("znode.container.checkIntervalMs", "200")
        .property("znode.container.maxPerMinute", "1000000")
        .start();
    let client = client(&server).await;
    let before = server.count("zk_znode_count");
    for number in 0..names {
        let guard = client.mutex(format!("used/{number}")).acquire().await.expect("acquired");
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
    let pool = client.semaphore("pool", 2).acquire().await.expect("acquired");
    assert!(server.count("zk_znode_count") > before);
    drop(pool);
    client.shutdown().await;
    eventually("the server has taken the containers away", async || server.count("zk_znode_count") == before).await;
}

/// The leader dies: sessions, and so locks, live on.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_outlives_the_leader() {
    let three = Ensemble::start();
    let url = format!("zk://{}/locks", three.addresses());
    let (ours, theirs) = (palisade::connect(&url).await.expect("a client"), palisade::connect(&url).await.expect("a client"));
    let guard = ours.mutex("survivor").lease(Duration::from_secs(9)).acquire().await.expect("acquired");
    let lock = theirs.mutex("survivor").lease(Duration::from_secs(9));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    line_is(&ours, "survivor", (1, 1)).await;
    let old = three.leader();
    old.kill();
    let _ = three.leader_after(old);
    line_is(&ours, "survivor", (1, 1)).await;
    assert!(guard.is_held(), "lost with the leader");
    let fence = guard.fence();
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let next = tokio::time::timeout(PATIENCE, waiting).await.expect("handed over").expect("no panic").expect("acquired");
    assert!(next.fence() > fence);
}

/// A server that is cut off from the others goes on answering for a while. Who holds by it must know of the loss before the leader
/// lets anybody else in.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_cut_off_deceives_nobody() {
    let lan = Lan::new();
    let hosts = [lan.host(), lan.host(), lan.host()];
    let three = Ensemble::start_on(&hosts);
    let leader = three.leader().address();
    let follower = three.nodes().iter().position(|node| node.address() != leader).expect("a follower");
    let by_follower = format!("zk://{}/locks", three.nodes()[follower].address());
    let by_leader = format!("zk://{leader}/locks");
    let ours = palisade::connect(&by_follower).await.expect("a client");
    let theirs = palisade::connect(&by_leader).await.expect("a client");
    let guard = std::sync::Arc::new(ours.mutex("cut").lease(SHORT).acquire().await.expect("acquired"));
    // Long enough for some heartbeats.
    tokio::time::sleep(SHORT).await;
    assert!(guard.is_held());
    for (place, host) in hosts.iter().enumerate() {
        if place != follower {
            hosts[follower].cut_from(host);
        }
    }
    let first = std::sync::Arc::clone(&guard);
    let lock = theirs.mutex("cut").lease(SHORT);
    let next = tokio::spawn(async move {
        let next = lock.acquire().await.expect("admitted");
        // At the moment of admission, on the clock that the first one reads.
        assert!(!first.is_held(), "another was admitted while the first could believe that it held");
        next
    });
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("told");
    let next = tokio::time::timeout(PATIENCE * 2, next).await.expect("admitted").expect("told first");
    assert!(next.fence() > guard.fence());
}
