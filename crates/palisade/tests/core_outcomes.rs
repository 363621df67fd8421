//! Users are told what happened, and abandoned work leaves nothing behind.

mod common;

use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{Bench, bench, bench_on, give_back, in_line, ms, odd_bench};
use palisade::blocking::Wait as _;
use palisade::lease::{BootClock, ManualClock};
use palisade::stores::memory::MemoryStore;
use palisade::{Attempt, Cause, Client, ErrorKind, Guard, LossReason, Multi, Obstacle, WaitLimit};
use palisade_conformance::{PATIENCE, eventually};
use tokio::sync::Notify;
use tokio::time::timeout;

const HOUR: Duration = Duration::from_secs(3600);

async fn is_free(client: &Client, name: &str) -> bool {
    client.show(name).await.expect("an answer").is_none()
}

/// The caller left while the grant was in flight. The hour's work was not done, so the hour must
/// not be marked as done.
#[tokio::test]
async fn an_undelivered_acquisition_leaves_no_once_per_mark() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    faults.close_gate();
    let lock = client.mutex("job").once_per(HOUR);
    let leaving = tokio::spawn(async move { lock.acquire().await });
    faults.steps(1);
    eventually("granted, and the answer is on its way", async || {
        !is_free(&outside, "job").await
    })
    .await;
    leaving.abort();
    assert!(leaving.await.expect_err("aborted").is_cancelled());
    faults.steps(100);
    client.shutdown().await;
    assert!(is_free(&outside, "job").await);
    let next = outside
        .mutex("job")
        .once_per(HOUR)
        .try_acquire()
        .await
        .expect("an answer");
    assert!(next.is_some(), "no work ran, and the hour is marked");
}

/// A default stop margin longer than the longest hold would stop every body before it begins.
#[tokio::test]
async fn a_short_max_hold_leaves_time_to_run() {
    let client = palisade::connect("memory:").await.expect("a client");
    assert_eq!(
        client
            .mutex("x")
            .max_hold(ms(800))
            .run(async |_| 1)
            .await
            .expect("ran"),
        1
    );
}

/// A store that panics ends the acquisition. Its place in line must not be renewed any more.
#[tokio::test]
async fn a_store_that_panics_leaves_no_claim_in_line() {
    let (
        Bench {
            client, outside, ..
        },
        store,
    ) = odd_bench(Arc::new(BootClock), |_| {});
    let holder = outside.mutex("x").acquire().await.expect("acquired");
    store.claim_panics();
    client
        .mutex("x")
        .lease(ms(300))
        .acquire()
        .await
        .expect_err("the store panicked");
    in_line(&outside, "x", 0).await;
    give_back(holder).await;
    eventually("the name is free", async || is_free(&outside, "x").await).await;
}

/// A guard in a thread-local is dropped when the thread has no runtime left to release it with.
#[tokio::test]
async fn a_guard_in_a_thread_local_is_released_at_the_threads_end() {
    thread_local! {
        static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) };
    }
    let client = palisade::connect("memory:").await.expect("a client");
    let lock = client.mutex("x");
    let thread = std::thread::spawn(move || {
        // Touched before the runtime's own thread-locals, and so ended after them.
        KEPT.set(None);
        KEPT.set(Some(lock.acquire().wait().expect("acquired")));
    });
    thread.join().expect("no panic");
    eventually("released", async || is_free(&client, "x").await).await;
}

/// The seal arrived, its answer did not, and the lease ran out. The work is recorded, and the
/// caller must not be told otherwise.
#[tokio::test]
async fn a_seal_whose_answer_was_lost_is_found() {
    let clock = ManualClock::new();
    let Bench {
        client,
        outside,
        faults,
    } = bench_on(Arc::new(clock.clone()), Arc::new(BootClock));
    let work = client
        .once("k")
        .begin()
        .await
        .expect("an answer")
        .expect("not done yet");
    faults.lose_replies(true);
    let finishing = tokio::spawn(async move { work.finish().await });
    eventually("sealed, and the answer is lost", async || {
        faults.failures() > 0
    })
    .await;
    faults.lose_replies(false);
    clock.advance(HOUR);
    // It may have begun its pause before or after that hour.
    eventually("it has asked again", async || {
        clock.advance(ms(100));
        finishing.is_finished()
    })
    .await;
    finishing.await.expect("no panic").expect("it is recorded");
    assert!(
        outside
            .once("k")
            .begin()
            .await
            .expect("an answer")
            .is_none(),
        "it is sealed"
    );
}

