//! Whose runtime a claim goes by, and what becomes of it when that ends, stands still, or can do nothing.

#![cfg(feature = "redis")]

mod common;

use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use common::ms;
use common::redis::{LONG, connect, fields, gets_in, give_back, in_line, is_renewed, rise, soon, wait_for};
use common::runtimes::{Acquiring, acquiring, aside, begin_in, one_thread, one_worker, poll_once, poll_until_in_line};
use palisade::blocking::Wait;
use palisade::{Client, Guard, Mutex};
use palisade_conformance::eventually;
use palisade_testkit::redis::Redis;
use tokio::runtime::Builder;

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_ends_takes_nothing_with_it_but_its_own_tasks() {
    let redis = Redis::start();
    let (client, outside) = (connect(redis.url()), connect(redis.url()));
    let blocker = long(&outside, "y").acquire().await.expect("a grant");
    let other = long(&outside, "z").acquire().await.expect("a grant");
    // Held through it, and waited for through it by one of its tasks.
    let user = one_worker();
    let (x, y) = (client.mutex("x").lease(ms(1500)), long(&client, "y"));
    let held = user.spawn(async move { x.acquire().await }).await.expect("no panic").expect("a grant");
    let abandoned = user.spawn(async move { y.acquire().await });
    // Of the same client, through this one.
    let waiting = wait_for(&long(&client, "z"));
    in_line(&outside, "y", 1).await;
    in_line(&outside, "z", 1).await;
    user.shutdown_background();
    assert!(abandoned.await.is_err(), "its task is gone");
    in_line(&outside, "y", 0).await;
    is_renewed(&held).await;
    is_renewed(&held).await;
    assert!(held.is_held());
    let fence = other.fence();
    give_back(other).await;
    rise(&[fence, gets_in(waiting).await.fence()]);
    give_back(held).await;
    give_back(blocker).await;
    assert_eq!(fields(&redis, "y"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_outlives_the_runtime_it_began_in() {
    let redis = Redis::start();
    let (client, outside) = (connect(redis.url()), connect(redis.url()));
    for (round, in_line_first) in [false, true].into_iter().enumerate() {
        let name = format!("moved-{round}");
        let held = long(&outside, &name).acquire().await.expect("a grant");
        let mut moved = acquiring(&long(&client, &name));
        let (looks_on, waited_for) = (outside.clone(), name.clone());
        let mut moved = aside(move || {
            let user = one_worker();
            begin_in(&user, &mut moved);
            if in_line_first {
                user.block_on(poll_until_in_line(&mut moved, &looks_on, &waited_for));
            }
            user.shutdown_background();
            moved
        })
        .await;
        // It goes on where it is awaited now.
        assert!(!poll_once(&mut moved).await);
        let waiting = tokio::spawn(moved);
        in_line(&outside, &name, 1).await;
        let fence = held.fence();
        give_back(held).await;
        rise(&[fence, gets_in(waiting).await.fence()]);
    }
}

/// A runtime of one thread that nobody drives any more: its connection has the answer and nobody to read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_stands_still_holds_up_nobody_else() {
    for connected in [false, true] {
        stands_still(connected).await;
    }
}

async fn stands_still(connected: bool) {
    let redis = Redis::start();
    let url = format!("{}?request_timeout=1s&connect_timeout=500ms", redis.url());
    let (client, outside) = (connect(&url), connect(&url));
    let blocker = long(&outside, "still-waits").acquire().await.expect("a grant");
    let (mut claims, still) = {
        // More than go alone: of some nobody ever sends the request that they wait to go with.
        let names = ["still", "still-2", "still-3", "still-4", "still-5", "still-waits"];
        let claims: Vec<Acquiring> = names.into_iter().map(|name| acquiring(&long(&client, name))).collect();
        let cycles = long(&client, "cycles");
        aside(move || {
            let mut claims = claims;
            let still = one_thread();
            if connected {
                let held = still.block_on(cycles.acquire()).expect("a grant");
                assert_eq!(still.block_on(held.release()).expect("an answer"), palisade::Released::Done);
            }
            // On their way, and no further.
            for claim in &mut claims {
                begin_in(&still, claim);
            }
            (claims, still)
        })
        .await
    };
    // Others of the same client.
    let begun = Instant::now();
    let held = soon("a grant", long(&client, "other").acquire()).await.expect("a grant");
    assert!(begun.elapsed() < ms(3000), "{:?}", begun.elapsed());
    let short = client.mutex("short").lease(ms(1500)).acquire().await.expect("a grant");
    is_renewed(&short).await;
    // Also when all its connections must be restored, one of which nobody restores.
    redis.call(&["CLIENT", "KILL", "TYPE", "normal"]);
    redis.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    is_renewed(&short).await;
    is_renewed(&short).await;
    assert!(held.is_held() && short.is_held());
    // Moved to this runtime they come to their end, and dropped as well.
    let waits = claims.pop().expect("six");
    for claim in claims {
        give_back(soon("a grant", claim).await.expect("a grant")).await;
    }
    drop(waits);
    soon("what was dropped is withdrawn", client.shutdown()).await;
    in_line(&outside, "still-waits", 0).await;
    give_back(blocker).await;
    aside(move || drop(still)).await;
}

/// Held and waited for in a runtime of one thread that is blocked by its user: renewals go on, and a push waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_keeps_its_locks() {
    let redis = Redis::start();
    let client = connect(redis.url());
    let kept = aside(move || {
        let user = one_thread();
        user.block_on(async {
            let held = client.mutex("blocked").lease(ms(900)).acquire().await.expect("a grant");
            std::thread::sleep(ms(2500));
            assert!(held.is_held(), "renewed meanwhile");
            held.release().await.expect("an answer")
        })
    })
    .await;
    assert_eq!(kept, palisade::Released::Done);
}

fn cycle_and_wait(redis: &Redis, url: &str, run: impl Fn(Acquiring) -> palisade::Result<Guard> + Send + Sync) {
    let (client, outside) = (connect(url), connect(url));
    let first = run(acquiring(&long(&client, "plain"))).expect("a grant");
    assert!(client.mutex("plain").try_acquire().wait().expect("an answer").is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run(acquiring(&long(&client, "plain"))).expect("a grant"));
        let until = Instant::now() + Duration::from_secs(20);
        while outside.show("plain").wait().expect("an answer").is_none_or(|line| line.waiters.is_empty()) {
            assert!(Instant::now() < until, "not in line");
            std::thread::sleep(ms(5));
        }
        let begun = Instant::now();
        let fence = first.fence();
        drop(first);
        let next = waiting.join().expect("no panic");
        assert!(begun.elapsed() < ms(5000), "by push or by heartbeat, not by a lease");
        rise(&[fence, next.fence()]);
        assert_eq!(next.release().wait().expect("an answer"), palisade::Released::Done);
    });
    client.shutdown().wait();
    assert_eq!(fields(redis, "plain"), 1);
}

