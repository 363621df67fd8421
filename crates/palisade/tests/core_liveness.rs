//! Waiters make progress, and nothing asks the store in a busy loop meanwhile.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::odd_store::OddStore;
use common::{Bench, bench, bench_on, give_back, in_line, ms, odd_bench};
use palisade::lease::{BootClock, Clock, ManualClock};
use palisade::stores::memory::MemoryStore;
use palisade::{Client, ErrorKind, Guard, LossReason, Mutex};
use palisade_conformance::around::Wrapped;
use palisade_conformance::faults::Faults;
use palisade_conformance::{PATIENCE, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

type Waiting = JoinHandle<palisade::Result<Guard>>;

/// How long renewals are counted. A keeper that spins sends hundreds in this time, and a correct
/// one a handful.
const WINDOW: Duration = ms(1000);

fn boot() -> Arc<BootClock> {
    Arc::new(BootClock)
}

/// A waiter behind a holder, in line.
async fn behind(holder: &Client, lock: Mutex) -> (Guard, Waiting) {
    let guard = holder.mutex("x").acquire().await.expect("acquired");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    in_line(holder, "x", 1).await;
    (guard, waiting)
}

async fn acquired(waiting: Waiting) -> Guard {
    timeout(PATIENCE, waiting)
        .await
        .expect("acquired in time")
        .expect("no panic")
        .expect("acquired")
}

/// Renewal requests within the window.
async fn requests(faults: &Faults) -> usize {
    let before = faults.renewal_requests();
    tokio::time::sleep(WINDOW).await;
    faults.renewal_requests() - before
}

/// A waiter outlives its own lease during an outage. It has no time left to divide by, and asks at
/// an even pace.
#[tokio::test]
async fn a_waiter_does_not_spin_through_an_outage() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let (_holder, waiting) = behind(
        &outside,
        client.mutex("x").lease(ms(300)).store_wait(PATIENCE),
    )
    .await;
    faults.cut(true);
    eventually("the outage is seen", async || faults.renewal_requests() > 0).await;
    tokio::time::sleep(ms(300)).await;
    let sent = requests(&faults).await;
    assert!(sent < 60, "{sent} renewals of one waiter");
    assert!(sent > 0 && !waiting.is_finished(), "it goes on");
    waiting.abort();
}

/// A store that neither answers nor fails must not receive ever more requests.
#[tokio::test]
async fn renewals_that_hang_do_not_pile_up() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let (_holder, waiting) = behind(
        &outside,
        client.mutex("x").lease(ms(300)).store_wait(PATIENCE),
    )
    .await;
    faults.hang(true);
    let sent = requests(&faults).await;
    assert!(sent <= 3, "{sent} renewals hang");
    faults.hang(false);
    waiting.abort();
}

/// One shard fails while another answers. An answer of the second must not look like the end of an
/// outage, which renews everything again.
#[tokio::test]
async fn a_dead_shard_does_not_make_the_keeper_spin() {
    let (Bench { client, faults, .. }, store) = odd_bench(boot(), |_| {});
    let minute = Duration::from_secs(60);
    let _dead = client
        .mutex("dead")
        .lease(minute)
        .acquire()
        .await
        .expect("acquired");
    let _alive = client
        .mutex("alive")
        .lease(minute)
        .acquire()
        .await
        .expect("acquired");
    store.shard_dies("dead");
    faults.restore();
    let sent = requests(&faults).await;
    assert!(sent < 20, "{sent} renewals of two leases of a minute");
}

/// Renewals in one request succeed and fail separately: holders on the other shards are renewed.
#[tokio::test]
async fn a_dead_shard_costs_only_its_own_holders() {
    let (Bench { client, .. }, store) = odd_bench(boot(), |_| {});
    let lease = ms(1500);
    let dead = client
        .mutex("dead")
        .lease(lease)
        .acquire()
        .await
        .expect("acquired");
    let alive = client
        .mutex("alive")
        .lease(lease)
        .acquire()
        .await
        .expect("acquired");
    store.shard_dies("dead");
    assert_eq!(
        timeout(PATIENCE, dead.lost()).await.expect("told"),
        LossReason::Expired
    );
    let remaining = alive.remaining();
    eventually("the other is renewed", async || {
        alive.remaining() > remaining
    })
    .await;
    assert!(alive.is_held());
}

/// A wake-up is no reason to ask a store that is unreachable: the keeper does that, at its own
/// pace.
#[tokio::test]
async fn an_eager_wake_does_not_make_the_keeper_spin_in_an_outage() {
    let (
        Bench {
            client,
            outside,
            faults,
        },
        store,
    ) = odd_bench(boot(), |_| {});
    let (_holder, waiting) = behind(
        &outside,
        client
            .mutex("x")
            .lease(Duration::from_secs(20))
            .store_wait(PATIENCE),
    )
    .await;
    faults.cut(true);
    store.wake_eagerly();
    let sent = requests(&faults).await;
    assert!(sent < 50, "{sent} renewals");
    waiting.abort();
}

/// A session's lease counts from its last heartbeat. When that is long ago, a renewal is overdue at
/// once and does not help.
#[tokio::test]
async fn an_old_heartbeat_does_not_make_the_keeper_spin() {
    let (Bench { client, faults, .. }, store) = odd_bench(boot(), |_| {});
    store.last_heartbeat(BootClock.now().before(Duration::from_secs(12)));
    let guard = client
        .mutex("x")
        .lease(Duration::from_secs(30))
        .acquire()
        .await
        .expect("acquired");
    let sent = requests(&faults).await;
    assert!(sent < 10, "{sent} renewals of a lease of 30 s");
    assert!(guard.is_held());
}

