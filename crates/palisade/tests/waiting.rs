//! Waiting: what brings the turn, what ends the wait, and what is left of an abandoned claim.
//!
//! Clocks stand still where the point is that no heartbeat heals what a push or a timer should have
//! brought.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::scripted_store::{Script, ScriptedStore};
use common::{Bench, bench, bench_on, ms};
use palisade::lease::{BootClock, Clock, ManualClock};
use palisade::store::Capability;
use palisade::stores::memory::MemoryStore;
use palisade::{Client, ErrorKind, Guard, Mutex, Result};
use palisade_conformance::faults::Faulty;
use palisade_conformance::{PATIENCE, eventually};
use tokio::task::JoinHandle;

/// A client over a scripted store, and one that bypasses the script.
fn scripted(
    clock: Arc<dyn Clock>,
    capability: fn(Capability) -> Capability,
) -> (Client, Client, Arc<Script>) {
    let store = MemoryStore::new(Arc::new(BootClock));
    let (scripted, script) = ScriptedStore::over(Arc::new(store.another()), capability);
    (
        Client::over(scripted, clock),
        Client::over(Arc::new(store), Arc::new(BootClock)),
        script,
    )
}

/// Begins to acquire, and returns when the client knows that it stands in line.
async fn stands_in_line(client: &Client, lock: Mutex) -> JoinHandle<Result<Guard>> {
    let before = client.stats().kept;
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("in line", async || client.stats().kept > before).await;
    waiting
}

async fn acquired(waiting: JoinHandle<Result<Guard>>) -> Guard {
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("its turn comes")
        .expect("no panic")
        .expect("acquired")
}

async fn free(client: &Client, name: &str) {
    eventually("the name is free", async || {
        client.show(name).await.expect("an answer").is_none()
    })
    .await;
}

/// A hand-over is one push: no heartbeat, no request.
#[tokio::test]
async fn a_push_brings_the_turn() {
    let Bench {
        client,
        outside,
        faults,
    } = bench_on(Arc::new(ManualClock::new()), Arc::new(BootClock));
    let holder = outside.mutex("push").acquire().await.expect("acquired");
    let waiting = stands_in_line(&client, client.mutex("push")).await;
    drop(holder);
    drop(acquired(waiting).await);
    assert_eq!(faults.renewals(), 0);
}

/// A push that only says that something has changed makes the waiter ask at once.
#[tokio::test]
async fn a_push_without_a_grant_makes_it_ask() {
    let (client, outside, script) = scripted(Arc::new(ManualClock::new()), |can| can);
    script.pushes_only_ask.store(true, Ordering::SeqCst);
    let holder = outside.mutex("ask").acquire().await.expect("acquired");
    let waiting = stands_in_line(&client, client.mutex("ask")).await;
    drop(holder);
    drop(acquired(waiting).await);
}

/// Time has no event: the first in line asks when the closed period is over, and not at its next
/// heartbeat.
#[tokio::test]
async fn the_first_in_line_asks_when_time_alone_may_free_the_name() {
    let clock = ManualClock::new();
    let Bench {
        client, outside, ..
    } = bench_on(Arc::new(clock.clone()), Arc::new(clock.clone()));
    drop(
        outside
            .mutex("closed")
            .min_hold(ms(400))
            .acquire()
            .await
            .expect("acquired"),
    );
    let waiting = stands_in_line(&client, client.mutex("closed")).await;
    clock.advance(ms(400));
    drop(acquired(waiting).await);
}

/// The store forgot the waiter: it queues again at the end of the line, without an error.
#[tokio::test]
async fn a_waiter_that_the_store_forgot_queues_again() {
    let theirs = ManualClock::new();
    let Bench {
        client, outside, ..
    } = bench_on(Arc::new(BootClock), Arc::new(theirs.clone()));
    let holder = outside
        .mutex("forgotten")
        .lease(Duration::from_secs(3600))
        .acquire()
        .await
        .expect("acquired");
    let waiting = stands_in_line(&client, client.mutex("forgotten").lease(ms(300))).await;
    let in_line = async || {
        outside
            .show("forgotten")
            .await
            .expect("an answer")
            .expect("held")
            .waiters
            .len()
    };
    assert_eq!(in_line().await, 1);
    theirs.advance(ms(400));
    assert_eq!(in_line().await, 0);
    eventually("in line again", async || in_line().await == 1).await;
    drop(holder);
    drop(acquired(waiting).await);
}

/// An outage shorter than `store_wait` costs the user nothing, before the line and in it.
#[tokio::test]
async fn a_short_outage_is_waited_out() {
    let store = MemoryStore::new(Arc::new(BootClock));
    let (faulty, faults) = Faulty::over(Arc::new(store.another()));
    let (scripted, script) = ScriptedStore::over(faulty, |can| can);
    let (client, outside) = (
        Client::over(scripted, Arc::new(BootClock)),
        Client::over(Arc::new(store), Arc::new(BootClock)),
    );
    faults.cut(true);
    let lock = client.mutex("away").store_wait(PATIENCE);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("tried again", async || {
        script.claims.load(Ordering::SeqCst) >= 3
    })
    .await;
    faults.cut(false);
    drop(acquired(waiting).await);
    free(&outside, "away").await;
    let holder = outside.mutex("away").acquire().await.expect("acquired");
    let waiting = stands_in_line(
        &client,
        client.mutex("away").lease(ms(600)).store_wait(PATIENCE),
    )
    .await;
    faults.cut(true);
    let before = faults.renewal_requests();
    eventually("asked again", async || {
        faults.renewal_requests() >= before + 3
    })
    .await;
    faults.cut(false);
    drop(holder);
    drop(acquired(waiting).await);
}

