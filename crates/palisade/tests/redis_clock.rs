//! A server whose clock is wrong: fences rise, no claim is kept out for an hour, and a server that
//! has lost its data and its clock is refused.

#![cfg(feature = "redis")]

mod common;

use std::time::Duration;

use common::ms;
use common::redis::{
    LONG, connect, gets_in, give_back, in_line, is_renewed, is_told, rise, soon, wait_for,
};
use palisade::{Client, ErrorKind, Fence, Mutex};
use palisade_testkit::redis::Redis;

const HOUR: Duration = Duration::from_secs(3600);

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

/// One cycle, and its fence.
async fn cycle(client: &Client, name: &str) -> Fence {
    let guard = soon(
        "a grant",
        client
            .mutex(name)
            .lease(LONG)
            .store_wait(ms(2000))
            .acquire(),
    )
    .await
    .expect("a grant");
    let fence = guard.fence();
    give_back(guard).await;
    fence
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_whatever_the_clock_does() {
    let redis = Redis::with().clock().start();
    let client = connect(redis.url());
    let mut fences = vec![cycle(&client, "jumps").await];
    redis.clock().set_ahead(HOUR);
    fences.push(cycle(&client, "jumps").await);
    redis.clock().set_right();
    fences.push(cycle(&client, "jumps").await);
    redis.clock().set_back(HOUR);
    fences.push(cycle(&client, "jumps").await);
    fences.push(cycle(&client, "jumps").await);
    rise(&fences);
    // An hour later by its clock it has forgotten a fence that is ahead of the right time: again its
    // data and its clock are lost.
    redis.clock().set_right();
    let refused = client
        .mutex("jumps")
        .try_acquire()
        .await
        .expect_err("rather than a lower fence");
    assert!(
        refused.to_string().contains("gave a fence lower"),
        "{refused}"
    );
}

/// A step forward ends every lease: holders and waiters are told, and can acquire again. The store
/// frees by its own clock, so it breaks no promise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_steps_ahead_keeps_no_claim_out() {
    let redis = Redis::with().clock().start();
    let (holder, waiter, outside) = (
        connect(redis.url()),
        connect(redis.url()),
        connect(redis.url()),
    );
    let held = holder
        .mutex("ahead")
        .lease(ms(3000))
        .acquire()
        .await
        .expect("a grant");
    let waiting = wait_for(&long(&waiter, "ahead"));
    in_line(&outside, "ahead", 1).await;
    redis.clock().set_ahead(HOUR);
    let next = gets_in(waiting).await;
    is_told(&held).await;
    rise(&[held.fence(), next.fence()]);
}

/// A step back makes leases seem to begin in the future: they last as long as was asked, and not an
/// hour more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_steps_back_keeps_no_claim_out_for_an_hour() {
    let redis = Redis::with().clock().start();
    let (holder, waiter, outside) = (
        connect(redis.url()),
        connect(redis.url()),
        connect(redis.url()),
    );
    // Renewed through the step.
    let held = holder
        .mutex("back")
        .lease(ms(3000))
        .acquire()
        .await
        .expect("a grant");
    let waiting = wait_for(&long(&waiter, "back"));
    in_line(&outside, "back", 1).await;
    // This one is not renewed: its process has crashed.
    let crashed = holder
        .mutex("crashed")
        .lease(ms(2000))
        .auto_renew(false)
        .acquire()
        .await
        .expect("a grant");
    let fence = crashed.fence();
    let after_crash = wait_for(&long(&waiter, "crashed"));
    in_line(&outside, "crashed", 1).await;
    redis.clock().set_back(HOUR);
    is_renewed(&held).await;
    is_renewed(&held).await;
    assert!(held.is_held() && !waiting.is_finished());
    let next = gets_in(after_crash).await;
    rise(&[fence, next.fence()]);
    let fence = held.fence();
    give_back(held).await;
    rise(&[fence, gets_in(waiting).await.fence()]);
}

/// The server has lost the last fence and the time, so its fences may fall. A client that remembers
/// the last fence refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_data_and_its_clock_is_refused() {
    let redis = Redis::with().clock().start();
    let (client, waiter) = (connect(redis.url()), connect(redis.url()));
    let first = cycle(&client, "amnesia").await;
    cycle(&waiter, "amnesia").await;
    redis.clock().set_back(HOUR);
    redis.call(&["FLUSHALL"]);
    let refused = client
        .mutex("amnesia")
        .store_wait(ms(300))
        .acquire()
        .await
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(
        refused.to_string().contains("gave a fence lower"),
        "{refused}"
    );
    client.shutdown().await;
    assert!(
        client
            .show("amnesia")
            .await
            .expect("an answer")
            .is_none_or(|line| line.holders.is_empty()),
        "given back"
    );
    // By hand-off: a client that does not remember holds, and releases to one that does.
    let forgetful = connect(redis.url());
    let low = forgetful
        .mutex("amnesia")
        .acquire()
        .await
        .expect("nothing to compare with");
    assert!(low.fence() < first);
    let waiting = {
        let mutex = waiter.mutex("amnesia").lease(LONG).store_wait(ms(300));
        tokio::spawn(async move { mutex.acquire().await })
    };
    in_line(&forgetful, "amnesia", 1).await;
    give_back(low).await;
    let refused = soon("refused", waiting)
        .await
        .expect("no panic")
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(
        refused.to_string().contains("gave a fence lower"),
        "{refused}"
    );
    // The clock is right again, and the store is usable.
    redis.clock().set_right();
    rise(&[first, cycle(&client, "amnesia").await]);
}
