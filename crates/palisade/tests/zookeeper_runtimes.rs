//! Whose runtime a claim in ZooKeeper goes by, and what becomes of it when that ends, stands still, or can do nothing.

#![cfg(feature = "zookeeper")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::actors::{connect, gets_in, give_back, in_line, is_renewed, rise, soon, wait_for};
use common::ms;
use common::zookeeper::{LONG, SHORT, client, has, line_of, op, proxy};
use palisade::blocking::Wait;
use palisade::{Client, Guard, Mutex, Released};
use palisade_conformance::eventually;
use palisade_testkit::proxy::Way;
use palisade_testkit::zookeeper::ZooKeeper;
use tokio::runtime::{Builder, Runtime};

fn server() -> ZooKeeper {
    ZooKeeper::with().long_sessions().start()
}

fn long(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(LONG).store_wait(LONG)
}

fn short(client: &Client, name: &str) -> Mutex {
    client.mutex(name).lease(SHORT).store_wait(LONG)
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn one_worker() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

type Going<T> = Pin<Box<dyn Future<Output = palisade::Result<T>> + Send>>;

fn acquiring(mutex: &Mutex) -> Going<Guard> {
    let mutex = mutex.clone();
    Box::pin(async move { mutex.acquire().await })
}

/// Polls once, and leaves.
async fn poll_once<T>(future: &mut Going<T>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

/// Begins something in this runtime, and leaves the runtime when it is on its way.
fn begin_in<T>(runtime: &Runtime, future: &mut Going<T>) {
    runtime.block_on(async {
        assert!(!poll_once(future).await, "it cannot be ready at once");
    });
}

/// Runs on a thread of its own: a runtime must not be dropped or blocked on inside of another.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// Opens the session of this client for leases of this length.
async fn warm(mutex: &Mutex) {
    give_back(mutex.acquire().await.expect("a grant")).await;
}

fn nodes_of(server: &ZooKeeper, name: &str) -> usize {
    line_of(server, name).len()
}

/// Waits until the line has so many nodes.
async fn has_nodes(server: &ZooKeeper, name: &str, count: usize) {
    eventually(&format!("{count} nodes of {name}"), async || nodes_of(server, name) == count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_ends_takes_nothing_with_it_but_its_own_tasks() {
    let server = server();
    let (locks, outside) = (client(&server), client(&server));
    let blocker = long(&outside, "y").acquire().await.expect("a grant");
    let other = long(&outside, "z").acquire().await.expect("a grant");
    // The first that is asked, so that all connections begin with it; held through it, and waited for by one of its tasks.
    let user = one_worker();
    let (x, y) = (short(&locks, "x"), long(&locks, "y"));
    let held = user.spawn(async move { x.acquire().await }).await.expect("no panic").expect("a grant");
    let abandoned = user.spawn(async move { y.acquire().await });
    // Of the same client, through this one.
    let waiting = wait_for(&long(&locks, "z"));
    in_line(&outside, "y", 1).await;
    in_line(&outside, "z", 1).await;
    user.shutdown_background();
    assert!(abandoned.await.is_err(), "its task is gone");
    has_nodes(&server, "y", 1).await;
    is_renewed(&held).await;
    is_renewed(&held).await;
    assert!(held.is_held());
    let fence = other.fence();
    give_back(other).await;
    rise(&[fence, gets_in(waiting).await.fence()]);
    give_back(held).await;
    give_back(blocker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_outlives_the_runtime_it_began_in() {
    let server = server();
    let (locks, outside) = (client(&server), client(&server));
    for (round, is_warm) in [(0, false), (1, true), (2, true)] {
        let name = format!("moved-{round}");
        if is_warm {
            warm(&long(&locks, "warm")).await;
        }
        let held = long(&outside, &name).acquire().await.expect("a grant");
        let mut moved = acquiring(&long(&locks, &name));
        let (looks_on, waited_for) = (outside.clone(), name.clone());
        let mut moved = aside(move || {
            let user = one_worker();
            begin_in(&user, &mut moved);
            if round == 2 {
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

/// Drives a claim until it stands in line.
async fn poll_until_in_line(moved: &mut Going<Guard>, outside: &Client, name: &str) {
    let drive = std::future::poll_fn(|context| match moved.as_mut().poll(context) {
        Poll::Ready(_) => panic!("the name is held"),
        Poll::Pending => Poll::<()>::Pending,
    });
    tokio::select! {
        () = drive => {}
        () = in_line(outside, name, 1) => {}
    }
}

/// A runtime of one thread that nobody drives any more, with more on its way than goes alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_stands_still_holds_up_nobody_else() {
    for is_warm in [false, true] {
        stands_still(is_warm).await;
    }
}

async fn stands_still(is_warm: bool) {
    let server = server();
    let between = proxy(&server);
    let (locks, outside) = (connect(format!("zk://{}/lock", between.address())), client(&server));
    let blocker = long(&outside, "still-waits").acquire().await.expect("a grant");
    let names = ["still", "still-2", "still-3", "still-4", "still-5", "still-waits"];
    // As many as would hold up the others for longer than is allowed below, one after the other, if each were waited for; and not so
    // many that the client's bound of requests in flight is reached.
    let more = (0..100).map(|number| format!("still-more-{number}"));
    let names = more.chain(names.map(str::to_owned));
    let begun: Vec<Going<Guard>> = names.map(|name| acquiring(&long(&locks, &name))).collect();
    let cycles = long(&locks, "cycles");
    let (mut claims, still) = aside(move || {
        let (mut claims, still) = (begun, one_thread());
        if is_warm {
            let held = still.block_on(cycles.acquire()).expect("a grant");
            assert_eq!(still.block_on(held.release()).expect("an answer"), Released::Done);
        }
        for claim in &mut claims {
            begin_in(&still, claim);
        }
        (claims, still)
    })
    .await;
    // Others of the same client, on the same session and on another.
    let begun = Instant::now();
    let held = soon("a grant", long(&locks, "other").acquire()).await.expect("a grant");
    let kept = soon("a grant", short(&locks, "short").acquire()).await.expect("a grant");
    assert!(begun.elapsed() < ms(3000), "{:?}", begun.elapsed());
    is_renewed(&kept).await;
    // Also when the connections must be restored.
    between.reset();
    is_renewed(&kept).await;
    is_renewed(&kept).await;
    assert!(held.is_held() && kept.is_held());
    // Moved to this runtime they come to their end, and dropped as well.
    let waits = claims.pop().expect("the last");
    for claim in claims {
        give_back(soon("a grant", claim).await.expect("a grant")).await;
    }
    drop(waits);
    soon("what was dropped is withdrawn", locks.shutdown()).await;
    has_nodes(&server, "still-waits", 1).await;
    give_back(blocker).await;
    aside(move || drop(still)).await;
}

/// A waiter whose runtime stands still is renewed, and granted the lock when its turn comes: it finds the grant when it looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_stands_still_has_its_place_and_its_grant() {
    let server = server();
    let (locks, outside) = (client(&server), client(&server));
    let held = short(&outside, "turn").acquire().await.expect("a grant");
    let mut waits = acquiring(&short(&locks, "turn"));
    let looks_on = outside.clone();
    let (waits, still) = aside(move || {
        let still = one_thread();
        still.block_on(poll_until_in_line(&mut waits, &looks_on, "turn"));
        (waits, still)
    })
    .await;
    let fence = held.fence();
    let kept = short(&locks, "kept").acquire().await.expect("a grant");
    // For longer than a waiter lives without renewal.
    for _ in 0..8 {
        is_renewed(&kept).await;
    }
    assert_eq!(nodes_of(&server, "turn"), 2, "its place is renewed");
    give_back(held).await;
    has_nodes(&server, "turn", 1).await;
    is_renewed(&kept).await;
    is_renewed(&kept).await;
    assert_eq!(nodes_of(&server, "turn"), 1);
    let next = soon("its grant", waits).await.expect("a grant");
    assert!(next.is_held());
    rise(&[fence, next.fence()]);
    give_back(next).await;
    aside(move || drop(still)).await;
}

/// A claim whose caller is not polled has its node: polled again, or dropped, it comes to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_waits_for_its_caller() {
    let server = server();
    let (locks, outside) = (client(&server), client(&server));
    warm(&short(&locks, "warm")).await;
    let mut claims = [acquiring(&short(&locks, "found")), acquiring(&short(&locks, "left"))];
    let (claims, still) = aside(move || {
        let still = one_thread();
        claims.iter_mut().for_each(|claim| begin_in(&still, claim));
        (claims, still)
    })
    .await;
    has_nodes(&server, "found", 1).await;
    has_nodes(&server, "left", 1).await;
    let kept = short(&locks, "kept").acquire().await.expect("a grant");
    // For longer than the session would last.
    for _ in 0..8 {
        is_renewed(&kept).await;
    }
    let [found, left] = claims;
    let found = soon("its grant", found).await.expect("a grant");
    assert!(found.is_held());
    is_renewed(&found).await;
    assert_eq!(nodes_of(&server, "left"), 1);
    let waiting = wait_for(&long(&outside, "left"));
    in_line(&outside, "left", 1).await;
    drop(left);
    give_back(gets_in(waiting).await).await;
    give_back(found).await;
    aside(move || drop(still)).await;
}

/// A release is lost with its connection, and dropped by a caller whose runtime stands still: the client tries again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_dropped_is_repeated() {
    let server = server();
    let between = proxy(&server);
    let (locks, outside) = (connect(format!("zk://{}/lock", between.address())), client(&server));
    let kept = short(&locks, "kept").acquire().await.expect("a grant");
    let held = short(&locks, "back").acquire().await.expect("a grant");
    // It does not arrive, and the connection is given up for it.
    between.swallow(Way::ToServer);
    let mut back: Going<Released> = Box::pin(held.release());
    let (back, still) = aside(move || {
        let still = one_thread();
        begin_in(&still, &mut back);
        (back, still)
    })
    .await;
    between.reset();
    between.heal();
    is_renewed(&kept).await;
    drop(back);
    let next = soon("the next gets in", long(&outside, "back").acquire()).await.expect("a grant");
    assert!(kept.is_held(), "its session has not ended");
    assert!(next.is_held());
    give_back(next).await;
    aside(move || drop(still)).await;
}

/// Held in a runtime of one thread that is blocked by its user: renewals go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_keeps_its_locks() {
    let server = server();
    let locks = client(&server);
    let kept = aside(move || {
        let user = one_thread();
        user.block_on(async {
            let held = short(&locks, "blocked").acquire().await.expect("a grant");
            // Longer than a session lasts.
            std::thread::sleep(SHORT * 2);
            assert!(held.is_held(), "renewed meanwhile");
            held.release().await.expect("an answer")
        })
    })
    .await;
    assert_eq!(kept, Released::Done);
}

fn cycle_and_wait(server: &ZooKeeper, name: &str, run: impl Fn(Going<Guard>) -> palisade::Result<Guard> + Send + Sync) {
    let (locks, outside) = (client(server), client(server));
    let first = run(acquiring(&long(&locks, name))).expect("a grant");
    assert!(long(&locks, name).try_acquire().wait().expect("an answer").is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run(acquiring(&long(&locks, name))).expect("a grant"));
        let until = Instant::now() + Duration::from_secs(20);
        while outside.show(name).wait().expect("an answer").is_none_or(|line| line.waiters.is_empty()) {
            assert!(Instant::now() < until, "not in line");
            std::thread::sleep(ms(5));
        }
        let begun = Instant::now();
        let fence = first.fence();
        drop(first);
        let next = waiting.join().expect("no panic");
        assert!(begun.elapsed() < ms(5000), "by watch or by heartbeat, not by a lease");
        rise(&[fence, next.fence()]);
        assert_eq!(next.release().wait().expect("an answer"), Released::Done);
    });
    locks.shutdown().wait();
    assert_eq!(nodes_of(server, name), 0);
}

#[test]
fn no_runtime_at_all_will_do() {
    cycle_and_wait(&server(), "plain", Wait::wait);
}

/// Neither timers nor IO: such a runtime can only wait.
#[test]
fn a_runtime_without_timers_and_io_will_do() {
    let server = server();
    cycle_and_wait(&server, "one", |claim| Builder::new_current_thread().build().expect("a runtime").block_on(claim));
    cycle_and_wait(&server, "many", |claim| {
        Builder::new_multi_thread().worker_threads(1).build().expect("a runtime").block_on(claim)
    });
    // Not even the first attempt fails.
    let bare = Builder::new_current_thread().build().expect("a runtime");
    let locks = client(&server);
    let held = bare.block_on(locks.mutex("first").try_acquire()).expect("an answer").expect("free");
    assert_eq!(bare.block_on(held.release()).expect("an answer"), Released::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_that_leave_at_once_leave_nothing() {
    const WAITERS: usize = 400;
    let server = server();
    let (locks, outside) = (client(&server), client(&server));
    let held = long(&outside, "crowd").acquire().await.expect("a grant");
    let mutex = long(&locks, "crowd");
    let crowd: Vec<_> = (0..WAITERS).map(|_| wait_for(&mutex)).collect();
    has_nodes(&server, "crowd", WAITERS + 1).await;
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
    for left in crowd {
        assert!(left.await.is_err());
    }
    soon("withdrawn", locks.shutdown()).await;
    assert_eq!(nodes_of(&server, "crowd"), 1);
    assert_eq!(locks.stats().kept, 0);
    give_back(held).await;
    drop(long(&locks, "crowd").try_acquire().await.expect("an answer").expect("free"));
}

/// At every point at which a claim can be dropped, nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_dropped_leaves_nothing() {
    let server = server();
    let (locks, outside) = (client(&server), client(&server));
    // Connected or not, polled never, once, or for some microseconds; free or held.
    for micros in [0, 1, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800] {
        let fresh = client(&server);
        for (locks, name) in [(&fresh, "free"), (&locks, "free"), (&fresh, "held"), (&locks, "held")] {
            let held = match name {
                "held" => Some(long(&outside, name).acquire().await.expect("a grant")),
                _ => None,
            };
            let mut claim = acquiring(&long(locks, name));
            match micros {
                0 => drop(claim.as_mut().poll(&mut Context::from_waker(Waker::noop()))),
                micros => drop(tokio::time::timeout(Duration::from_micros(micros), &mut claim).await),
            }
            drop(claim);
            soon("withdrawn", locks.shutdown()).await;
            assert_eq!(nodes_of(&server, name), usize::from(held.is_some()), "{name} after {micros} µs");
            if let Some(held) = held {
                give_back(held).await;
            }
        }
    }
}

/// A free lock costs one write to the socket for each verb: what is asked at once leaves at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_at_once_leaves_in_one_piece() {
    let server = server();
    let between = proxy(&server);
    let locks = connect(format!("zk://{}/lock", between.address()));
    let lock = long(&locks, "piece");
    warm(&lock).await;
    let pieces: std::sync::Arc<std::sync::Mutex<(usize, usize)>> = std::sync::Arc::default();
    let counts = std::sync::Arc::clone(&pieces);
    between.lose_reply_to(move |bytes| {
        let mut counts = counts.lock().expect("no panic");
        let (creates, lists) = (has(bytes, op::CREATE), has(bytes, op::GET_CHILDREN));
        *counts = (counts.0 + usize::from(creates), counts.1 + usize::from(creates && lists));
        false
    });
    for _ in 0..50 {
        warm(&lock).await;
    }
    let (creates, whole) = *pieces.lock().expect("no panic");
    // A proxy reads what has come: two pieces that come together would look like one, and not the other way round.
    assert_eq!((creates, whole), (50, 50));
}
