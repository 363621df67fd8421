//! Whose runtime a claim goes by, and what becomes of it when that ends, stands still, or can do nothing.

#![cfg(feature = "etcd")]

mod common;

use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use common::actors::{connect, gets_in, give_back, in_line, is_renewed, is_told, rise, soon, wait_for};
use common::etcd::{LONG, SHORT, client};
use common::ms;
use common::runtimes::{Acquiring, acquiring, aside, begin_in, one_thread, one_worker, poll_once, poll_until_in_line};
use palisade::blocking::Wait;
use palisade::{Client, Guard, Mutex, Released};
use palisade_testkit::etcd::Etcd;
use tokio::runtime::{Builder, Runtime};

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

/// Asks so often in a runtime that it has connections of its own.
fn at_home_in(runtime: &Runtime, client: &Client) {
    let mutex = long(client, "at-home");
    let cycles = async move {
        for _ in 0..5 {
            assert_eq!(mutex.acquire().await.expect("a grant").release().await.expect("an answer"), Released::Done);
        }
    };
    runtime.block_on(async { tokio::spawn(cycles).await.expect("no panic") });
}

/// Nothing holds or waits there.
async fn is_empty(client: &Client, name: &str) -> bool {
    client.show(name).await.expect("an answer").is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_ends_takes_nothing_with_it_but_its_own_tasks() {
    let server = aside(Etcd::start).await;
    let (mine, outside) = (client(&server), client(&server));
    let blocker = long(&outside, "y").acquire().await.expect("a grant");
    let other = long(&outside, "z").acquire().await.expect("a grant");
    // Held through it, and waited for through it by one of its tasks.
    let locks = mine.clone();
    let user = aside(move || {
        let user = one_worker();
        at_home_in(&user, &locks);
        user
    })
    .await;
    let (x, y) = (mine.mutex("x").lease(SHORT), long(&mine, "y"));
    let held = user.spawn(async move { x.acquire().await }).await.expect("no panic").expect("a grant");
    let abandoned = user.spawn(async move { y.acquire().await });
    // Of the same client, through this one.
    let waiting = wait_for(&long(&mine, "z"));
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
    assert!(is_empty(&outside, "y").await);
    // What goes on behind the scenes was not begun in it: who holds is told at once.
    let revoked = long(&mine, "w").acquire().await.expect("a grant");
    outside.revoke("w", revoked.fence()).await.expect("an answer");
    is_told(&revoked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_outlives_the_runtime_it_began_in() {
    let server = aside(Etcd::start).await;
    let (mine, outside) = (client(&server), client(&server));
    for (round, in_line_first) in [false, true].into_iter().enumerate() {
        let name = format!("moved-{round}");
        let held = long(&outside, &name).acquire().await.expect("a grant");
        let mut moved = acquiring(&long(&mine, &name));
        let (locks, looks_on, waited_for) = (mine.clone(), outside.clone(), name.clone());
        let mut moved = aside(move || {
            let user = one_thread();
            at_home_in(&user, &locks);
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
    let server = aside(Etcd::start).await;
    let url = format!("etcd://{}/lock?request_timeout=1s&connect_timeout=500ms", server.address());
    let (mine, outside) = (connect(&url), connect(&url));
    let blocker = long(&outside, "still-waits").acquire().await.expect("a grant");
    // More than go alone: of some nobody ever sends the request that they wait to go with.
    let names = ["still", "still-2", "still-3", "still-4", "still-5", "still-6", "still-waits"];
    let claims: Vec<Acquiring> = names.into_iter().map(|name| acquiring(&long(&mine, name))).collect();
    let locks = mine.clone();
    let (mut claims, still) = aside(move || {
        let mut claims = claims;
        let still = one_thread();
        if connected {
            at_home_in(&still, &locks);
        }
        // On their way, and no further.
        for claim in &mut claims {
            begin_in(&still, claim);
        }
        (claims, still)
    })
    .await;
    // Others of the same client, here and in the client's own thread.
    let begun = Instant::now();
    let held = soon("a grant", long(&mine, "other").acquire()).await.expect("a grant");
    let spawned = gets_in(wait_for(&long(&mine, "spawned"))).await;
    assert!(begun.elapsed() < ms(3000), "{:?}", begun.elapsed());
    let short = mine.mutex("short").lease(SHORT).acquire().await.expect("a grant");
    is_renewed(&short).await;
    assert!(held.is_held() && spawned.is_held() && short.is_held());
    // Moved to this runtime they come to their end, and dropped as well.
    let waits = claims.pop().expect("seven");
    for claim in claims {
        give_back(soon("a grant", claim).await.expect("a grant")).await;
    }
    drop(waits);
    soon("what was dropped is withdrawn", mine.shutdown()).await;
    in_line(&outside, "still-waits", 0).await;
    give_back(blocker).await;
    aside(move || drop(still)).await;
}

/// Who is driven no further, though its runtime runs, does not keep others of that runtime from asking.
#[tokio::test]
async fn claims_that_nobody_polls_hold_up_nobody() {
    let server = aside(Etcd::start).await;
    let mine = client(&server);
    for _ in 0..5 {
        give_back(long(&mine, "at-home").acquire().await.expect("a grant")).await;
    }
    let mut unpolled: Vec<Acquiring> = (0..20).map(|at| acquiring(&long(&mine, &format!("unpolled-{at}")))).collect();
    for claim in &mut unpolled {
        assert!(!poll_once(claim).await);
    }
    let begun = Instant::now();
    for _ in 0..10 {
        give_back(soon("a grant", long(&mine, "polled").acquire()).await.expect("a grant")).await;
    }
    assert!(begun.elapsed() < ms(3000), "{:?}", begun.elapsed());
    for claim in unpolled {
        give_back(soon("a grant", claim).await.expect("a grant")).await;
    }
}

/// Held in a runtime of one thread that is blocked by its user: renewals go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_keeps_its_locks() {
    let server = aside(Etcd::start).await;
    let mine = client(&server);
    let kept = aside(move || {
        let user = one_thread();
        at_home_in(&user, &mine);
        user.block_on(async {
            let held = mine.mutex("blocked").lease(SHORT).acquire().await.expect("a grant");
            std::thread::sleep(SHORT * 2);
            assert!(held.is_held(), "renewed meanwhile");
            held.release().await.expect("an answer")
        })
    })
    .await;
    assert_eq!(kept, Released::Done);
}

/// An answer that is there when a blocked runtime goes on is taken, however late it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_takes_its_answer_late() {
    let server = aside(Etcd::start).await;
    let mine = connect(format!("etcd://{}/lock?request_timeout=500ms", server.address()));
    aside(move || {
        let user = one_thread();
        at_home_in(&user, &mine);
        let lock = long(&mine, "late");
        let held = user.block_on(async {
            let asked = tokio::spawn(async move { lock.try_acquire().await });
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            std::thread::sleep(ms(1500));
            asked.await.expect("no panic").expect("an answer").expect("free")
        });
        assert_eq!(user.block_on(held.release()).expect("an answer"), Released::Done);
    })
    .await;
}

fn cycle_and_wait(server: &Etcd, run: impl Fn(Acquiring) -> palisade::Result<Guard> + Send + Sync) {
    let (mine, outside) = (client(server), client(server));
    for _ in 0..5 {
        drop(run(acquiring(&long(&mine, "plain"))).expect("a grant"));
    }
    let first = run(acquiring(&long(&mine, "plain"))).expect("a grant");
    assert!(mine.mutex("plain").try_acquire().wait().expect("an answer").is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run(acquiring(&long(&mine, "plain"))).expect("a grant"));
        let until = Instant::now() + Duration::from_secs(20);
        while outside.show("plain").wait().expect("an answer").is_none_or(|line| line.waiters.is_empty()) {
            assert!(Instant::now() < until, "not in line");
            std::thread::sleep(ms(5));
        }
        let begun = Instant::now();
        let fence = first.fence();
        drop(first);
        let next = waiting.join().expect("no panic");
        assert!(begun.elapsed() < ms(5000), "by the watch or by the heartbeat, not by a lease");
        rise(&[fence, next.fence()]);
        assert_eq!(next.release().wait().expect("an answer"), Released::Done);
    });
    mine.shutdown().wait();
    assert!(outside.show("plain").wait().expect("an answer").is_none());
}

#[test]
fn no_runtime_at_all_will_do() {
    let server = Etcd::start();
    cycle_and_wait(&server, Wait::wait);
}

/// Neither timers nor IO, or a clock that a test has stopped: such a runtime can only wait.
#[test]
fn a_runtime_that_can_do_nothing_will_do() {
    let server = Etcd::start();
    let bare = || Builder::new_current_thread().build().expect("a runtime");
    let stopped = || Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let shared = [bare(), stopped()].map(std::sync::Mutex::new);
    for runtime in &shared {
        cycle_and_wait(&server, |claim| match runtime.try_lock() {
            Ok(runtime) => runtime.block_on(claim),
            Err(_) => claim.wait(),
        });
    }
    cycle_and_wait(&server, |claim| Builder::new_multi_thread().worker_threads(1).build().expect("a runtime").block_on(claim));
}

/// Whoever has entered a runtime that nobody drives waits for nobody there.
#[test]
fn a_runtime_that_is_only_entered_will_do() {
    let server = Etcd::start();
    let entered = one_thread();
    let _inside = entered.enter();
    cycle_and_wait(&server, Wait::wait);
}

/// At every point at which a claim can be dropped, nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_dropped_leaves_nothing() {
    let server = aside(Etcd::start).await;
    let (old, outside) = (client(&server), client(&server));
    for micros in [0, 1, 50, 200, 400, 800, 1600, 3200, 6400] {
        let fresh = client(&server);
        for (mine, name) in [(&fresh, "free"), (&old, "free"), (&fresh, "held"), (&old, "held")] {
            let held = match name {
                "held" => Some(long(&outside, name).acquire().await.expect("a grant")),
                _ => None,
            };
            let mut claim = acquiring(&long(mine, name));
            // In a task, and so by connections of this runtime.
            let dropped = tokio::spawn(async move {
                match micros {
                    0 => drop(claim.as_mut().poll(&mut Context::from_waker(Waker::noop()))),
                    micros => drop(tokio::time::timeout(Duration::from_micros(micros), &mut claim).await),
                }
            });
            dropped.await.expect("no panic");
            soon("withdrawn", mine.shutdown()).await;
            if let Some(held) = held {
                in_line(&outside, name, 0).await;
                give_back(held).await;
            }
            assert!(is_empty(&outside, name).await, "after {micros} µs");
        }
    }
}
