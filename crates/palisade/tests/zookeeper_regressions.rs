//! Regressions of the ZooKeeper store: each on real servers, with the fault that showed it.
#![cfg(feature = "zookeeper")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade::{Client, ErrorKind, LossReason, Released};
use palisade_conformance::{PATIENCE, eventually};
use palisade_testkit::proxy::{Protocol, Proxy};
use palisade_testkit::zookeeper::{Make, Raw, ZooKeeper};

/// A lease that is soon over.
const SHORT: Duration = Duration::from_secs(4);
/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(600);

async fn client(at: std::net::SocketAddr, words: &str) -> Client {
    palisade::connect(&format!("zk://{at}{words}"))
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

async fn line_is(client: &Client, name: &str, wanted: (usize, usize)) {
    eventually(&format!("{wanted:?} in line"), async || {
        let line = client.show(name).await.expect("an answer");
        line.map_or((0, 0), |line| (line.holders.len(), line.waiters.len())) == wanted
    })
    .await;
}

/// Whether bytes have a request of this number for a path that begins so.
fn asks(op: u8, path: &str) -> impl Fn(&[u8]) -> bool + Send + Sync + 'static {
    let path = path.as_bytes().to_vec();
    move |bytes| {
        bytes
            .windows(8 + path.len())
            .any(|part| part[..4] == [0, 0, 0, op] && part[8..] == path)
    }
}

const CREATE: u8 = 15;
const DELETE: u8 = 2;

/// The answer to a `delete` is lost, and the next has the name by then. Its node is not deleted
/// with the next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn an_overdue_plain_lock_ends_alone() {
    let server = ZooKeeper::start();
    let proxy = proxy_before(&server).await;
    let ours = client(proxy.address(), "?format=plain").await;
    let theirs = client(server.address(), "?format=plain").await;
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
    proxy.lose_reply_to(asks(DELETE, "/forgotten"));
    let next = theirs
        .mutex("forgotten")
        .acquire_timeout(PATIENCE)
        .await
        .expect("it ends in its own time");
    assert_eq!(proxy.lost(), 1, "an answer was lost");
    assert!(next.fence() > forgotten.fence());
    // Long enough for many attempts.
    let _ = ours.show("kept").await;
    assert!(
        tokio::time::timeout(Duration::from_secs(3), next.lost())
            .await
            .is_err(),
        "its node was deleted"
    );
    assert!(kept.is_held());
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
}

