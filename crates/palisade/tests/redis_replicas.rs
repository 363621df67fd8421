//! Grants that a failover could lose are refused, and grants that it did lose are told.

#![cfg(feature = "redis")]

mod common;

use common::ms;
use common::redis::{
    LONG, connect, gets_in, give_back, in_line, is_told, key, rise, soon, wait_for,
};
use palisade::{Client, ErrorKind, Mutex};
use palisade_conformance::eventually;
use palisade_testkit::redis::Sentinel;

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

/// Kills the primary, whose replica lacks all writes since it was cut off, and returns when that
/// replica is the primary.
fn lose_the_primary(pair: &Sentinel) {
    let (old, new) = (pair.primary(), pair.replica());
    old.kill();
    new.resume();
    pair.wait_for_primary(new);
}

/// Waits until the primary reports no replica.
async fn replica_is_gone(pair: &Sentinel) {
    eventually("no replica", async || {
        pair.primary().call(&["ROLE"]).list()[2].list().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_no_replica_has_is_refused_and_given_back() {
    let pair = Sentinel::start();
    // One client with `replicas=1`, and one with the default, which is the same here.
    let (strict, default) = (
        connect(format!("{}?replicas=1", pair.url())),
        connect(pair.url()),
    );
    let before = long(&strict, "stranded").acquire().await.expect("a grant");
    let fence = before.fence();
    give_back(before).await;
    // The default knows of the replica from now on.
    give_back(long(&default, "known").acquire().await.expect("a grant")).await;
    // The replica does not read any more, and the primary does not know it yet: the default needs
    // it as well.
    pair.replica().pause();
    for client in [&strict, &default] {
        let refused = client
            .mutex("stranded")
            .try_acquire()
            .await
            .expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("replicas"), "{refused}");
        let line = client.show("stranded").await.expect("an answer");
        assert!(
            line.is_none_or(|line| line.holders.is_empty()),
            "given back"
        );
    }
    // A claim that waits for the store is granted when the replica is back.
    let waiting = wait_for(&long(&strict, "stranded"));
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished());
    pair.replica().resume();
    let after = gets_in(waiting).await;
    rise(&[fence, after.fence()]);
    // And that grant survives.
    let (old, new) = (pair.primary(), pair.replica());
    old.kill();
    pair.wait_for_primary(new);
    eventually("it is there", async || {
        new.call(&["EXISTS", &key("stranded")]).int() == Some(1)
    })
    .await;
    assert!(after.is_held());
}

/// The last replica goes. By default the locks stay available; with `replicas=1` they do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_needs_no_replica_when_the_last_one_goes() {
    let pair = Sentinel::start();
    let (strict, default) = (
        connect(format!("{}?replicas=1", pair.url())),
        connect(pair.url()),
    );
    for client in [&strict, &default] {
        give_back(long(client, "last").acquire().await.expect("a grant")).await;
    }
    pair.replica().kill();
    replica_is_gone(&pair).await;
    let held = soon("the default goes on", long(&default, "last").acquire())
        .await
        .expect("a grant");
    let refused = strict
        .mutex("other")
        .try_acquire()
        .await
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("replicas"), "{refused}");
    assert!(held.is_held());
}

/// Without replicas a failover may lose a grant: it is granted a second time, the first holder is
/// told at its next contact, and the fence tells them apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_a_failover_loses_the_grant_and_the_fence_tells() {
    let pair = Sentinel::start();
    let (holder, next) = (
        connect(format!("{}?replicas=0", pair.url())),
        connect(pair.url()),
    );
    pair.strand_replica();
    let held = long(&holder, "lost")
        .acquire()
        .await
        .expect("a grant on the primary alone");
    lose_the_primary(&pair);
    let second = soon("granted again", long(&next, "lost").acquire())
        .await
        .expect("a grant");
    rise(&[held.fence(), second.fence()]);
    is_told(&held).await;
    assert!(second.is_held());
}

/// The releasing client writes the hand-off. The next holder's client checks that a replica has it
/// before the core gets the grant: here none has, and the failover loses it. The release is lost with
/// the hand-off: on the new primary the first claim still holds, for two minutes. Its client repeats
/// the release when it reaches the new primary, and the waiter is granted once there is a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_that_no_replica_has_is_refused() {
    let pair = Sentinel::start();
    let strict = format!("{}?replicas=1", pair.url());
    let (holder, waiter, outside) = (connect(&strict), connect(&strict), connect(&strict));
    let held = long(&holder, "handed").acquire().await.expect("a grant");
    let first = held.fence();
    let waiting = wait_for(&long(&waiter, "handed"));
    in_line(&outside, "handed", 1).await;
    pair.strand_replica();
    // The primary hands over at once; only the confirmation is missing.
    give_back(held).await;
    let handed = outside.show("handed").await.expect("an answer");
    assert!(
        handed.is_some_and(|line| line.holders.len() == 1),
        "handed over, or claimed again"
    );
    tokio::time::sleep(ms(1500)).await;
    assert!(!waiting.is_finished(), "believed without a replica");
    let (old, new) = (pair.primary(), pair.replica());
    lose_the_primary(&pair);
    assert!(!waiting.is_finished(), "believed without a replica");
    old.restart();
    // The sentinels would do it some seconds later.
    old.call(&[
        "REPLICAOF",
        &new.ip().to_string(),
        &new.address().port().to_string(),
    ]);
    let next = gets_in(waiting).await;
    rise(&[first, next.fence()]);
    // The waiter's grant is the one on the new primary. Not every sentinel knows the new primary yet,
    // so some may still name the old one.
    eventually("an answer", async || outside.show("handed").await.is_ok()).await;
    let line = outside.show("handed").await.expect("an answer");
    assert_eq!(line.expect("held").holders[0].fence, next.fence());
}
