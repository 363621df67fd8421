//! The sessions that grants in etcd hang on, from the claim to its end: keys that are moved,
//! closed names, and keys that are not taken for another claim's.

#![cfg(feature = "etcd")]

mod common;

use std::time::Duration;

use common::actors::{connect, in_line};
use common::etcd::{
    LIMIT, LONG, Metrics, Pair, SHORT, client, keys, leases, leases_of, line_is, proxy,
};
use common::etcd_lines::LINES;
use palisade::store::Revoked;
use palisade::{ErrorKind, Guard, LossReason, Released};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::proxy::{Proxy, Way};

/// The seconds that the lease of the only key has left, by the server's word.
fn seconds_left(server: &Etcd) -> u64 {
    let key = server.etcdctl(&["get", "lock/", "--prefix", "-w", "fields"]);
    let lease = key
        .lines()
        .find_map(|line| line.strip_prefix("\"Lease\" : "))
        .expect("a lease");
    let lease = format!("{:x}", lease.trim().parse::<i64>().expect("a number"));
    u64::try_from(left_of(server, &lease).0).expect("it has not ended")
}

/// The seconds that a lease has left, and those that it was granted, by the server's word; -1 when
/// it has ended.
fn left_of(server: &Etcd, lease: &str) -> (i64, i64) {
    let told = server.etcdctl(&["lease", "timetolive", lease]);
    let seconds = |word: &str| {
        let after = told
            .split(word)
            .nth(1)
            .and_then(|rest| rest.split('s').next());
        after.map_or(-1, |seconds| {
            seconds.parse().unwrap_or_else(|_| panic!("{told}"))
        })
    };
    (seconds("remaining("), seconds("granted with TTL("))
}

async fn held_for(guard: &Guard, span: Duration) {
    if let Ok(reason) = tokio::time::timeout(span, guard.lost()).await {
        panic!("it was lost: {reason:?}");
    }
    assert!(guard.is_held());
}

/// The lease is renewed many times before the minimum hold is over, and that does not make it
/// longer.
#[tokio::test]
async fn a_minimum_hold_much_longer_than_the_lease_is_held_and_ends_in_time() {
    let server = Etcd::start();
    let client = client(&server);
    let guard = client
        .mutex("long")
        .lease(SHORT)
        .min_hold(LONG)
        .acquire()
        .await
        .expect("a grant");
    let before = Metrics::of(&server);
    held_for(&guard, SHORT * 3).await;
    let after = Metrics::of(&server);
    let asked =
        ["Txn", "LeaseKeepAlive"].map(|method| after.received(method) - before.received(method));
    assert!(
        asked.iter().sum::<u64>() <= 30,
        "a renewal every third of a lease, and no more: {asked:?}"
    );
    assert!(
        seconds_left(&server) <= (LONG - SHORT * 2).as_secs(),
        "counted from the grant: {} s",
        seconds_left(&server)
    );
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    assert!(
        seconds_left(&server) <= (LONG - SHORT * 2).as_secs(),
        "and through the release"
    );
    assert!(
        client
            .mutex("long")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "it is closed"
    );
}

/// Once less than the lease is left of it, the lease takes over.
#[tokio::test]
async fn a_minimum_hold_that_is_over_leaves_an_ordinary_grant() {
    let server = Etcd::start();
    let client = client(&server);
    let guard = client
        .mutex("over")
        .lease(SHORT)
        .min_hold(SHORT * 2)
        .acquire()
        .await
        .expect("a grant");
    held_for(&guard, SHORT * 4).await;
    assert!(seconds_left(&server) <= SHORT.as_secs());
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    assert_eq!(keys(&server), [""; 0]);
}

