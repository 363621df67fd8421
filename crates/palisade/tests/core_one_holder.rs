//! Never two holders: pushes and answers that the core must not take for a grant of its own.

mod common;

use std::future::Future;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{Bench, bench, bench_on, give_back, in_line, ms, odd_bench};
use palisade::lease::{BootClock, ManualClock};
use palisade::store::Mode;
use palisade::{Client, ErrorKind, Exclusive, Guard, LossReason};
use palisade_conformance::faults::Faults;
use palisade_conformance::{PATIENCE, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

type Waiting = JoinHandle<palisade::Result<Guard>>;

fn acquire(client: &Client, name: &str, lease: Duration) -> Waiting {
    let lock = client.mutex(name).lease(lease);
    tokio::spawn(async move { lock.acquire().await })
}

/// A waiter that was renewed, and so had every chance to believe, does not hold beside the holder.
/// It holds after it.
async fn waits_for(holder: Guard, waiting: Waiting, faults: &Faults) {
    let before = faults.renewals();
    eventually("the waiter is renewed", async || faults.renewals() > before).await;
    assert!(!waiting.is_finished() && holder.is_held(), "two holders");
    let fence = holder.fence();
    drop(holder);
    let guard = timeout(PATIENCE, waiting)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("acquired");
    assert!(guard.fence() > fence);
}

/// A claim whose answers were lost is granted, expires unnoticed, and is sent again. The push of
/// its first grant is still in flight to the same claim id, and another claim holds by now.
#[tokio::test]
async fn a_push_meant_for_an_earlier_life_is_not_taken() {
    let (lease, theirs) = (ms(600), ManualClock::new());
    let Bench {
        client,
        outside,
        faults,
    } = bench_on(Arc::new(BootClock), Arc::new(theirs.clone()));
    let holder = outside.mutex("x").acquire().await.expect("acquired");
    faults.lose_replies(true);
    let waiting = acquire(&client, "x", lease);
    in_line(&outside, "x", 1).await;
    faults.cut(true);
    let before = faults.failures();
    eventually("nothing is on its way to the store any more", async || {
        faults.failures() >= before + 2
    })
    .await;
    // The push reaches a claim that does not know yet that it waits.
    give_back(holder).await;
    theirs.advance(lease);
    let other = outside
        .mutex("x")
        .acquire()
        .await
        .expect("the first life is over");
    faults.lose_replies(false);
    faults.cut(false);
    in_line(&outside, "x", 1).await;
    waits_for(other, waiting, &faults).await;
}

/// The same where the store cannot tell the two apart: a claim that was sent twice asks the store
/// before it believes a push.
#[tokio::test]
async fn a_claim_that_was_sent_twice_asks_before_it_believes_a_push() {
    let (
        Bench {
            client,
            outside,
            faults,
        },
        store,
    ) = odd_bench(Arc::new(BootClock), |_| {});
    let holder = outside.mutex("x").acquire().await.expect("acquired");
    store.stale_push(holder.fence());
    faults.lose_replies(true);
    let waiting = acquire(&client, "x", Duration::from_secs(3));
    eventually("sent", async || faults.failures() > 0).await;
    faults.lose_replies(false);
    in_line(&outside, "x", 1).await;
    waits_for(holder, waiting, &faults).await;
}

/// The same owner and name in another store is another lock. Entering it without a request would
/// protect nothing.
#[tokio::test]
async fn an_owner_does_not_enter_a_lock_of_another_client() {
    let one = palisade::connect("memory:").await.expect("a client");
    let two = palisade::connect("memory:").await.expect("a client");
    let owner = one.identity("o");
    let _here = one.mutex("x").acquire_as(&owner).await.expect("acquired");
    let there = two.mutex("x").acquire_as(&owner).await.expect("acquired");
    let line = two
        .show("x")
        .await
        .expect("an answer")
        .expect("the second store knows of its guard");
    assert_eq!(line.holders.len(), 1);
    assert_eq!(line.holders[0].fence, there.fence());
}

/// A writer that is becoming a reader cannot be entered as a writer: that guard would write beside
/// the new readers.
#[tokio::test]
async fn a_grant_that_is_being_downgraded_cannot_be_entered() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let owner = client.identity("o");
    let guard = client.rwlock("x").write_as(&owner).await.expect("acquired");
    faults.close_gate();
    let downgrading = tokio::spawn(async move { guard.downgrade().await.expect("downgraded") });
    faults.steps(1);
    eventually(
        "the store has done it, and its answer is on its way",
        async || {
            let line = outside.show("x").await.expect("an answer").expect("held");
            line.holders[0].mode == Mode::Shared
        },
    )
    .await;
    let entered = client
        .rwlock("x")
        .write_as(&owner)
        .await
        .expect_err("it is not a writer any more");
    assert_eq!(entered.kind(), ErrorKind::Deadlock);
    faults.steps(100);
    let shared = downgrading.await.expect("no panic");
    let reader = outside
        .rwlock("x")
        .try_read()
        .await
        .expect("an answer")
        .expect("readers share");
    assert!(shared.is_held() && reader.is_held());
}

