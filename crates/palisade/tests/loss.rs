//! Promise 2: the holder is told in time, by its own clock alone.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::scripted_store::{Script, ScriptedStore};
use common::{Bench, bench, bench_on, ms};
use palisade::blocking::Wait;
use palisade::lease::{BootClock, Clock, ManualClock};
use palisade::store::{Capability, Standing};
use palisade::stores::memory::MemoryStore;
use palisade::{
    AnyMode, Client, Error, ErrorKind, Exclusive, Fence, Guard, LossReason, MultiGuard, Released,
    Status,
};
use palisade_conformance::{PATIENCE, eventually};

const LEASE: Duration = ms(1000);

/// A runtime is blocked past the lease while the store is cut off. `on_lost` fires before the
/// deadline all the same, on the warden's thread, and the first read after the block says lost.
#[test]
fn a_holder_on_a_blocked_runtime_is_told_in_time() {
    let Bench { client, faults, .. } = bench();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let sent = BootClock.now();
        let guard = Arc::new(
            client
                .mutex("blocked")
                .lease(LEASE)
                .stop_margin(LEASE / 4)
                .acquire()
                .await
                .expect("acquired"),
        );
        let valid_until = BootClock.now() + guard.remaining();
        faults.cut(true);
        let stop = guard.on_lost();
        let watched = Arc::clone(&guard);
        let told = std::thread::spawn(move || {
            stop.cancelled().wait();
            let stopped = BootClock.now();
            let reason = watched.lost().wait();
            (stopped, BootClock.now(), reason)
        });
        // A mistake that users make.
        std::thread::sleep(LEASE * 2);
        assert!(!guard.is_held());
        let (stopped, lost, reason) = told.join().expect("no panic");
        assert!(
            stopped < valid_until,
            "told to stop {:?} late",
            stopped.since(valid_until)
        );
        assert!(
            stopped >= sent + LEASE / 2,
            "told to stop after {:?} only",
            stopped.since(sent)
        );
        assert_eq!(reason, LossReason::Expired);
        assert!(lost >= valid_until.before(ms(2)), "lost is exact");
        assert!(
            lost.since(valid_until) < LEASE / 4,
            "lost came {:?} late",
            lost.since(valid_until)
        );
    });
}

#[test]
fn renewals_go_on_while_the_users_runtime_is_blocked() {
    let Bench { client, faults, .. } = bench();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let guard = client
            .mutex("blocked")
            .lease(LEASE)
            .acquire()
            .await
            .expect("acquired");
        // Blocked for two leases at least, and on a busy machine for as long as five renewals take.
        let begun = Instant::now();
        while begun.elapsed() < LEASE * 2 || faults.renewals() < 5 {
            assert!(begun.elapsed() < PATIENCE, "{} renewals", faults.renewals());
            std::thread::sleep(ms(10));
        }
        assert!(guard.is_held());
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    });
}