/// A waker that panics.
struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic!("the test wants a panic here");
    }
}

/// Polls a future once, with a waker that panics.
fn arm<F: Future>(future: &mut std::pin::Pin<Box<F>>) {
    let panicking = Waker::from(Arc::new(PanickingWaker));
    assert!(
        future
            .as_mut()
            .poll(&mut Context::from_waker(&panicking))
            .is_pending()
    );
}

/// The warden runs the users' wakers. A panicking one must not stop it from telling the other
/// holders of their loss.
#[tokio::test]
async fn a_panicking_waker_leaves_no_guard_unwatched() {
    let clock = ManualClock::new();
    let Bench { client, faults, .. } = bench_on(Arc::new(clock.clone()), Arc::new(BootClock));
    let mut guards = Vec::new();
    for number in 0..8 {
        let lock = client
            .mutex(format!("b{number}"))
            .lease(Duration::from_secs(10))
            .auto_renew(false);
        guards.push(lock.acquire().await.expect("acquired"));
    }
    faults.cut(true);
    let mut lost = Box::pin(guards[0].lost());
    arm(&mut lost);
    let stops: Vec<_> = guards[1..].iter().map(Guard::on_lost).collect();
    clock.advance(HOUR);
    eventually("the others are told", async || {
        stops.iter().all(|stop| stop.is_cancelled())
    })
    .await;
}

/// A guard that outlives its `run` holds nothing: otherwise the next `run` would not be alone.
#[tokio::test]
async fn a_multi_guard_that_was_kept_beyond_its_run_holds_nothing() {
    let client = palisade::connect("memory:").await.expect("a client");
    let kept = client
        .multi(["a", "b"])
        .run(async |guard| guard)
        .await
        .expect("ran");
    assert!(!kept.is_held(), "run is over and the locks are held");
    assert!(is_free(&client, "a").await && is_free(&client, "b").await);
}

/// Thousands of members are lost together, without recursion: a loss that told the next from within
/// would overflow the stack.
#[tokio::test]
async fn a_large_multi_lock_is_lost_without_recursion() {
    let clock = ManualClock::new();
    let client = Client::over(
        Arc::new(MemoryStore::new(Arc::new(BootClock))),
        Arc::new(clock.clone()),
    );
    // Not renewed: the warden alone tells all of them.
    let members =
        (0..8000).map(|number| client.mutex(format!("m{number}")).auto_renew(false).into());
    let guard = Multi::of(members).acquire().await.expect("acquired");
    let last = guard.members().last().expect("many").on_lost();
    clock.advance(HOUR);
    timeout(PATIENCE, last.cancelled()).await.expect("told");
    assert!(guard.members().iter().all(|member| !member.is_held()));
}

/// `run` returns when the lock is free, so that two runs in a row do not block each other.
#[tokio::test]
async fn run_ends_after_its_release() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let (ended, lock, gate) = (
        Arc::new(Notify::new()),
        client.mutex("x"),
        Arc::clone(&faults),
    );
    let tell = Arc::clone(&ended);
    let running = tokio::spawn(async move {
        lock.run(async move |_guard| {
            gate.close_gate();
            tell.notify_one();
        })
        .await
    });
    ended.notified().await;
    // There is no event to wait for when something must not happen.
    tokio::time::sleep(ms(100)).await;
    assert!(
        !running.is_finished(),
        "over, and the store has had no release"
    );
    assert!(!is_free(&outside, "x").await);
    faults.steps(100);
    running.await.expect("no panic").expect("ran");
    assert!(is_free(&outside, "x").await);
}

/// After a revocation the program's log says "revoked".
#[tokio::test]
async fn run_tells_the_true_reason_of_a_loss() {
    let Bench {
        client, outside, ..
    } = bench();
    let lock = client.mutex("x");
    let stopped = lock.run(async move |guard| {
        outside.revoke("x", guard.fence()).await.expect("revoked");
        std::future::pending::<()>().await;
    });
    let error = timeout(PATIENCE, stopped)
        .await
        .expect("stopped")
        .expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Revoked));
}