/// A grant that is leaving this client cannot be entered: that guard would not be renewed, and
/// could not know.
#[tokio::test]
async fn a_grant_that_is_being_detached_cannot_be_entered() {
    let Bench { client, faults, .. } = bench();
    let owner = client.identity("o");
    let guard = client
        .mutex("x")
        .acquire_as(&owner)
        .await
        .expect("acquired");
    faults.close_gate();
    let detaching = tokio::spawn(async move { guard.detach().await.expect("detached") });
    faults.steps(1);
    eventually("the request is in the store", async || {
        faults.unused_steps() == 0
    })
    .await;
    let entered = client
        .mutex("x")
        .acquire_as(&owner)
        .await
        .expect_err("it is leaving");
    assert_eq!(entered.kind(), ErrorKind::Deadlock);
    faults.steps(100);
    let detached = detaching.await.expect("no panic");
    let adopted: Guard = client.adopt(&detached).await.expect("adopted");
    assert!(adopted.is_held());
}

/// The answer to an adoption took nearly the whole lease: it is asked for once more before a guard
/// is handed out.
#[tokio::test]
async fn a_grant_that_is_adopted_slowly_is_held() {
    let (lease, clock) = (Duration::from_secs(10), ManualClock::new());
    let Bench { client, faults, .. } = bench_on(Arc::new(clock.clone()), Arc::new(BootClock));
    let guard = client.mutex("x").lease(lease).acquire().await;
    let detached = guard.expect("acquired").detach().await.expect("detached");
    faults.close_gate();
    let (again, grant) = (client.clone(), detached.clone());
    let adopting = tokio::spawn(async move { again.adopt::<Exclusive>(&grant).await });
    faults.steps(1);
    eventually("the request is in the store", async || {
        faults.renewals() > 0 && faults.unused_steps() == 0
    })
    .await;
    clock.advance(lease - ms(500));
    faults.steps(100);
    let adopted = adopting.await.expect("no panic").expect("adopted");
    assert_eq!(adopted.fence(), detached.fence());
    assert!(adopted.is_held() && adopted.remaining() > lease / 2);
}

/// Of two guards over one grant, the first to be dropped gives back what the second believes it
/// holds.
#[tokio::test]
async fn a_grant_is_adopted_once() {
    let Bench {
        client, outside, ..
    } = bench();
    let detached = client
        .mutex("x")
        .acquire()
        .await
        .expect("acquired")
        .detach()
        .await
        .expect("detached");
    let first: Guard = client.adopt(&detached).await.expect("adopted");
    let error = client
        .adopt::<Exclusive>(&detached)
        .await
        .expect_err("adopted already");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(first.is_held(), "the refusal costs the first nothing");
    drop(first);
    client.shutdown().await;
    let other = outside
        .mutex("x")
        .try_acquire()
        .await
        .expect("an answer")
        .expect("free again");
    let late = client
        .adopt::<Exclusive>(&detached)
        .await
        .expect_err("given back");
    assert!(matches!(late.kind(), ErrorKind::Lost(_)), "{late:?}");
    assert!(other.is_held());
}

/// A waker that blocks the thread that runs it until the sender is gone.
struct Stalls(std::sync::Mutex<mpsc::Receiver<()>>);

impl Wake for Stalls {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().expect("no panic").recv();
    }
}

/// A machine resumes after its leases have run out, and the keeper runs before the warden. A
/// renewal would keep others out for holders that have been told to stop.
#[tokio::test]
async fn what_is_over_by_the_clock_is_not_renewed() {
    let clock = ManualClock::new();
    let Bench { client, faults, .. } = bench_on(Arc::new(clock.clone()), Arc::new(BootClock));
    // The first to end, and not renewed: the warden blocks on its waker.
    let first = client
        .mutex("first")
        .lease(Duration::from_secs(5))
        .auto_renew(false)
        .acquire()
        .await
        .expect("acquired");
    let (go_on, stall) = mpsc::channel();
    let stalls = Waker::from(Arc::new(Stalls(std::sync::Mutex::new(stall))));
    let mut lost = Box::pin(first.lost());
    assert!(
        lost.as_mut()
            .poll(&mut Context::from_waker(&stalls))
            .is_pending()
    );
    let mut guards = Vec::new();
    for number in 0..10 {
        let lock = client
            .mutex(format!("x{number}"))
            .lease(Duration::from_secs(10));
        guards.push(lock.acquire().await.expect("acquired"));
    }
    clock.advance(Duration::from_secs(3600));
    for _ in 0..10 {
        // Answered on the keeper's thread, after the keeper was woken.
        client.show("x0").await.expect("an answer");
    }
    assert_eq!(faults.renewals(), 0);
    drop(go_on);
    for guard in &guards {
        assert_eq!(
            timeout(PATIENCE, guard.lost()).await.expect("told"),
            LossReason::Expired
        );
    }
}