/// One renewal that fails, and one that hangs, cost nothing.
#[tokio::test]
async fn an_unknown_answer_changes_nothing() {
    let Bench { client, faults, .. } = bench();
    let guard = client
        .mutex("unknown")
        .lease(ms(1500))
        .acquire()
        .await
        .expect("acquired");
    type Fault = fn(&palisade_conformance::faults::Faults, bool);
    let every: [Fault; 3] = [
        |faults, on| faults.cut(on),
        |faults, on| faults.lose_replies(on),
        |faults, on| faults.hang(on),
    ];
    for fault in every {
        fault(&faults, true);
        eventually("the trouble is seen", async || {
            guard.status() == Status::AtRisk
        })
        .await;
        fault(&faults, false);
        eventually("the renewal goes on", async || {
            guard.status() == Status::Held
        })
        .await;
    }
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// Lost is for good, though the store would still renew.
#[tokio::test]
async fn nothing_is_revived() {
    let (ours, theirs) = (ManualClock::new(), ManualClock::new());
    let Bench {
        client,
        outside,
        faults,
    } = bench_on(Arc::new(ours.clone()), Arc::new(theirs));
    let guard = client
        .mutex("revived")
        .lease(ms(1000))
        .acquire()
        .await
        .expect("acquired");
    faults.hang(true);
    ours.advance(ms(400));
    eventually("a renewal is on its way", async || faults.renewals() > 0).await;
    ours.advance(ms(600));
    assert_eq!(guard.status(), Status::Lost(LossReason::Expired));
    let before = faults.renewals();
    // The store's clock has not moved: it still has the grant, and answers yes to the late renewal.
    faults.hang(false);
    assert!(outside.show("revived").await.expect("an answer").is_some());
    ours.advance(ms(1000));
    tokio::time::sleep(ms(50)).await;
    assert_eq!(guard.status(), Status::Lost(LossReason::Expired));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(
        faults.renewals() <= before + 2,
        "a lost claim is still renewed"
    );
    assert_eq!(
        guard.release().await.expect("an answer"),
        Released::AlreadyLost
    );
    assert!(
        outside.show("revived").await.expect("an answer").is_none(),
        "it is given back all the same"
    );
}

/// A machine that slept for an hour: lost at the first look, before user code goes on.
#[tokio::test]
async fn suspend_is_counted() {
    let clock = ManualClock::new();
    let Bench { client, .. } = bench_on(Arc::new(clock.clone()), Arc::new(clock.clone()));
    let guard = client.mutex("asleep").acquire().await.expect("acquired");
    let stop = guard.on_lost();
    clock.advance(Duration::from_secs(3600));
    assert!(!guard.is_held());
    assert_eq!(
        tokio::time::timeout(PATIENCE, guard.lost())
            .await
            .expect("told"),
        LossReason::Expired
    );
    assert!(stop.is_cancelled());
}

/// The states follow the clock: held, at risk when less than half is left, lost when nothing is.
#[tokio::test]
async fn states_are_computed_from_the_clock() {
    let ours = ManualClock::new();
    let Bench { client, faults, .. } = bench_on(Arc::new(ours.clone()), Arc::new(BootClock));
    faults.hang(false);
    let guard = client
        .mutex("states")
        .lease(ms(10_000))
        .stop_margin(ms(500))
        .acquire()
        .await
        .expect("acquired");
    faults.hang(true);
    let stop = guard.on_lost();
    let valid = guard.remaining();
    assert_eq!(valid, ms(9_898));
    ours.advance(ms(4_898));
    assert_eq!(guard.status(), Status::Held);
    ours.advance(ms(1));
    assert_eq!(guard.status(), Status::AtRisk);
    assert!(!stop.is_cancelled());
    ours.advance(ms(4_499));
    eventually("the stop margin", async || stop.is_cancelled()).await;
    assert!(guard.is_held(), "the stop margin is not the loss");
    ours.advance(ms(499));
    assert!(guard.is_held());
    ours.advance(ms(1));
    assert_eq!(guard.status(), Status::Lost(LossReason::Expired));
    faults.hang(false);
}

/// A store that is reachable again, or replaced, is asked about all claims at once, not at the next
/// cadence.
#[tokio::test]
async fn everything_is_renewed_when_the_store_comes_back() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let lease = Duration::from_secs(3600);
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(
            client
                .mutex(format!("many/{number}"))
                .lease(lease)
                .acquire()
                .await
                .expect("acquired"),
        );
    }
    outside
        .revoke("many/7", guards[7].fence())
        .await
        .expect("an answer");
    assert_eq!(
        faults.renewals(),
        0,
        "the next cadence is twenty minutes away"
    );
    faults.restore();
    eventually("all are renewed", async || faults.renewals() >= 49).await;
    eventually("the lost one is told", async || !guards[7].is_held()).await;
    assert_eq!(guards.iter().filter(|guard| guard.is_held()).count(), 49);
}

/// The same for a store without events: the first renewal that succeeds again brings all others
/// forward.
#[tokio::test]
async fn the_first_answer_after_an_outage_renews_everything() {
    let Bench { client, faults, .. } = bench();
    let long = client
        .mutex("long")
        .lease(Duration::from_secs(3600))
        .acquire()
        .await
        .expect("acquired");
    let short = client
        .mutex("short")
        .lease(ms(600))
        .acquire()
        .await
        .expect("acquired");
    faults.cut(true);
    eventually("the outage is seen", async || {
        short.status() == Status::AtRisk
    })
    .await;
    // `long` is due in twenty minutes by itself.
    let before = long.remaining();
    faults.cut(false);
    eventually("it is renewed now", async || long.remaining() > before).await;
    assert!(long.is_held() && short.is_held());
}