/// The keeper runs the users' wakers, too, when it finds an expired claim before the warden does.
/// It must go on.
#[tokio::test]
async fn a_panicking_waker_does_not_end_the_keeper() {
    for _ in 0..10 {
        let clock = ManualClock::new();
        let Bench { client, .. } = bench_on(Arc::new(clock.clone()), Arc::new(BootClock));
        let guard = client
            .mutex("x")
            .lease(Duration::from_secs(10))
            .acquire()
            .await
            .expect("acquired");
        let mut lost = Box::pin(guard.lost());
        arm(&mut lost);
        let stop = guard.on_lost();
        clock.advance(HOUR);
        eventually("its own token fires", async || stop.is_cancelled()).await;
        let next = timeout(PATIENCE, client.mutex("y").acquire())
            .await
            .expect("in time");
        assert!(next.expect("the client's thread is there").is_held());
    }
}

/// A revocation is pushed, and its handler runs wakers. A panicking one must not end the client's
/// event loop.
#[tokio::test]
async fn a_panicking_waker_does_not_make_the_client_deaf() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let guard = client
        .mutex("x")
        .lease(HOUR)
        .acquire()
        .await
        .expect("acquired");
    let _other = client
        .mutex("y")
        .lease(HOUR)
        .acquire()
        .await
        .expect("acquired");
    let mut lost = Box::pin(guard.lost());
    arm(&mut lost);
    let stop = guard.on_lost();
    outside.revoke("x", guard.fence()).await.expect("revoked");
    eventually("its own token fires", async || stop.is_cancelled()).await;
    faults.restore();
    eventually("the event is heard", async || faults.renewals() > 0).await;
}

/// The loss of one member is the loss of all, whatever a waker of the first does.
#[tokio::test]
async fn a_panicking_waker_does_not_keep_the_loss_from_the_other_members() {
    let Bench {
        client, outside, ..
    } = bench();
    let multi = client.multi(["a", "b"]).acquire().await.expect("acquired");
    let [first, second] = multi.members() else {
        panic!("two members")
    };
    let mut lost = Box::pin(first.lost());
    arm(&mut lost);
    outside
        .revoke("a", multi.fence("a").expect("exclusive"))
        .await
        .expect("revoked");
    assert_eq!(
        timeout(PATIENCE, second.lost()).await.expect("told"),
        LossReason::MemberLost
    );
}

/// Every lock says what stood in its way, and a multi-lock says which of its names.
#[tokio::test]
async fn a_refused_attempt_names_the_obstacle() {
    let client = Client::connect("memory:")
        .expect("a good URL")
        .with_owner("web-3");
    let writer = client.rwlock("config").reason("reload");
    let _writer = writer.write().await.expect("acquired");
    let permits = client.semaphore("gpu", 2);
    let _both = permits.acquire_many(2).await.expect("acquired");
    let _held = client.mutex("b").acquire().await.expect("acquired");
    let tick = client.mutex("tick").once_per(Duration::from_secs(60));
    let run = tick.try_acquire().await.expect("an answer").expect("due");
    run.release().await.expect("released");

    let reader = busy(client.rwlock("config").try_read_or_holder().await);
    assert_eq!(reader.to_string(), "config is held by web-3 (reload)");
    let writer = busy(client.rwlock("config").try_write_or_holder().await);
    assert_eq!(
        writer.holder.map(|holder| holder.owner),
        Some("web-3".to_owned())
    );
    let permit = busy(permits.try_acquire_or_holder().await);
    assert_eq!((&*permit.name, permit.cause), ("gpu", Cause::Held));
    let both = busy(client.multi(["a", "b"]).try_acquire_or_holder().await);
    assert_eq!(both.to_string(), "b is held by web-3");
    let free = client.mutex("a").try_acquire().await.expect("an answer");
    assert!(free.is_some(), "a refused multi-lock keeps nothing");
    let early = busy(tick.attempt(WaitLimit::Forever).await);
    assert_eq!(early.cause, Cause::TooSoon);
    assert!(
        early
            .left
            .is_some_and(|left| left > Duration::from_secs(50)),
        "{early}"
    );
}

fn busy<G>(attempt: palisade::Result<Attempt<G>>) -> Obstacle {
    match attempt.expect("an answer") {
        Attempt::Busy(obstacle) => obstacle,
        Attempt::Acquired(_) => panic!("not refused"),
    }
}

/// Two clients of `memory:` are two stores; of `memory:NAME` they are one.
#[tokio::test]
async fn each_unnamed_memory_store_is_its_own() {
    for (url, shared) in [("memory:", false), ("memory:two-clients", true)] {
        let [one, two] = [(); 2].map(|()| Client::connect(url).expect("a good URL"));
        let _held = one.mutex("x").acquire().await.expect("acquired");
        let other = two.mutex("x").try_acquire().await.expect("an answer");
        assert_eq!(other.is_none(), shared, "{url}");
    }
}
