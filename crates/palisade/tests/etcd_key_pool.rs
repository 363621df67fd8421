//! Keys in etcd that are used again, and those that never are.

#![cfg(feature = "etcd")]

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use common::actors::connect;
use common::etcd::{LIMIT, LONG, Metrics, client, keys, keys_ever, leases, line_is, proxy};
use palisade::store::{
    Answer, Change, Claim, ClaimId, Ending, Kind, Mode, Revoked, Standing, Store,
};
use palisade::{Client, Guard, Released};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::proxy::Way;

async fn acquire(client: &Client, name: &str) -> Guard {
    client
        .mutex(name)
        .lease(LONG)
        .store_wait(LONG)
        .acquire()
        .await
        .expect("a grant")
}

async fn release(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
}

/// The one key of a name.
fn key_of(server: &Etcd, name: &str) -> String {
    let found: Vec<String> = keys(server)
        .into_iter()
        .filter(|key| key.starts_with(&format!("lock/{name}/")))
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().expect("a key")
}

/// The server's index keeps every key that ever was: one cycle after the other needs only one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_serves_all_cycles_of_a_name() {
    let server = Etcd::start();
    let client = client(&server);
    for format in ["mutex", "plain"] {
        let ours = connect(format!("etcd://{}/lock?format={format}", server.address()));
        let mut last = palisade::Fence::NONE;
        for _ in 0..200 {
            let guard = acquire(&ours, format).await;
            assert!(guard.fence() > last, "each has a fence of its own");
            last = guard.fence();
            // A claim that is turned away creates no key, and uses none up.
            assert!(
                ours.mutex(format)
                    .try_acquire()
                    .await
                    .expect("an answer")
                    .is_none()
            );
            release(guard).await;
        }
    }
    let made = keys_ever(&server);
    assert_eq!(made.len(), 400);
    let different: HashSet<&String> = made.iter().collect();
    assert_eq!(different.len(), 2, "{different:?}");
    // Those who are there at the same time have different ones, of course, which are used again as
    // well.
    let turns = 25;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let lock = client.rwlock("readers").lease(LONG);
            tokio::spawn(async move {
                for _ in 0..turns {
                    let guard = lock.read().await.expect("a grant");
                    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let readers: Vec<String> = keys_ever(&server)
        .into_iter()
        .filter(|key| key.starts_with("lock/readers/"))
        .collect();
    assert!(readers.len() >= 4 * turns);
    let different: HashSet<&String> = readers.iter().collect();
    assert!(different.len() <= 4, "{different:?}");
}

/// Waiters that are served, and those that give up, leave their keys to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_leave_their_keys_to_the_next() {
    let server = Etcd::start();
    let (holder, waiter) = (client(&server), client(&server));
    for round in 0..10 {
        let held = acquire(&holder, "line").await;
        let lock = waiter.mutex("line").lease(LONG).store_wait(LONG);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        line_is(&holder, "line", (1, 1)).await;
        if round % 2 == 0 {
            waiting.abort();
        } else {
            release(held).await;
            release(
                tokio::time::timeout(LIMIT, waiting)
                    .await
                    .expect("its turn")
                    .expect("no panic")
                    .expect("a grant"),
            )
            .await;
            continue;
        }
        line_is(&holder, "line", (1, 0)).await;
        release(held).await;
    }
    let different: HashSet<String> = keys_ever(&server).into_iter().collect();
    // One of each client; and another where the next claim came before the answer to a withdrawal.
    assert!(different.len() <= 4, "{different:?}");
}

/// A claim that was sent twice may arrive a second time, after everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_claim_that_was_sent_twice_is_not_used_again() {
    let server = Etcd::start();
    let proxy = proxy(&server);
    let ours = connect(format!(
        "etcd://{}/lock?request_timeout=2s",
        proxy.address()
    ));
    release(acquire(&ours, "twice").await).await;
    proxy.stall(Way::ToClient);
    let lock = ours.mutex("twice").lease(LONG).store_wait(LONG);
    let claiming = tokio::spawn(async move { lock.acquire().await });
    line_is(&client(&server), "twice", (1, 0)).await;
    let key = key_of(&server, "twice");
    proxy.reset();
    proxy.heal();
    let guard = tokio::time::timeout(LIMIT, claiming)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("a grant");
    assert_eq!(key_of(&server, "twice"), key, "it has found itself");
    release(guard).await;
    let next = acquire(&ours, "twice").await;
    assert_ne!(key_of(&server, "twice"), key);
    release(next).await;
    let different: HashSet<String> = keys_ever(&server).into_iter().collect();
    assert_eq!(
        different.len(),
        2,
        "the first was used again, as long as it was sure: {different:?}"
    );
}