#[test]
fn no_runtime_at_all_will_do() {
    let redis = Redis::start();
    cycle_and_wait(&redis, &redis.url(), Wait::wait);
}

/// Neither timers nor IO: such a runtime can only wait.
#[test]
fn a_runtime_without_timers_and_io_will_do() {
    let redis = Redis::start();
    cycle_and_wait(&redis, &redis.url(), |claim| Builder::new_current_thread().build().expect("a runtime").block_on(claim));
    cycle_and_wait(&redis, &redis.url(), |claim| {
        Builder::new_multi_thread().worker_threads(1).build().expect("a runtime").block_on(claim)
    });
    // Not even the first attempt fails.
    let bare = Builder::new_current_thread().build().expect("a runtime");
    let client = connect(redis.url());
    let held = bare.block_on(client.mutex("first").try_acquire()).expect("an answer").expect("free");
    assert_eq!(bare.block_on(held.release()).expect("an answer"), palisade::Released::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_that_leave_at_once_leave_nothing() {
    const WAITERS: usize = 3000;
    let redis = Redis::start();
    let (client, outside) = (connect(redis.url()), connect(redis.url()));
    let held = long(&outside, "crowd").acquire().await.expect("a grant");
    let mutex = long(&client, "crowd");
    let crowd: Vec<_> = (0..WAITERS).map(|_| wait_for(&mutex)).collect();
    eventually("all in line", async || fields(&redis, "crowd") == 2 * WAITERS as i64 + 1).await;
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
    for left in crowd {
        assert!(left.await.is_err());
    }
    soon("withdrawn", client.shutdown()).await;
    assert_eq!(fields(&redis, "crowd"), 1);
    assert_eq!(client.stats().kept, 0);
    // Nobody gets in who has left: the next who comes does.
    give_back(held).await;
    drop(long(&client, "crowd").try_acquire().await.expect("an answer").expect("free"));
}

/// At every point at which a claim can be dropped, nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_dropped_leaves_nothing() {
    let redis = Redis::start();
    let client = connect(redis.url());
    // Connected or not, polled never, once, or for some microseconds; free or held.
    for micros in [0, 1, 20, 50, 100, 200, 400, 800, 1600, 3200, 6400] {
        let fresh = connect(redis.url());
        for (client, name) in [(&fresh, "free"), (&client, "free"), (&fresh, "held"), (&client, "held")] {
            let held = match name {
                "held" => Some(connect_and_hold(&redis, name).await),
                _ => None,
            };
            let mut claim = acquiring(&long(client, name));
            match micros {
                0 => drop(claim.as_mut().poll(&mut Context::from_waker(Waker::noop()))),
                micros => drop(tokio::time::timeout(Duration::from_micros(micros), &mut claim).await),
            }
            drop(claim);
            soon("withdrawn", client.shutdown()).await;
            if let Some((outside, held)) = held {
                in_line(&outside, name, 0).await;
                give_back(held).await;
            }
            assert!(fields(&redis, name) <= 1, "after {micros} µs");
        }
    }
}

async fn connect_and_hold(redis: &Redis, name: &str) -> (Client, Guard) {
    let outside = connect(redis.url());
    let held = long(&outside, name).acquire().await.expect("a grant");
    (outside, held)
}