/// Ten thousand claims, a hundred requests or so: never a request per lock.
#[tokio::test]
async fn renewals_share_requests() {
    let Bench { client, faults, .. } = bench();
    let mut guards = Vec::new();
    for number in 0..3000 {
        guards.push(
            client
                .mutex(format!("batch/{number}"))
                .lease(Duration::from_secs(3))
                .acquire()
                .await
                .expect("acquired"),
        );
    }
    eventually("all are renewed", async || faults.renewals() >= 6000).await;
    let per_request = faults.renewals() / faults.renewal_requests();
    assert!(per_request >= 100, "{per_request} claims in a request");
    assert!(guards.iter().all(palisade::Guard::is_held));
}

/// Without renewal the guard is lost with its first lease, also when it was handed over.
#[tokio::test]
async fn without_renewal_the_first_lease_is_the_last() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let before = Instant::now();
    let guard = client
        .mutex("once")
        .lease(ms(400))
        .auto_renew(false)
        .acquire()
        .await
        .expect("acquired");
    assert_eq!(
        tokio::time::timeout(PATIENCE, guard.lost())
            .await
            .expect("told"),
        LossReason::Expired
    );
    assert!(before.elapsed() >= ms(390) && faults.renewals() == 0);
    drop(guard);
    let holder = outside.mutex("handed").acquire().await.expect("acquired");
    let lock = client
        .mutex("handed")
        .lease(Duration::from_secs(20))
        .auto_renew(false);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("in line", async || {
        !outside
            .show("handed")
            .await
            .expect("an answer")
            .expect("held")
            .waiters
            .is_empty()
    })
    .await;
    drop(holder);
    let guard = waiting.await.expect("no panic").expect("acquired");
    assert!(
        guard.remaining() > Duration::from_secs(15),
        "only {:?} of the lease",
        guard.remaining()
    );
}

/// `run` stops its body before the loss, and says so. A body that ends in time is not touched. The
/// lock is released in every case.
#[tokio::test]
async fn run_cancels_its_body_on_loss() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    assert_eq!(
        client
            .mutex("run")
            .run(async |guard| guard.fence().get())
            .await
            .expect("ran"),
        1
    );
    let ended = Arc::new(AtomicBool::new(false));
    let saw = Arc::clone(&ended);
    let lock = client.mutex("run").lease(ms(300));
    let lost = lock.run(async move |_| {
        faults.cut(true);
        std::future::pending::<()>().await;
        saw.store(true, Ordering::SeqCst);
    });
    let error = tokio::time::timeout(PATIENCE, lost)
        .await
        .expect("stopped")
        .expect_err("lost");
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error:?}");
    assert!(!ended.load(Ordering::SeqCst));
    let Bench {
        client,
        outside: other,
        ..
    } = bench();
    let kept = client
        .mutex("stash")
        .run(async |guard| guard)
        .await
        .expect("ran");
    assert!(
        !kept.is_held(),
        "a guard that was kept beyond its run holds nothing"
    );
    assert!(other.show("stash").await.expect("an answer").is_none());
    let panics = tokio::spawn({
        let client = client.clone();
        async move {
            client
                .mutex("panic")
                .run(async |_| panic!("in the body"))
                .await
        }
    });
    assert!(panics.await.is_err());
    client.shutdown().await;
    assert!(
        other.show("panic").await.expect("an answer").is_none(),
        "a panic kept the lock"
    );
    drop(outside);
}

/// The holder's grant was replaced under the same claim: the store lost it. That is a loss, not a
/// renewal.
#[tokio::test]
async fn another_fence_under_our_claim_is_a_loss() {
    let Bench {
        client, outside, ..
    } = bench();
    let guard = client
        .mutex("wiped")
        .lease(ms(600))
        .acquire()
        .await
        .expect("acquired");
    outside
        .revoke("wiped", guard.fence())
        .await
        .expect("an answer");
    let next = outside.mutex("wiped").acquire().await.expect("acquired");
    let reason = tokio::time::timeout(PATIENCE, guard.lost())
        .await
        .expect("told");
    assert!(
        matches!(reason, LossReason::Revoked | LossReason::Taken),
        "{reason:?}"
    );
    assert!(next.is_held());
}

/// A client over a scripted store, on a clock that is moved by hand.
fn scripted(capability: fn(Capability) -> Capability) -> (Client, Arc<Script>, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::new(Arc::new(clock.clone()));
    let (scripted, script) = ScriptedStore::over(Arc::new(store), capability);
    (
        Client::over(scripted, Arc::new(clock.clone())),
        script,
        clock,
    )
}