/// The only claim of a session loses the answer to its `create`: its session is not given up with
/// the connection.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_claim_of_a_session_is_found_again() {
    let server = ZooKeeper::with().long_sessions().start();
    let proxy = proxy_before(&server).await;
    let other = client(server.address(), "").await;
    for detachable in [false, true] {
        let ours = client(proxy.address(), "").await;
        let lock = ours.mutex("first").lease(LONG);
        let lock = if detachable { lock.detachable() } else { lock };
        let lost = proxy.lost();
        proxy.lose_reply_to(asks(CREATE, "/first/_c_"));
        let guard = tokio::time::timeout(PATIENCE, lock.acquire())
            .await
            .expect("in time")
            .expect("acquired");
        assert_eq!(proxy.lost(), lost + 1, "an answer was lost");
        line_is(&other, "first", (1, 0)).await;
        assert_eq!(guard.release().await.expect("an answer"), Released::Done);
        line_is(&other, "first", (0, 0)).await;
        // A claim that does not queue leaves nothing behind.
        let lock = ours.mutex("once").lease(LONG);
        let lock = if detachable { lock.detachable() } else { lock };
        proxy.lose_reply_to(asks(CREATE, "/once/_c_"));
        let tried = tokio::time::timeout(PATIENCE, lock.try_acquire())
            .await
            .expect("in time");
        assert_eq!(proxy.lost(), lost + 2, "an answer was lost");
        drop(tried);
        line_is(&other, "once", (0, 0)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_plain_lock_of_a_session_is_found_again_and_released() {
    let server = ZooKeeper::with().long_sessions().start();
    let proxy = proxy_before(&server).await;
    let other = client(server.address(), "?format=plain").await;
    for op in [CREATE, DELETE] {
        let ours = client(proxy.address(), "?format=plain").await;
        let lost = proxy.lost();
        proxy.lose_reply_to(asks(op, "/only"));
        let lock = ours.mutex("only").lease(LONG);
        let guard = tokio::time::timeout(PATIENCE, lock.acquire())
            .await
            .expect("in time")
            .expect("acquired");
        line_is(&other, "only", (1, 0)).await;
        let _ = guard.release().await;
        assert_eq!(proxy.lost(), lost + 1, "an answer was lost");
        // While the client lives: its end would end the session.
        line_is(&other, "only", (0, 0)).await;
        drop(ours);
    }
}

/// A node in line that we may not read is one to wait for.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_node_of_a_peer_is_waited_for() {
    let server = ZooKeeper::start();
    let ours = client(server.address(), "").await;
    let stranger = "/secretive/_c_x-lock-0000000000";
    server.cli(&["create", "/secretive"]);
    // The login alice:secret, which no client here has.
    server.cli(&[
        "create",
        stranger,
        "",
        "digest:alice:C8QqVB5ElAHUuVyUNzdUwnoJ4Yk=:cdrwa",
    ]);
    let lock = ours.mutex("secretive");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("two in line", async || {
        server.cli(&["ls", "/secretive"]).matches("-lock-").count() == 2
    })
    .await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    server.cli(&["delete", stranger]);
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("served")
        .expect("no panic")
        .expect("acquired");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    eventually("an empty line", async || {
        !server.cli(&["ls", "/secretive"]).contains("-lock-")
    })
    .await;
}

/// Another server, or the same with another configuration, may grant less when it takes a session
/// up.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_becomes_shorter_is_lost() {
    let server = ZooKeeper::with().long_sessions().start();
    let ours = client(server.address(), "").await;
    let guard = ours
        .mutex("shorter")
        .lease(Duration::from_secs(120))
        .acquire()
        .await
        .expect("acquired");
    let config = server.dir().join("zoo.cfg");
    let words = std::fs::read_to_string(&config).expect("a configuration");
    assert!(words.contains("=86400000"), "{words}");
    std::fs::write(&config, words.replace("=86400000", "=60000")).expect("written");
    server.restart();
    assert_eq!(
        tokio::time::timeout(PATIENCE, guard.lost())
            .await
            .expect("told"),
        LossReason::SessionEnded
    );
}

/// All claims in a long line live by heartbeats, without reads of the line.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiters_heartbeat_does_not_read_the_line() {
    const WAITERS: usize = 10;
    let server = ZooKeeper::start();
    let proxy = proxy_before(&server).await;
    let (ours, other) = (
        client(proxy.address(), "").await,
        client(server.address(), "").await,
    );
    let guard = other.mutex("long-line").acquire().await.expect("acquired");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = ours.mutex("long-line");
            // In whatever order they came, each lets go at once.
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        })
        .collect();
    line_is(&other, "long-line", (1, WAITERS)).await;
    let read = Arc::new(AtomicUsize::new(0));
    let spy = Arc::clone(&read);
    proxy.lose_if(move |bytes| {
        spy.fetch_add(
            bytes.windows(6).filter(|six| *six == b"-lock-").count(),
            Ordering::SeqCst,
        );
        false
    });
    // Three heartbeats of each.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let read = read.load(Ordering::SeqCst);
    assert!(
        read < 5 * WAITERS,
        "{read} nodes were listed for the heartbeats of {WAITERS}"
    );
    line_is(&other, "long-line", (1, WAITERS)).await;
    // And they are told all the same.
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    for waiter in waiting {
        tokio::time::timeout(PATIENCE, waiter)
            .await
            .expect("served")
            .expect("no panic")
            .expect("acquired");
    }
}

/// A leader that was replaced, and does not know it yet, can answer a `sync`. It cannot make a
/// transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_a_transaction() {
    let server = ZooKeeper::start();
    let newest = || {
        let said = server.ask("srvr");
        let zxid = said
            .lines()
            .find_map(|line| line.strip_prefix("Zxid: 0x"))
            .expect("a transaction");
        u64::from_str_radix(zxid.trim(), 16).expect("a number")
    };
    let ours = client(server.address(), "").await;
    let guard = ours
        .mutex("beating")
        .lease(SHORT)
        .acquire()
        .await
        .expect("acquired");
    let before = newest();
    eventually("three heartbeats", async || newest() >= before + 3).await;
    assert!(guard.is_held());
    assert_eq!(newest() >> 32, before >> 32, "the same leader");
}