/// A claim that waits inside the engine is granted later than its lease, counted from its send.
/// Giving that up and queueing again would starve it.
#[tokio::test]
async fn a_grant_that_comes_late_is_kept() {
    let (lease, clock) = (Duration::from_secs(30), ManualClock::new());
    let (
        Bench {
            client, outside, ..
        },
        _,
    ) = odd_bench(Arc::new(clock.clone()), |capability| {
        capability.claim_blocks = true
    });
    let (holder, late) = behind(&outside, client.mutex("x").lease(lease)).await;
    let lock = outside.mutex("x");
    let next = tokio::spawn(async move { lock.acquire().await });
    in_line(&outside, "x", 2).await;
    clock.advance(lease * 2);
    give_back(holder).await;
    let guard = acquired(late).await;
    assert!(guard.is_held() && !next.is_finished(), "it kept its turn");
    give_back(guard).await;
    assert!(acquired(next).await.is_held());
}

/// A grant without auto-renewal is dated anew before it begins, also on a clock that stands still.
#[tokio::test]
async fn a_hand_over_without_renewal_needs_no_time_to_pass() {
    let Bench {
        client, outside, ..
    } = bench_on(Arc::new(ManualClock::new()), boot());
    let (holder, waiting) = behind(
        &outside,
        client
            .mutex("x")
            .lease(Duration::from_secs(4))
            .auto_renew(false),
    )
    .await;
    give_back(holder).await;
    assert!(acquired(waiting).await.is_held());
}

/// The same on a session: the renewal counts from the same heartbeat as before, so there is no
/// later deadline to wait for.
#[tokio::test]
async fn a_hand_over_without_renewal_needs_no_new_heartbeat() {
    let (
        Bench {
            client, outside, ..
        },
        store,
    ) = odd_bench(boot(), |_| {});
    store.last_heartbeat(BootClock.now());
    let (holder, waiting) = behind(
        &outside,
        client
            .mutex("x")
            .lease(Duration::from_secs(5))
            .auto_renew(false),
    )
    .await;
    give_back(holder).await;
    drop(acquired(waiting).await);
}

/// Another server answers while the old one's answer is read: that answer says nothing about the
/// new server.
#[tokio::test]
async fn a_renewal_that_was_asked_for_during_another_is_not_forgotten() {
    let (Bench { client, faults, .. }, store) = odd_bench(boot(), |_| {});
    let _guard = client
        .mutex("x")
        .lease(Duration::from_secs(3600))
        .acquire()
        .await
        .expect("acquired");
    store.restore_in_next_reply();
    faults.restore();
    eventually("both renewals", async || faults.renewals() >= 2).await;
}

/// Two tasks of one owner take turns inside the client. The second's time-out counts there, too.
#[tokio::test]
async fn an_owner_times_out_behind_its_own_waiting_task() {
    let Bench {
        client, outside, ..
    } = bench();
    let _holder = outside.mutex("x").acquire().await.expect("acquired");
    let owner = client.identity("o");
    let (lock, first) = (client.mutex("x"), owner.clone());
    let waiting = tokio::spawn(async move { lock.acquire_as(&first).await });
    in_line(&outside, "x", 1).await;
    let second = timeout(
        PATIENCE,
        client.mutex("x").acquire_timeout_as(&owner, ms(50)),
    )
    .await
    .expect("timed out by itself");
    let error = second.expect_err("held by another owner");
    assert!(matches!(error.kind(), ErrorKind::Timeout), "{error:?}");
    waiting.abort();
}

/// A task that has entered a lock leaves no timer of its time-out behind, for which shutdown would
/// wait.
#[tokio::test]
async fn shutdown_does_not_wait_for_the_time_out_of_an_owner() {
    let Bench {
        client, outside, ..
    } = bench();
    let holder = outside.mutex("x").acquire().await.expect("acquired");
    let owner = client.identity("o");
    let enter = || {
        let (lock, owner) = (client.mutex("x"), owner.clone());
        tokio::spawn(async move {
            lock.acquire_timeout_as(&owner, Duration::from_secs(3600))
                .await
        })
    };
    let first = enter();
    in_line(&outside, "x", 1).await;
    // It waits for the first task, inside the client.
    let mut second = enter();
    assert!(
        timeout(ms(100), &mut second).await.is_err(),
        "entered before the first task"
    );
    give_back(holder).await;
    let guards = (acquired(first).await, acquired(second).await);
    assert_eq!(guards.0.fence(), guards.1.fence());
    drop(guards);
    timeout(PATIENCE, client.shutdown())
        .await
        .expect("nothing is in flight");
}

/// A claim that still waits in line is no pending work: shutdown would wait for the lock itself.
#[tokio::test]
async fn shutdown_does_not_wait_for_a_claim_in_line() {
    let Bench {
        client, outside, ..
    } = bench();
    let (holder, waiting) = behind(&outside, client.mutex("x")).await;
    timeout(PATIENCE, client.shutdown())
        .await
        .expect("there is nothing to wait for");
    give_back(holder).await;
    assert!(
        acquired(waiting).await.is_held(),
        "nor does shutdown end it"
    );
}

/// Each grant is over when its answer comes. An attempt that does not wait in line ends all the
/// same.
#[tokio::test]
async fn an_attempt_on_a_store_that_answers_after_the_lease_ends() {
    let (clock, lease) = (ManualClock::new(), Duration::from_secs(2));
    let store = MemoryStore::new(Arc::new(clock.clone()));
    let store = Arc::new(OddStore::over(store, |_| {}));
    store.answer_late(clock.clone(), lease * 2);
    let client = Client::over(Arc::new(Wrapped(store)), Arc::new(clock));
    let lock = client.mutex("x").lease(lease);
    let error = timeout(PATIENCE, lock.try_acquire())
        .await
        .expect("it ends")
        .expect_err("no grant lasts");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("longer"), "{error}");
}