/// A renewal that failed is tried again sooner than one that hangs would be.
#[tokio::test]
async fn a_failed_renewal_is_soon_tried_again() {
    let ours = ManualClock::new();
    let Bench { client, faults, .. } = bench_on(Arc::new(ours.clone()), Arc::new(BootClock));
    let guard = client
        .mutex("again")
        .lease(ms(3000))
        .acquire()
        .await
        .expect("acquired");
    faults.cut(true);
    ours.advance(ms(1000));
    eventually("it failed", async || guard.status() == Status::AtRisk).await;
    let failed = ours.now();
    eventually("tried again", async || {
        ours.advance(ms(1));
        faults.renewals() >= 2
    })
    .await;
    // A hanging one is followed after (2968 - 1000) / 2 ms.
    assert!(
        ours.now().since(failed) < ms(900),
        "tried again after {:?}",
        ours.now().since(failed)
    );
}

/// A revocation is pushed: no renewal is due, because the clock stands still.
#[tokio::test]
async fn a_push_tells_of_the_loss() {
    let Bench {
        client,
        outside,
        faults,
    } = bench_on(Arc::new(ManualClock::new()), Arc::new(BootClock));
    let guard = client.mutex("pushed").acquire().await.expect("acquired");
    outside
        .revoke("pushed", guard.fence())
        .await
        .expect("an answer");
    assert_eq!(
        tokio::time::timeout(PATIENCE, guard.lost())
            .await
            .expect("told"),
        LossReason::Revoked
    );
    assert_eq!(faults.renewals(), 0);
    eventually("not kept any more", async || client.stats().kept == 0).await;
}

/// A store that knows it is cut off says so, and guards are at risk before a renewal has failed.
#[tokio::test]
async fn a_store_that_is_cut_off_says_so() {
    let (client, script, clock) = scripted(|can| can);
    let guard = client
        .mutex("cut-off")
        .lease(ms(3000))
        .acquire()
        .await
        .expect("acquired");
    assert_eq!(guard.status(), Status::Held);
    script.say_cut_off();
    eventually("at risk", async || guard.status() == Status::AtRisk).await;
    clock.advance(ms(1000));
    eventually("renewed", async || guard.status() == Status::Held).await;
}

/// A store that answers fewer renewals than it was asked is believed for none of them.
#[tokio::test]
async fn an_answer_of_the_wrong_length_is_no_answer() {
    let (client, script, clock) = scripted(|can| can);
    *script.standings.lock().expect("no panic") = Some(|mut standings| {
        standings.pop();
        standings
    });
    let guards = [
        client.mutex("one").lease(ms(3000)),
        client.mutex("two").lease(ms(3000)),
    ];
    let [one, two] = guards;
    let (one, two) = (
        one.acquire().await.expect("acquired"),
        two.acquire().await.expect("acquired"),
    );
    let valid = one.remaining();
    clock.advance(ms(1000));
    eventually("both at risk", async || {
        one.status() == Status::AtRisk && two.status() == Status::AtRisk
    })
    .await;
    assert_eq!(
        (one.remaining(), two.remaining()),
        (valid - ms(1000), valid - ms(1000))
    );
}

/// However many claims are due, one call renews a bounded number of them.
#[tokio::test]
async fn a_renewal_carries_a_bounded_number_of_claims() {
    let (client, script, clock) = scripted(|can| can);
    let mut guards = Vec::new();
    for number in 0..1100 {
        guards.push(
            client
                .mutex(format!("large/{number}"))
                .lease(ms(3000))
                .acquire()
                .await
                .expect("acquired"),
        );
    }
    clock.advance(ms(1000));
    eventually("all are renewed", async || {
        guards.iter().all(|guard| guard.remaining() > ms(2900))
    })
    .await;
    assert_eq!(script.largest_renewal.load(Ordering::SeqCst), 1024);
}

/// The deadline counts from before the request was sent, for a renewal as for an adoption, however
/// late the answer comes.
#[tokio::test]
async fn a_late_answer_counts_from_its_question() {
    let ours = ManualClock::new();
    let Bench { client, faults, .. } = bench_on(Arc::new(ours.clone()), Arc::new(BootClock));
    let guard = client
        .mutex("late")
        .lease(ms(10_000))
        .acquire()
        .await
        .expect("acquired");
    faults.hang(true);
    ours.advance(ms(4_000));
    eventually("on its way", async || faults.renewals() == 1).await;
    ours.advance(ms(1_000));
    faults.hang(false);
    eventually("renewed", async || guard.remaining() > ms(5_000)).await;
    assert_eq!(guard.remaining(), ms(9_898 - 1_000));
    let grant = guard.detach().await.map_err(Error::from).expect("detached");
    faults.hang(true);
    let before = faults.renewals();
    let adopting = tokio::spawn({
        let client = client.clone();
        async move { client.adopt::<Exclusive>(&grant).await }
    });
    eventually("on its way", async || faults.renewals() > before).await;
    ours.advance(ms(1_000));
    faults.hang(false);
    let guard = adopting.await.expect("no panic").expect("adopted");
    assert_eq!(guard.remaining(), ms(9_898 - 1_000));
}