/// A release that was not answered may arrive when the next one holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_release_that_was_not_answered_is_not_used_again() {
    let server = Etcd::start();
    let proxy = proxy(&server);
    let ours = connect(format!(
        "etcd://{}/lock?request_timeout=1s",
        proxy.address()
    ));
    let guard = acquire(&ours, "lost").await;
    let key = key_of(&server, "lost");
    proxy.stall(Way::ToClient);
    let releasing = tokio::spawn(async move { guard.release().await });
    line_is(&client(&server), "lost", (0, 0)).await;
    proxy.reset();
    proxy.heal();
    let released = tokio::time::timeout(LIMIT, releasing)
        .await
        .expect("in time")
        .expect("no panic");
    println!("the release: {released:?}");
    let next = acquire(&ours, "lost").await;
    assert_ne!(key_of(&server, "lost"), key);
    release(next).await;
}

/// A release is by the create revision, and not by the key alone: another client has deleted the
/// key and made it anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_deletes_only_the_key_that_its_claim_created() {
    let server = Etcd::start();
    let proxy = proxy(&server);
    let ours = connect(format!("etcd://{}/lock", proxy.address()));
    let guard = acquire(&ours, "again").await;
    let key = key_of(&server, "again");
    // The holder must not hear of it: it would not release.
    proxy.stall(Way::ToClient);
    server.etcdctl(&["del", &key]);
    server.etcdctl(&["put", &key, "another"]);
    let asked = Metrics::of(&server).begun("Txn");
    let releasing = tokio::spawn(async move { guard.release().await });
    eventually("the release has arrived", async || {
        Metrics::of(&server).begun("Txn") > asked
    })
    .await;
    proxy.heal();
    let released = tokio::time::timeout(LIMIT, releasing)
        .await
        .expect("in time")
        .expect("no panic");
    assert_eq!(released.expect("an answer"), Released::AlreadyLost);
    ours.shutdown().await;
    assert_eq!(keys(&server), [key]);
}