/// A longer outage is `Unavailable`, and nothing is left of the claim, in the client or in the
/// store.
#[tokio::test]
async fn a_long_outage_is_an_error() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let gives_up = async |lock: Mutex| {
        let error = tokio::time::timeout(PATIENCE, lock.acquire())
            .await
            .expect("it gives up")
            .expect_err("the store is away");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    };
    // The claims arrive, and only their answers are lost.
    faults.lose_replies(true);
    gives_up(client.mutex("away").store_wait(ms(50))).await;
    assert!(
        outside
            .show("away")
            .await
            .expect("an answer")
            .is_none_or(|line| line.waiters.is_empty())
    );
    faults.lose_replies(false);
    free(&outside, "away").await;
    // In line.
    let holder = outside.mutex("line").acquire().await.expect("acquired");
    let waiting = stands_in_line(
        &client,
        client.mutex("line").lease(ms(300)).store_wait(ms(200)),
    )
    .await;
    faults.cut(true);
    let answer = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("it gives up")
        .expect("no panic");
    assert_eq!(
        answer.expect_err("the store is away").kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(client.stats().kept, 0, "the place in line is still kept");
    faults.cut(false);
    drop(holder);
    free(&outside, "line").await;
}

/// A waiter asks an unreachable store at intervals, also when its place must have ended long ago.
#[tokio::test]
async fn an_outage_is_no_storm() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let _holder = outside.mutex("storm").acquire().await.expect("acquired");
    let waiting = stands_in_line(
        &client,
        client.mutex("storm").lease(ms(300)).store_wait(ms(1200)),
    )
    .await;
    faults.cut(true);
    let before = faults.renewal_requests();
    assert!(
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .expect("it gives up")
            .expect("no panic")
            .is_err()
    );
    let asked = faults.renewal_requests() - before;
    assert!(asked < 250, "{asked} requests in a second");
}

/// The caller leaves between two attempts: the claim may have arrived all the same, and is
/// withdrawn.
#[tokio::test]
async fn leaving_between_two_attempts_withdraws() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    faults.lose_replies(true);
    let lock = client.mutex("left").store_wait(PATIENCE);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("arrived", async || {
        outside.show("left").await.expect("an answer").is_some()
    })
    .await;
    waiting.abort();
    assert!(waiting.await.is_err());
    faults.lose_replies(false);
    free(&outside, "left").await;
}

/// A time-out while the claim is in flight: the claim arrives, and is then withdrawn. Without an
/// answer it is unknown whether the name is taken.
#[tokio::test]
async fn a_time_out_on_the_way_withdraws() {
    let clock = ManualClock::new();
    let Bench {
        client,
        outside,
        faults,
    } = bench_on(Arc::new(clock.clone()), Arc::new(BootClock));
    faults.close_gate();
    let lock = client.mutex("late");
    let hour = Duration::from_secs(3600);
    let waiting = tokio::spawn(async move { lock.acquire_timeout(hour).await });
    faults.steps(1);
    eventually("arrived", async || {
        outside.show("late").await.expect("an answer").is_some()
    })
    .await;
    // The user's clock is moved by hand: the wait must hear of it.
    clock.advance(hour);
    let answer = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("in time")
        .expect("no panic");
    assert_eq!(
        answer.expect_err("the wait is over").kind(),
        ErrorKind::Unavailable
    );
    faults.steps(100);
    free(&outside, "late").await;
}

/// Where the claim itself waits in the store, only a concurrent release ends it.
#[tokio::test]
async fn leaving_ends_a_claim_that_waits_in_the_store() {
    let capability = |can| Capability {
        claim_blocks: true,
        ..can
    };
    let (client, _, script) = scripted(Arc::new(BootClock), capability);
    script.claim_waits.store(true, Ordering::SeqCst);
    let lock = client.mutex("engine");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", async || {
        script.claims.load(Ordering::SeqCst) == 1
    })
    .await;
    waiting.abort();
    assert!(waiting.await.is_err());
    tokio::time::timeout(PATIENCE, client.shutdown())
        .await
        .expect("the claim is ended");
}

/// The caller's task polls the store's futures: a store that answers at once costs no thread
/// switch, also in a drop.
#[tokio::test]
async fn a_store_that_answers_at_once_is_asked_in_the_callers_thread() {
    let here = std::thread::current().name().map(str::to_owned);
    let (client, _, script) = scripted(Arc::new(BootClock), |can| can);
    drop(client.mutex("here").acquire().await.expect("acquired"));
    assert_eq!(script.take_threads(), [here.clone(), here]);
}

/// A grant that comes with little time left is renewed before its holder begins.
#[tokio::test]
async fn a_grant_with_little_left_is_renewed_first() {
    let ours = ManualClock::new();
    let Bench {
        client,
        outside,
        faults,
    } = bench_on(Arc::new(ours.clone()), Arc::new(BootClock));
    let holder = outside.mutex("little").acquire().await.expect("acquired");
    let mut waiting = stands_in_line(
        &client,
        client.mutex("little").lease(Duration::from_secs(20)),
    )
    .await;
    // No heartbeat is answered: when the push comes, the place in line is as old as the claim.
    faults.hang(true);
    ours.advance(ms(4000));
    eventually("a heartbeat is on its way", async || {
        faults.renewal_requests() > 0
    })
    .await;
    drop(holder);
    eventually("asked again", async || faults.renewal_requests() > 1).await;
    assert!(
        tokio::time::timeout(ms(100), &mut waiting).await.is_err(),
        "begun with less than a second"
    );
    faults.hang(false);
    let guard = acquired(waiting).await;
    assert!(
        guard.remaining() > Duration::from_secs(10),
        "only {:?} left",
        guard.remaining()
    );
}
