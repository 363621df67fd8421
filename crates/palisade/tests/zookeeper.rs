//! The ZooKeeper store on real servers: its nodes, and what it grants to whom.
#![cfg(feature = "zookeeper")]

use std::time::{Duration, Instant};

use palisade::{Client, ErrorKind, Released};
use palisade_conformance::{PATIENCE, eventually};
use palisade_testkit::proxy::{Proxy, Way};
use palisade_testkit::zookeeper::ZooKeeper;

/// A lease that is soon over.
const SHORT: Duration = Duration::from_secs(4);

async fn client(server: &ZooKeeper) -> Client {
    palisade::connect(&format!("zk://{}", server.address()))
        .await
        .expect("a client")
}

/// It has a runtime of its own, which cannot be started in ours.
async fn proxy_before(server: &ZooKeeper) -> Proxy {
    let address = server.address();
    tokio::task::spawn_blocking(move || Proxy::start(address))
        .await
        .expect("a proxy")
}

async fn line(client: &Client, name: &str) -> (usize, usize) {
    client
        .show(name)
        .await
        .expect("an answer")
        .map_or((0, 0), |line| (line.holders.len(), line.waiters.len()))
}

async fn line_is(client: &Client, name: &str, wanted: (usize, usize)) {
    eventually(&format!("{wanted:?} in line"), async || {
        line(client, name).await == wanted
    })
    .await;
}

/// The nodes that Curator and go-zookeeper expect.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_named_as_curator_names_them() {
    let server = ZooKeeper::start();
    let client = client(&server).await;
    let mutex = client.mutex("mixed").acquire().await.expect("acquired");
    let reader = client.rwlock("sides").read().await.expect("acquired");
    let permit = client
        .semaphore("pool", 3)
        .acquire()
        .await
        .expect("acquired");
    let node = |path: &str| {
        let said = server.cli(&["ls", path]);
        let list = said
            .lines()
            .find_map(|line| line.trim().strip_prefix('[')?.strip_suffix(']'))
            .unwrap_or_default();
        list.to_owned()
    };
    let is_named = |node: &str, mark: &str| {
        let (guid, rest) = node
            .strip_prefix("_c_")
            .and_then(|rest| rest.split_at_checked(36))
            .unwrap_or_default();
        let dashes: Vec<usize> = guid.match_indices('-').map(|(at, _)| at).collect();
        dashes == [8, 13, 18, 23] && rest == format!("-{mark}0000000000")
    };
    for (path, mark) in [
        ("/mixed", "lock-"),
        ("/sides", "__READ__"),
        ("/pool/leases", "lease-"),
    ] {
        assert!(is_named(&node(path), mark), "{path}: {}", node(path));
    }
    assert_eq!(
        node("/pool/locks"),
        "",
        "a claim with its permit has left the line"
    );
    let stat = server.cli(&["stat", &format!("/mixed/{}", node("/mixed"))]);
    assert!(
        stat.contains(&format!("cZxid = 0x{:x}", mutex.fence().get())),
        "the fence is the czxid: {stat}"
    );
    drop((mutex, reader, permit));
    client.shutdown().await;
}

/// Two requests at once, and not one after the other: with 400 ms there and back, one round trip is
/// less than 700 ms.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_takes_one_round_trip() {
    let server = ZooKeeper::with().long_sessions().start();
    let proxy = proxy_before(&server).await;
    let client = palisade::connect(&format!("zk://{}", proxy.address()))
        .await
        .expect("a client");
    let warm = client
        .mutex("warm")
        .lease(Duration::from_secs(60))
        .acquire()
        .await
        .expect("acquired");
    for way in [Way::ToServer, Way::ToClient] {
        proxy.delay(way, Duration::from_millis(200), Duration::ZERO);
    }
    // A name that was never used, and one that is known.
    for name in ["new", "warm2", "new"] {
        let begun = Instant::now();
        let guard = client
            .mutex(name)
            .lease(Duration::from_secs(60))
            .acquire()
            .await
            .expect("acquired");
        let took = begun.elapsed();
        assert!(
            took >= Duration::from_millis(400) && took < Duration::from_millis(700),
            "{name}: {took:?}"
        );
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
    drop(warm);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_the_server_does_not_grant_is_refused_with_its_limits() {
    let server = ZooKeeper::start();
    let client = client(&server).await;
    let error = client
        .mutex("long")
        .lease(Duration::from_secs(60))
        .acquire()
        .await
        .expect_err("the server grants 10 s");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("1s to 10s"), "{error}");
    // The default was not asked for: it becomes what the server grants.
    let guard = client.mutex("long").acquire().await.expect("acquired");
    assert_eq!(
        guard.lease(),
        Duration::from_millis(7_500),
        "three quarters of the session"
    );
}

/// Every request keeps all nodes of its session alive: so the client itself must end claims that
/// are not renewed.
#[tokio::test(flavor = "multi_thread")]
async fn an_unrenewed_claim_ends_though_its_session_lives() {
    let server = ZooKeeper::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let kept = ours
        .mutex("kept")
        .lease(SHORT)
        .acquire()
        .await
        .expect("acquired");
    let forgotten = ours
        .mutex("forgotten")
        .lease(SHORT)
        .auto_renew(false)
        .acquire()
        .await
        .expect("acquired");
    let next = theirs
        .mutex("forgotten")
        .acquire_timeout(PATIENCE)
        .await
        .expect("it ends in its own time");
    assert!(!forgotten.is_held() && kept.is_held());
    assert!(next.fence() > forgotten.fence());
}

/// A waiter that gives up is not a release: the waiter behind it goes on waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gives_up_grants_nothing() {
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
    let next = tokio::time::timeout(PATIENCE, second)
        .await
        .expect("served")
        .expect("no panic")
        .expect("acquired");
    assert!(next.is_held());
}

/// With a login, what we make is for that login only.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_belong_to_the_login_that_made_them() {
    let server = ZooKeeper::start();
    let url = |login: &str| format!("zk://{login}{}", server.address());
    let ours = palisade::connect(&url("alice:secret@"))
        .await
        .expect("a client");
    let guard = ours.mutex("private").acquire().await.expect("acquired");
    for stranger in ["", "bob:other@"] {
        let theirs = palisade::connect(&url(stranger)).await.expect("a client");
        let error = theirs
            .mutex("private")
            .try_acquire()
            .await
            .expect_err("no right");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("other"), "{error}");
    }
    let again = palisade::connect(&url("alice:secret@"))
        .await
        .expect("a client");
    assert!(
        again
            .mutex("private")
            .try_acquire()
            .await
            .expect("the same login")
            .is_none()
    );
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}