/// A minimum hold that the lease covers has a session of its own only from the release on.
#[tokio::test]
async fn a_short_minimum_hold_is_kept_through_the_release() {
    let server = Etcd::start();
    let client = client(&server);
    let guard = client
        .mutex("short")
        .lease(LONG)
        .min_hold(Duration::from_secs(20))
        .acquire()
        .await
        .expect("a grant");
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    let left = seconds_left(&server);
    assert!((10..=20).contains(&left), "{left} s");
    assert!(
        client
            .mutex("short")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
}

/// Nothing passes: neither by the connections that are open, nor by one that is just being opened.
fn cut_off(proxy: &Proxy) {
    proxy.refuse();
    proxy.freeze();
}

fn reachable_again(proxy: &Proxy) {
    proxy.reset();
    proxy.heal();
}

/// The first release is not answered. The second one must not open the name.
#[tokio::test]
async fn a_release_that_is_asked_for_twice_keeps_the_name_closed() {
    let server = Etcd::start();
    let proxy = proxy(&server);
    let (inside, outside) = (
        connect(format!(
            "etcd://{}/lock?request_timeout=500ms",
            proxy.address()
        )),
        client(&server),
    );
    let guard = inside
        .mutex("twice")
        .lease(LONG)
        .min_hold(LONG * 2)
        .acquire()
        .await
        .expect("a grant");
    cut_off(&proxy);
    assert_eq!(guard.release().await.expect("an answer"), Released::Unknown);
    reachable_again(&proxy);
    // It is tried again in the background. A closed name has no holder.
    eventually("it is closed", async || {
        server
            .etcdctl(&["get", "lock/", "--prefix"])
            .contains("purpose=closed")
    })
    .await;
    assert!(
        outside
            .mutex("twice")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
}

/// Both need a session of their own.
#[tokio::test]
async fn a_minimum_hold_cannot_be_detached() {
    let server = Etcd::start();
    let lock = client(&server).mutex("both").min_hold(LONG).detachable();
    let error = lock.acquire().await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// The session that a detachable claim is to hold by was opened when it began to wait, and is
/// nearly over when it is granted. It moves there while nothing comes back to it: then it believes
/// by the session that it had, and the store must not end it earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_not_moved_to_a_session_that_is_nearly_over() {
    let server = Etcd::start();
    let (proxy, outside) = (proxy(&server), client(&server));
    let inside = connect(format!("etcd://{}/lock", proxy.address()));
    // A little longer than the session of a waiter, so that there are two.
    let lease = Duration::from_secs(6);
    let held = outside
        .mutex("moved")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    let before = leases(&server);
    let lock = inside
        .mutex("moved")
        .lease(lease)
        .store_wait(LONG)
        .detachable();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    in_line(&outside, "moved", 1).await;
    let own: Vec<String> = leases(&server)
        .into_iter()
        .filter(|lease| !before.contains(lease))
        .collect();
    let full = own
        .iter()
        .find(|own| left_of(&server, own).1 == lease.as_secs() as i64)
        .expect("a session of its own");
    let lock = outside.mutex("moved").lease(LONG).store_wait(LONG);
    let behind = tokio::spawn(async move { lock.acquire().await });
    in_line(&outside, "moved", 2).await;
    // This is what it is about: its time runs out. Three seconds are left when the key moves, or
    // less.
    eventually("it is nearly over", async || left_of(&server, full).0 <= 3).await;
    proxy.delay(Way::ToClient, Duration::from_millis(500), Duration::ZERO);
    assert_eq!(held.release().await.expect("an answer"), Released::Done);
    let guard = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("a grant");
    let fence = guard.fence().get();
    let waited_on = leases_of(&server, &[fence]);
    let pair = Pair::of(guard, async move { behind.await.expect("no panic") });
    eventually("it has moved", async || {
        leases_of(&server, &[fence]) != waited_on
    })
    .await;
    proxy.stall(Way::Both);
    let (reason, _next) = pair.loses_it_to_the_next().await;
    assert_eq!(reason, LossReason::Expired);
}

/// A claim was not answered, then turned away, and then granted. Its key is not deleted.
#[tokio::test]
async fn a_plain_claim_that_asks_again_is_not_withdrawn() {
    let server = Etcd::start();
    let proxy = proxy(&server);
    let holder = connect(format!("etcd://{}/lock?format=plain", server.address()));
    let asking = connect(format!(
        "etcd://{}/lock?format=plain&request_timeout=1s",
        proxy.address()
    ));
    let held = holder
        .mutex("again")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    let warm = asking
        .mutex("warm")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    cut_off(&proxy);
    let lock = asking.mutex("again").lease(LONG).store_wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    // No answer comes: it does not know whether its claim has arrived.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    reachable_again(&proxy);
    // It is turned away now, and asks again when the name is free.
    eventually("it is turned away", async || {
        Metrics::of(&server).watches() >= 2
    })
    .await;
    assert_eq!(held.release().await.expect("an answer"), Released::Done);
    let guard = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("a grant");
    // By now a withdrawal would have come.
    held_for(&guard, Duration::from_secs(4)).await;
    assert_eq!(keys(&server).len(), 2);
    drop(warm);
}

/// It does not renew, and so nothing but its watch tells it anything.
#[tokio::test]
async fn a_holder_that_does_not_renew_is_told_though_its_watch_was_broken() {
    let server = Etcd::start();
    let proxy = proxy(&server);
    let (inside, outside) = (
        connect(format!("etcd://{}/lock", proxy.address())),
        client(&server),
    );
    let guard = inside
        .mutex("still")
        .lease(LONG)
        .auto_renew(false)
        .acquire()
        .await
        .expect("a grant");
    eventually("its key is watched", async || {
        Metrics::of(&server).watches() >= 1
    })
    .await;
    proxy.freeze();
    assert_eq!(
        outside
            .revoke("still", guard.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    proxy.reset();
    assert_eq!(
        tokio::time::timeout(LIMIT, guard.lost())
            .await
            .expect("it is told"),
        LossReason::Revoked
    );
    line_is(&outside, "still", (0, 0)).await;
}

/// A waiter that gives up while its heartbeat is in flight stays forgotten, with its watches: the
/// answer says that it waits, and comes when it does not any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_leave_are_forgotten() {
    let server = Etcd::start();
    let (proxy, outside) = (proxy(&server), client(&server));
    let inside = connect(format!(
        "etcd://{}/lock?request_timeout=20s",
        proxy.address()
    ));
    for line in LINES.iter().filter(|line| line.queues) {
        let before = Metrics::of(&server).begun("Txn");
        let held = line
            .holder
            .take(&outside, line.what, LONG)
            .await
            .expect("a grant");
        // Its claim, and its look once its key is watched: from now on only the waiter asks.
        eventually("it has looked", async || {
            Metrics::of(&server).begun("Txn") >= before + 2
        })
        .await;
        let (client, line) = (inside.clone(), *line);
        let waiting = tokio::spawn(async move { line.waiter.take(&client, line.what, LONG).await });
        // The holder's own key, the waiter's, and what it waits for.
        eventually("all watch", async || Metrics::of(&server).watches() == 3).await;
        // A heartbeat asks for the place in line once its keep-alive was answered, and the read
        // that follows it. All answers are late, and the last is held up.
        proxy.delay(Way::ToClient, Duration::from_millis(500), Duration::ZERO);
        let beats = Metrics::of(&server).received("LeaseKeepAlive");
        eventually("a heartbeat", async || {
            Metrics::of(&server).received("LeaseKeepAlive") > beats
        })
        .await;
        let asked = Metrics::of(&server).begun("Txn");
        eventually("its question is on its way", async || {
            Metrics::of(&server).begun("Txn") > asked
        })
        .await;
        proxy.stall(Way::ToClient);
        waiting.abort();
        eventually("it has left", async || keys(&server).len() == 1).await;
        proxy.heal();
        // Its watches are opened and closed in order: once this one is told of something, all
        // before it have been seen to.
        let other = inside
            .mutex("other")
            .lease(LONG)
            .acquire()
            .await
            .expect("a grant");
        eventually("it is watched", async || {
            Metrics::of(&server).watches() >= 2
        })
        .await;
        assert_eq!(
            outside
                .revoke("other", other.fence())
                .await
                .expect("an answer"),
            Revoked::Done
        );
        assert_eq!(
            tokio::time::timeout(LIMIT, other.lost())
                .await
                .expect("it is told"),
            LossReason::Revoked
        );
        eventually("no watch of theirs is left", async || {
            Metrics::of(&server).watches() == 1
        })
        .await;
        assert_eq!(
            held.release().await.expect("an answer"),
            Released::Done,
            "{}",
            line.what
        );
        eventually("nor of the holder", async || {
            Metrics::of(&server).watches() == 0
        })
        .await;
    }
}