/// A holder that loses one of its permits has lost its grant, and keeps none of the others from
/// those who wait.
#[tokio::test(flavor = "multi_thread")]
async fn each_permit_of_a_holder_is_watched() {
    let server = ZooKeeper::start();
    let ours = client(server.address(), "").await;
    let kept = ours.mutex("kept").acquire().await.expect("acquired");
    let guard = ours
        .semaphore("pool", 3)
        .acquire_many(3)
        .await
        .expect("acquired");
    let said = server.cli(&["ls", "/pool/leases"]);
    let list = said
        .lines()
        .find_map(|line| line.trim().strip_prefix('[')?.strip_suffix(']'))
        .expect("a list");
    let mut leases: Vec<&str> = list.split(", ").collect();
    leases.sort_unstable();
    assert_eq!(leases.len(), 3, "{said}");
    server.cli(&["delete", &format!("/pool/leases/{}", leases[2])]);
    assert_eq!(
        tokio::time::timeout(PATIENCE, guard.lost())
            .await
            .expect("told"),
        LossReason::Revoked
    );
    let pool = ours.semaphore("pool", 3);
    let next = tokio::time::timeout(PATIENCE, pool.acquire_many(3))
        .await
        .expect("the others are free")
        .expect("acquired");
    assert!(kept.is_held() && next.is_held());
}

/// A server hangs up on a request of more than a megabyte, and so on all claims that share the
/// session.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_permits_for_one_request_are_refused() {
    let server = ZooKeeper::start();
    let proxy = proxy_before(&server).await;
    let ours = client(proxy.address(), "").await;
    let kept = ours.mutex("kept").acquire().await.expect("acquired");
    let pool = ours.semaphore("huge", 100_000);
    let asked = tokio::time::timeout(PATIENCE, pool.acquire_many(50_000))
        .await
        .expect("in time");
    let error = asked.expect_err("too much");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("1 MB"), "{error}");
    assert!(kept.is_held());
    let fewer = ours
        .semaphore("huge", 100_000)
        .acquire_many(1_000)
        .await
        .expect("acquired");
    assert_eq!(fewer.release().await.expect("released"), Released::Done);
}

/// A waiter for permits has its node, and an answer is lost with the connection before it knows
/// what is free: it keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_in_line_is_not_left_for_an_answer_that_is_lost() {
    let server = ZooKeeper::with().long_sessions().start();
    let address = server.address();
    let proxy = tokio::task::spawn_blocking(move || Proxy::speaking(Protocol::ZooKeeper, address))
        .await
        .expect("a proxy");
    let (ours, other) = (client(proxy.address(), "").await, client(address, "").await);
    let kept = ours
        .mutex("kept")
        .lease(LONG)
        .acquire()
        .await
        .expect("acquired");
    let held = other
        .semaphore("pool", 1)
        .lease(LONG)
        .acquire()
        .await
        .expect("acquired");
    // The list of what is held.
    let lost = Arc::new(AtomicUsize::new(0));
    let first = Arc::clone(&lost);
    proxy.lose_if(move |message| {
        message.windows(7).any(|part| part == b"-lease-")
            && first.fetch_add(1, Ordering::SeqCst) == 0
    });
    let pool = ours.semaphore("pool", 1).lease(LONG);
    let waiting = tokio::spawn(async move { pool.acquire().await });
    eventually("an answer is lost", async || {
        lost.load(Ordering::SeqCst) > 0
    })
    .await;
    line_is(&other, "pool", (1, 1)).await;
    assert_eq!(held.release().await.expect("released"), Released::Done);
    let next = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("served")
        .expect("no panic")
        .expect("acquired");
    assert!(kept.is_held() && next.is_held());
    // The holder had the first number and the waiter the second.
    let mut operator = Raw::open(address, SHORT).expect("a session");
    let third = operator
        .create("/pool/locks/probe-", b"", Make::EphemeralSequential)
        .expect("an answer")
        .expect("made");
    assert_eq!(
        third, "/pool/locks/probe-0000000002",
        "it stood in line more than once"
    );
}