/// The key of a claim that another client has ended is not taken for gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_claim_that_others_ended_is_not_used_again() {
    let server = Etcd::start();
    let (ours, outside) = (client(&server), client(&server));
    let guard = acquire(&ours, "ended").await;
    let revoked = key_of(&server, "ended");
    assert_eq!(
        outside
            .revoke("ended", guard.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    tokio::time::timeout(LIMIT, guard.lost())
        .await
        .expect("told");
    drop(guard);
    let guard = acquire(&ours, "ended").await;
    let second = key_of(&server, "ended");
    assert_ne!(second, revoked);
    // Before it hears of it: its release finds nothing.
    assert_eq!(
        outside
            .revoke("ended", guard.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    assert_ne!(
        guard.release().await.ok(),
        Some(Released::Done),
        "it was lost"
    );
    let guard = acquire(&ours, "ended").await;
    let third = key_of(&server, "ended");
    assert!(third != revoked && third != second);
    for lease in leases(&server) {
        server.etcdctl(&["lease", "revoke", &lease]);
    }
    tokio::time::timeout(LIMIT, guard.lost())
        .await
        .expect("told");
    let guard = acquire(&ours, "ended").await;
    assert!(![revoked, second, third].contains(&key_of(&server, "ended")));
    release(guard).await;
}

/// Grants that others carry on are found by the claim, and a minimum hold keeps its key: neither
/// lends it to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_others_may_know_are_not_used_again() {
    let server = Etcd::start();
    let ours = client(&server);
    let span = Duration::from_millis(10);
    for round in 0..3 {
        let lock = ours.mutex("known").lease(LONG);
        let lock = if round % 2 == 0 {
            lock.detachable()
        } else {
            lock.min_hold(span)
        };
        let guard = lock.acquire_timeout(LIMIT).await.expect("a grant");
        tokio::time::sleep(span).await;
        release(guard).await;
    }
    release(acquire(&ours, "known").await).await;
    let made = keys_ever(&server);
    let different: HashSet<&String> = made.iter().collect();
    assert_eq!((made.len(), different.len()), (4, 4), "{made:?}");
}

fn claim(name: &str) -> Arc<Claim> {
    Arc::new(Claim {
        id: ClaimId::from_bits(fastrand::u128(..)),
        name: palisade::Name::new(name).expect("a good name"),
        kind: Kind::Mutex,
        mode: Mode::Exclusive,
        owner: "test".into(),
        reason: None,
        value: None,
        lease: LONG,
        exact_lease: false,
        queue: true,
        min_hold: None,
        once_per: None,
        detachable: false,
    })
}

/// A late request for a claim that has ended, by its fence or without, does nothing to the one
/// that has its key now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_claim_is_not_taken_for_the_one_that_has_its_key() {
    let server = Etcd::start();
    let url = format!("etcd://{}/lock", server.address())
        .parse()
        .expect("a URL");
    let store: Arc<dyn Store> = palisade::stores::open(url).expect("a store");
    let granted = async |claim: &Arc<Claim>| match store.claim(claim).await.expect("an answer") {
        Answer::Granted(grant) => grant,
        other => panic!("{other:?}"),
    };
    let (first, second) = (claim("turns"), claim("turns"));
    let early = granted(&first).await;
    let key = key_of(&server, "turns");
    assert_eq!(
        store
            .release(&first.to_ref(Some(early.fence)), Ending::Release)
            .await
            .expect("an answer"),
        Released::Done
    );
    let now = granted(&second).await;
    assert_eq!(key_of(&server, "turns"), key, "the same key");
    for fence in [Some(early.fence), None] {
        let late = first.to_ref(fence);
        for ending in [Ending::Release, Ending::Undo, Ending::Seal(LONG)] {
            let released = store.release(&late, ending).await.expect("an answer");
            assert_eq!(released, Released::AlreadyLost, "{fence:?} {ending:?}");
        }
        let standing = store
            .renew(std::slice::from_ref(&late))
            .await
            .pop()
            .expect("one")
            .expect("an answer");
        assert!(
            matches!(standing, Standing::Gone(_)),
            "{fence:?}: {standing:?}"
        );
        drop(
            store
                .change(&late, Change::Proclaim("usurper".into()))
                .await,
        );
        drop(store.change(&late, Change::Downgrade).await);
    }
    let held = second.to_ref(Some(now.fence));
    let standing = store
        .renew(std::slice::from_ref(&held))
        .await
        .pop()
        .expect("one")
        .expect("an answer");
    assert!(
        matches!(standing, Standing::Held(grant) if grant.fence == now.fence),
        "{standing:?}"
    );
    assert!(
        !server
            .etcdctl(&["get", "--prefix", "lock/turns/"])
            .contains("usurper")
    );
    assert_eq!(
        store
            .release(&held, Ending::Release)
            .await
            .expect("an answer"),
        Released::Done
    );
    assert_eq!(
        store
            .release(&held, Ending::Release)
            .await
            .expect("an answer"),
        Released::AlreadyLost
    );
}
