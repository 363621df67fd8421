//! A cluster that was restored from a snapshot: it has forgotten grants that it confirmed, and
//! would give the same fences again.

#![cfg(feature = "etcd")]

mod common;

use std::time::Duration;

use common::actors::connect;
use common::etcd::{LIMIT, LONG, keys, line_is};
use palisade::{Client, ErrorKind, LossReason, Released};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;

/// The token that a server has unless it is told otherwise.
const SAME: &str = "etcd-cluster";

fn client(server: &Etcd) -> Client {
    common::etcd::client(server)
}

/// The server's revision.
fn revision(server: &Etcd) -> u64 {
    let answer = server.etcdctl(&["get", "nothing", "-w", "json"]);
    let (_, revision) = answer.split_once("\"revision\":").expect("a revision");
    revision
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_snapshot_is_found_out() {
    let server = Etcd::start();
    let client = client(&server);
    // Held when the snapshot is taken, and given back after it: so the snapshot holds it for
    // no client.
    let orphan = client
        .mutex("orphan")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    let early = client
        .mutex("early")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    let snapshot = server.snapshot();
    assert_eq!(orphan.release().await.expect("an answer"), Released::Done);
    for number in 0..20 {
        let guard = client
            .mutex(format!("some-{number}"))
            .acquire()
            .await
            .expect("a grant");
        assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    }
    let late = client
        .mutex("late")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    let lock = client.mutex("late").lease(LONG).store_wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    line_is(&client, "late", (1, 1)).await;
    let highest = revision(&server);
    server.restore(&snapshot, SAME);
    assert!(revision(&server) < highest, "it has gone back");
    // All are told, also of what the snapshot has: nothing there is kept alive by us.
    for guard in [&early, &late] {
        let reason = tokio::time::timeout(LIMIT, guard.lost())
            .await
            .expect("told long before the lease ends");
        assert_eq!(reason, LossReason::SessionEnded);
    }
    // No claim is granted a fence that was given before, and each is told why.
    let refused = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("refused")
        .expect("no panic")
        .map(|_| ());
    let refused = [
        refused,
        client.mutex("late").try_acquire().await.map(|_| ()),
    ];
    for refused in refused {
        let error = refused.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(
            error.to_string().contains("went back") && error.to_string().contains("snapshot"),
            "{error}"
        );
    }
    eventually("nothing that came back is kept alive", async || {
        keys(&server).is_empty()
    })
    .await;
    // The operator lets it pass what was seen. From then on fences rise again.
    while revision(&server) < highest {
        server.etcdctl(&["put", "bump", ""]);
    }
    let next = client
        .mutex("late")
        .acquire_timeout(LIMIT)
        .await
        .expect("a grant");
    assert!(
        next.fence() > late.fence(),
        "{} after {}",
        next.fence(),
        late.fence()
    );
    let orphan = client
        .mutex("orphan")
        .acquire_timeout(LIMIT)
        .await
        .expect("it is free");
    assert!(orphan.is_held() && next.is_held());
}

/// The revision is just one below: the next write would have the revision that was the last before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_fence_is_not_given_twice() {
    let server = Etcd::start();
    let client = client(&server);
    let snapshot = server.snapshot();
    // Its next renewal is twenty minutes away, and it is not watched yet: only the broken
    // connection can tell it.
    let first = client
        .mutex("twice")
        .lease(LONG * 30)
        .acquire()
        .await
        .expect("a grant");
    server.restore(&snapshot, SAME);
    let told = tokio::time::timeout(LIMIT, first.lost())
        .await
        .expect("told");
    println!("{told:?}");
    let outcome = client.mutex("twice").try_acquire().await;
    match outcome {
        Ok(guard) => {
            let guard = guard.expect("it is free");
            assert!(
                guard.fence() > first.fence(),
                "{} after {}",
                guard.fence(),
                first.fence()
            );
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
    }
}

/// Restored as another cluster, and past all that was given: grants are lost, and it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster_keeps_no_grant() {
    let server = Etcd::start();
    let ours = client(&server);
    // Its next renewal is twenty minutes away: only the broken connection can tell it.
    let held = ours
        .mutex("moved")
        .lease(LONG * 30)
        .acquire()
        .await
        .expect("a grant");
    let snapshot = server.snapshot();
    server.restore(&snapshot, "another");
    let reason = tokio::time::timeout(LIMIT, held.lost())
        .await
        .expect("told");
    assert_eq!(reason, LossReason::SessionEnded);
    let next = ours
        .mutex("moved")
        .acquire_timeout(LIMIT)
        .await
        .expect("it goes on");
    assert!(next.fence() > held.fence());
}

/// Two clusters in one URL are two locks of one name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_of_two_clusters_is_refused() {
    let (one, other) = (Etcd::start(), Etcd::start());
    let client = connect(format!(
        "etcd://{},{}/lock?request_timeout=2s&connect_timeout=1s",
        one.address(),
        other.address()
    ));
    // Each in turn is away, so that the other is asked.
    let mut refused = None;
    // A release in the background may be the first to meet the other cluster: then it went back,
    // for once.
    for away in [&one, &other, &one, &other, &one] {
        away.kill();
        let outcome = client
            .mutex("two")
            .store_wait(Duration::from_secs(5))
            .try_acquire()
            .await;
        away.restart();
        if let Err(error) = outcome
            && error.kind() == ErrorKind::Protocol
        {
            refused = Some(error);
            if refused
                .as_ref()
                .is_some_and(|error| error.to_string().contains("another cluster"))
            {
                break;
            }
        }
    }
    let refused = refused.expect("refused at last");
    assert!(refused.to_string().contains("another cluster"), "{refused}");
}
