//! Compare and swap by mod revision, on real servers.

#![cfg(feature = "etcd")]

mod common;

use common::etcd::{LIMIT, proxy};
use palisade::ErrorKind;
use palisade::versioned::etcd::{SwapError, UpdateError, VersionedKeys};
use palisade::versioned::{PendingSwap, Settled, Swapped, Version, Versioned};
use palisade_testkit::certs;
use palisade_testkit::etcd::{Cluster, Etcd};
use palisade_testkit::proxy::Way;

fn keys(server: &Etcd) -> VersionedKeys {
    VersionedKeys::connect(format!("etcd://{}", server.address())).expect("a good URL")
}

#[track_caller]
fn done(swapped: Swapped) -> Version {
    match swapped {
        Swapped::Done(version) => version,
        Swapped::Conflict(current) => panic!("a conflict with {current:?}"),
    }
}

#[track_caller]
fn conflict(swapped: Swapped) -> Option<Versioned> {
    match swapped {
        Swapped::Done(version) => panic!("done, with {version}"),
        Swapped::Conflict(current) => current,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_changes_only_if_it_was_seen() {
    let server = Etcd::start();
    let keys = keys(&server);
    assert_eq!(keys.get("k").await.expect("read"), None);
    let first = done(keys.swap("k", None, "1").await.expect("an answer"));
    assert_eq!(
        conflict(keys.swap("k", None, "2").await.expect("an answer")).map(|now| now.version),
        Some(first)
    );
    let second = done(keys.swap("k", Some(first), "2").await.expect("an answer"));
    assert!(second > first);
    let now =
        conflict(keys.swap("k", Some(first), "3").await.expect("an answer")).expect("a value");
    assert_eq!((now.version, &now.value[..]), (second, &b"2"[..]));
    assert_eq!(
        conflict(keys.remove("k", first).await.expect("an answer")),
        Some(now)
    );
    let removed = done(keys.remove("k", second).await.expect("an answer"));
    assert_eq!(
        conflict(keys.swap("k", Some(second), "3").await.expect("an answer")),
        None
    );
    // Made again: no version repeats.
    let again = done(keys.swap("k", None, "2").await.expect("an answer"));
    assert!(removed > second && again > removed);
    // Writes by other clients are seen as well.
    server.etcdctl(&["put", "k", "2"]);
    assert!(
        conflict(keys.swap("k", Some(again), "3").await.expect("an answer"))
            .is_some_and(|now| now.version > again)
    );
    // What is no version is not taken for the absence of one.
    let refused = keys
        .swap("absent", Some(Version::new(0)), "x")
        .await
        .expect_err("refused");
    assert!(matches!(refused, SwapError::Refused(_)), "{refused}");
    assert_eq!(keys.get("absent").await.expect("read"), None);
}

fn one_more(old: Option<&[u8]>) -> Option<Vec<u8>> {
    let count: u64 = old.map_or(0, |old| {
        std::str::from_utf8(old)
            .expect("text")
            .parse()
            .expect("a number")
    });
    Some((count + 1).to_string().into_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_count_and_none_is_lost() {
    const TASKS: usize = 8;
    const EACH: usize = 50;
    let server = Etcd::start();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let keys = keys(&server).tries(10_000);
            tokio::spawn(async move {
                for _ in 0..EACH {
                    assert!(
                        keys.update("counter", one_more)
                            .await
                            .expect("counted")
                            .is_some()
                    );
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let count = keys(&server)
        .get("counter")
        .await
        .expect("read")
        .expect("a value");
    assert_eq!(count.value, (TASKS * EACH).to_string().into_bytes());
    // With one try, a faster client always wins. A change that returns nothing changes nothing.
    let keys = keys(&server);
    let contended = keys.clone().tries(1);
    let outcome = contended
        .update("counter", |old| {
            server.etcdctl(&["put", "counter", "0"]);
            one_more(old)
        })
        .await;
    assert!(
        matches!(outcome, Err(UpdateError::Contended { tries: 1 })),
        "{outcome:?}"
    );
    assert_eq!(
        keys.update("counter", |_| None)
            .await
            .expect("left as it is"),
        None
    );
}

/// Settles a swap. The first request may still go out on a connection that the proxy has reset.
async fn settled(keys: &VersionedKeys, swap: &PendingSwap) -> Settled {
    let settling = async {
        loop {
            match keys.settle(swap).await {
                Ok(settled) => return settled,
                Err(SwapError::Unanswered { cause, .. }) => {
                    assert_eq!(cause.kind(), ErrorKind::Unavailable, "{cause}")
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(LIMIT, settling)
        .await
        .expect("an answer")
}

/// The answer is lost, and the swap was done; or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_settled_or_unknown() {
    let server = Etcd::start();
    let proxy = proxy(&server);
    let direct = keys(&server);
    let through = || {
        let url = format!("etcd://{}?request_timeout=1s", proxy.address());
        VersionedKeys::connect(url).expect("a good URL")
    };
    let first = done(direct.swap("k", None, "1").await.expect("an answer"));
    let lose = async |way: Way, expected: Version, value: &str| {
        let keys = through();
        assert!(keys.get("k").await.expect("read").is_some());
        proxy.stall(way);
        let lost = keys
            .swap("k", Some(expected), value)
            .await
            .expect_err("no answer");
        proxy.reset();
        proxy.heal();
        let SwapError::Unanswered { swap, cause } = lost else {
            panic!("{lost}")
        };
        assert_eq!(
            (cause.kind() == ErrorKind::Unavailable, swap.expected()),
            (true, Some(expected)),
            "{cause}"
        );
        (keys, swap)
    };
    // It never arrived: settling does it.
    let (keys, swap) = lose(Way::ToServer, first, "2").await;
    let Settled::Done(second) = settled(&keys, &swap).await else {
        panic!("not done")
    };
    assert_eq!(
        direct.get("k").await.expect("read").map(|now| now.version),
        Some(second)
    );
    // It never arrived, and another client wrote: it was not done.
    let (keys, swap) = lose(Way::ToServer, second, "3").await;
    let other = done(
        direct
            .swap("k", Some(second), "other")
            .await
            .expect("an answer"),
    );
    assert!(
        matches!(settled(&keys, &swap).await, Settled::Conflict(Some(now)) if now.version == other)
    );
    // It was done, but the same value may be another client's.
    let (keys, swap) = lose(Way::ToClient, other, "4").await;
    let outcome = settled(&keys, &swap).await;
    assert!(
        matches!(&outcome, Settled::Unknown(Some(now)) if now.value == b"4"),
        "{outcome:?}"
    );
    // Several changes since.
    let now = direct.get("k").await.expect("read").expect("a value");
    let (keys, swap) = lose(Way::ToServer, now.version, "secret").await;
    for value in ["6", "7"] {
        server.etcdctl(&["put", "k", value]);
    }
    assert!(matches!(
        settled(&keys, &swap).await,
        Settled::Unknown(Some(_))
    ));
    assert!(
        !format!("{swap:?}").contains("secret"),
        "the value is not shown"
    );
}

/// As the locks: TLS, a login, and several members, of which one is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_url_is_that_of_the_locks() {
    let three = std::thread::spawn(Cluster::secured)
        .join()
        .expect("a cluster");
    let url = format!(
        "etcds://locker:lockpw@{}/lock?ca={}",
        three.addresses(),
        certs().ca.display()
    );
    let keys = VersionedKeys::connect(url).expect("a good URL");
    three.leader().kill();
    let counting = async {
        loop {
            match keys.update("lock/counter", one_more).await {
                Ok(version) => return version,
                Err(UpdateError::Swap(
                    SwapError::Refused(error) | SwapError::Unanswered { cause: error, .. },
                )) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    assert!(
        tokio::time::timeout(LIMIT, counting)
            .await
            .expect("two of three are enough")
            .is_some()
    );
    let denied = keys.get("elsewhere").await.expect_err("no right");
    assert!(
        matches!(&denied, SwapError::Refused(error) if error.kind() == ErrorKind::Denied),
        "{denied}"
    );
}