/// A grant that the store has replaced by another is not the one that was detached.
#[tokio::test]
async fn another_fence_is_not_adopted() {
    let (client, script, _) = scripted(|can| can);
    let guard = client.mutex("replaced").acquire().await.expect("acquired");
    let grant = guard.detach().await.map_err(Error::from).expect("detached");
    *script.standings.lock().expect("no panic") = Some(|mut standings| {
        for standing in &mut standings {
            if let Ok(Standing::Held(grant)) = standing {
                grant.fence = Fence::MAX;
            }
        }
        standings
    });
    assert!(client.adopt::<AnyMode>(&grant).await.is_err());
    assert_eq!(client.stats().kept, 0);
}

/// However `run` ends, the lock is released, also when the body has stored its guard where it
/// outlives the body.
#[tokio::test]
async fn run_gives_back_what_its_body_has_kept() {
    let Bench {
        client, outside, ..
    } = bench();
    let free = async |name: &str| {
        eventually("given back", async || {
            outside.show(name).await.expect("an answer").is_none()
        })
        .await;
    };
    let stash: Arc<std::sync::Mutex<Vec<Arc<Guard>>>> = Arc::default();
    let panics = tokio::spawn({
        let (client, stash) = (client.clone(), Arc::clone(&stash));
        async move {
            let body = async move |guard| {
                stash.lock().expect("no panic").push(guard);
                panic!("in the body");
            };
            client.mutex("panics").run(body).await
        }
    });
    assert!(panics.await.is_err());
    free("panics").await;
    let left = tokio::spawn({
        let (client, stash) = (client.clone(), Arc::clone(&stash));
        async move {
            let body = async move |guard| {
                stash.lock().expect("no panic").push(guard);
                std::future::pending::<()>().await;
            };
            client.mutex("left").run(body).await
        }
    });
    eventually("in the body", async || {
        stash.lock().expect("no panic").len() == 2
    })
    .await;
    left.abort();
    assert!(left.await.is_err());
    free("left").await;
    assert!(
        stash
            .lock()
            .expect("no panic")
            .iter()
            .all(|guard| !guard.is_held())
    );
}

/// The same for several locks; and a body is stopped when one of them is lost.
#[tokio::test]
async fn several_locks_run_like_one() {
    let Bench {
        client, outside, ..
    } = bench();
    let kept: Arc<MultiGuard> = client
        .multi(["a", "b"])
        .run(async |guard| guard)
        .await
        .expect("ran");
    for name in ["a", "b"] {
        eventually("given back", async || {
            outside.show(name).await.expect("an answer").is_none()
        })
        .await;
    }
    assert!(
        !kept.is_held(),
        "a guard that was kept beyond its run holds nothing"
    );
    let multi = client.multi(["a", "b"]);
    let running = multi.run(async |guard| {
        outside
            .revoke("b", guard.fence("b").expect("exclusive"))
            .await
            .expect("an answer");
        std::future::pending::<()>().await;
    });
    let error = tokio::time::timeout(PATIENCE, running)
        .await
        .expect("stopped")
        .expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Revoked));
    let stash: Arc<std::sync::Mutex<Vec<Arc<MultiGuard>>>> = Arc::default();
    let left = tokio::spawn({
        let (multi, stash) = (client.multi(["a", "b"]), Arc::clone(&stash));
        async move {
            let body = async move |guard| {
                stash.lock().expect("no panic").push(guard);
                std::future::pending::<()>().await;
            };
            multi.run(body).await
        }
    });
    eventually("in the body", async || {
        !stash.lock().expect("no panic").is_empty()
    })
    .await;
    left.abort();
    assert!(left.await.is_err());
    assert!(
        !stash.lock().expect("no panic")[0].is_held(),
        "a run that was left holds on"
    );
    client.shutdown().await;
    assert_eq!(outside.list("").await.expect("an answer"), []);
}
