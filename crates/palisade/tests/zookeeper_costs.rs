//! What locks cost in ZooKeeper, request by request, and that nothing is left of them.

#![cfg(feature = "zookeeper")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::actors::{connect, in_line, is_renewed};
use common::zookeeper::{LIMIT, LONG, Tally, client, has, nodes, op, proxy};
use palisade::{Client, ErrorKind, Guard, GuardMode, Released};
use palisade_conformance::eventually;
use palisade_testkit::proxy::Proxy;
use palisade_testkit::zookeeper::{Make, Raw, ZooKeeper};

/// How often a waiter renews its place.
const HEARTBEAT: Duration = Duration::from_millis(5000 / 3);

/// `PALISADE_SOAK=10` makes the long tests ten times as long.
fn soak() -> usize {
    std::env::var("PALISADE_SOAK")
        .ok()
        .map_or(1, |soak| soak.parse().expect("a number"))
}

/// A client whose requests can be counted.
fn counted(server: &ZooKeeper) -> (Proxy, Client) {
    let proxy = proxy(server);
    let client = connect(format!("zk://{}/lock", proxy.address()));
    (proxy, client)
}

async fn acquire(client: &Client, name: &str) -> Guard {
    client
        .mutex(name)
        .lease(LONG)
        .store_wait(LONG)
        .acquire()
        .await
        .expect("a grant")
}

async fn release<M: GuardMode>(guard: Guard<M>) {
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
}

/// Does this in so many tasks at once, each with its number.
async fn in_tasks<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    tasks: usize,
    work: impl Fn(usize) -> F,
) -> Vec<T> {
    let tasks: Vec<_> = (0..tasks).map(|task| tokio::spawn(work(task))).collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.expect("no panic"));
    }
    done
}

/// The table of the store's page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_costs_what_the_page_says() {
    use op::{CREATE, CREATE_CONTAINER, DELETE, EXISTS, GET_CHILDREN, GET_DATA, MULTI, SYNC};
    const ROUNDS: u64 = 50;
    let server = ZooKeeper::with().long_sessions().start();
    let ((ours, us), (theirs, them)) = (counted(&server), counted(&server));
    for client in [&us, &them] {
        release(acquire(client, "warm").await).await;
    }
    // A new name.
    let tally = Tally::of(&ours);
    release(acquire(&us, "free").await).await;
    assert_eq!(
        tally.requests([CREATE_CONTAINER, CREATE, GET_CHILDREN, DELETE]),
        [1; 4]
    );
    // One that was used before.
    let tally = Tally::of(&ours);
    for _ in 0..ROUNDS {
        release(acquire(&us, "free").await).await;
    }
    assert_eq!(tally.requests([CREATE, GET_CHILDREN, DELETE]), [ROUNDS; 3]);
    // A hold that takes a tenth of a second on a busy machine has its node watched.
    let [watches] = tally.requests([GET_DATA]);
    assert_eq!(tally.all() - watches, 3 * ROUNDS);
    // A taken one, which is not waited for.
    let held = acquire(&us, "taken").await;
    drop(acquire(&them, "taken-not").await);
    eventually("given back", async || nodes(&server).len() == 1).await;
    assert!(
        them.mutex("taken")
            .lease(LONG)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    let tally = Tally::of(&theirs);
    assert!(
        them.mutex("taken")
            .lease(LONG)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    assert_eq!(
        tally.requests([CREATE, GET_CHILDREN, DELETE, GET_DATA]),
        [1; 4]
    );
    assert_eq!(tally.all(), 4);
    // Standing in line.
    let tally = Tally::of(&theirs);
    let lock = them.mutex("taken").lease(LONG).store_wait(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("its watch", async || tally.requests([GET_DATA]) == [1]).await;
    assert_eq!(tally.requests([CREATE, GET_DATA, DELETE]), [1, 1, 0]);
    // The hand-off: the release, and the look of the next.
    let (release_tally, tally) = (Tally::of(&ours), Tally::of(&theirs));
    release(held).await;
    let next = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("its turn")
        .expect("no panic")
        .expect("a grant");
    assert_eq!(release_tally.requests([DELETE]), [1]);
    let beats = tally.ticks(HEARTBEAT);
    let [syncs, lists, created, data] = tally.requests([SYNC, GET_CHILDREN, CREATE, GET_DATA]);
    assert!((1..=1 + beats).contains(&lists), "{lists} looks");
    assert_eq!((syncs, created, data, tally.events()), (0, 0, 0, 1));
    // Behind a waiter, too: the holder is read only by a claim whose wait has timed out.
    let second = them.mutex("taken").lease(LONG).store_wait(LONG);
    let second = tokio::spawn(async move { second.acquire().await });
    in_line(&us, "taken", 1).await;
    let tally = Tally::of(&ours);
    let lock = us.mutex("taken").lease(LONG).store_wait(LONG);
    let third = tokio::spawn(async move { lock.acquire_timeout(Duration::from_millis(500)).await });
    eventually("its watch", async || tally.requests([GET_DATA]) == [1]).await;
    let tally = Tally::of(&ours);
    let refused = third.await.expect("no panic").expect_err("it is held");
    let (ErrorKind::Timeout, Some(holder)) = (refused.kind(), refused.holder()) else {
        panic!("{refused:?}")
    };
    assert_eq!(holder.fence, next.fence());
    eventually("it has left", async || tally.requests([DELETE]) == [1]).await;
    assert_eq!(tally.requests([GET_CHILDREN, GET_DATA]), [1; 2]);
    release(next).await;
    release(second.await.expect("no panic").expect("a grant")).await;
    // Permits: the place in line and four reads at once, then one step.
    let pool = us.semaphore("pool", 2).lease(LONG);
    release(pool.acquire().await.expect("a grant")).await;
    let tally = Tally::of(&ours);
    for _ in 0..ROUNDS {
        release(pool.acquire().await.expect("a grant")).await;
    }
    assert_eq!(tally.requests([CREATE, MULTI, DELETE]), [ROUNDS; 3]);
    let [reads, of_data, looks] = tally.requests([GET_CHILDREN, GET_DATA, EXISTS]);
    assert!(
        (4 * ROUNDS..=4 * ROUNDS + 10).contains(&(reads + of_data + looks)),
        "{reads}, {of_data} and {looks} reads"
    );
}

/// However many locks are held, each renewal is one transaction. No node is looked at once it is
/// watched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_locks_cost_one_transaction() {
    const LOCKS: usize = 10_000;
    const TASKS: usize = 50;
    let lease = Duration::from_secs(9);
    let server = ZooKeeper::with().long_sessions().start();
    let (proxy, client) = counted(&server);
    let begun = Instant::now();
    let many = in_tasks(TASKS, |task| {
        let client = client.clone();
        async move {
            let mut guards = Vec::new();
            for number in 0..LOCKS / TASKS {
                let lock = client
                    .mutex(format!("many-{task}-{number}"))
                    .lease(lease)
                    .store_wait(LONG);
                guards.push(lock.acquire().await.expect("a grant"));
            }
            guards
        }
    });
    let guards: Vec<Guard> = many.await.into_iter().flatten().collect();
    println!("{LOCKS} locks in {:?}", begun.elapsed());
    let sessions: std::collections::BTreeSet<i64> = nodes(&server).into_values().collect();
    assert_eq!(
        (nodes(&server).len(), sessions.len()),
        (LOCKS, 1),
        "one session for all"
    );
    eventually("all are watched", async || {
        server.count("zk_watch_count") >= LOCKS as u64
    })
    .await;
    println!("watched after {:?}", begun.elapsed());
    // One renewal that has begun before may still look.
    is_renewed(&guards[0]).await;
    is_renewed(&guards[0]).await;
    let tally = Tally::of(&proxy);
    for _ in 0..3 {
        is_renewed(&guards[0]).await;
    }
    let ([beats], all, took) = (tally.requests([op::MULTI]), tally.all(), tally.elapsed());
    let slowest = tally.slowest();
    println!(
        "{beats} transactions of {all} requests in {took:?}, answered within {slowest:?}: {tally:?}"
    );
    // Every sixth of the session. An answer that takes longer than the session allows for proves
    // less, and the next renewal comes earlier.
    let early = u64::from(slowest >= lease / 48);
    assert!(
        (2..=tally.ticks(lease / 6) + 1 + early).contains(&beats),
        "{beats} transactions in {took:?}, answered within {slowest:?}"
    );
    assert_eq!(all, beats, "and nothing else");
    assert!(guards.iter().all(Guard::is_held));
    let begun = Instant::now();
    drop(guards);
    client.shutdown().await;
    assert_eq!(nodes(&server).len(), 0);
    println!("given back in {:?}", begun.elapsed());
}

/// One event and a few requests for each turn, whether few wait or many, and small answers to those
/// who go on waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_the_same_with_many_waiters() {
    let server = ZooKeeper::with().long_sessions().start();
    let outside = client(&server);
    for waiters in [16_u64, 1000] {
        let (proxy, waiter) = counted(&server);
        let name = format!("crowd-{waiters}");
        let held = acquire(&outside, &name).await;
        let begun = Instant::now();
        let turns: Vec<_> = (0..waiters)
            .map(|_| {
                let lock = waiter.mutex(&name).lease(LONG).store_wait(LONG);
                tokio::spawn(async move { release(lock.acquire().await.expect("a grant")).await })
            })
            .collect();
        in_line(&outside, &name, waiters as usize).await;
        eventually("all watch", async || {
            server.count("zk_watch_count") >= waiters
        })
        .await;
        println!(
            "{waiters} waiters stand in line after {:?}",
            begun.elapsed()
        );
        // Those who go on waiting.
        let tally = Tally::of(&proxy);
        eventually("some heartbeats", async || tally.elapsed() > HEARTBEAT * 3).await;
        let (each, kilobytes) = (tally.all() as f64 / waiters as f64, tally.bytes() / 1024);
        println!(
            "{waiters} wait: {each:.1} requests each, {kilobytes} kB in {:?}, {} events",
            tally.elapsed(),
            tally.events()
        );
        assert_eq!(tally.events(), 0);
        // A look at itself and at the one before, and one transaction for all; the whole line would
        // be sixty bytes for each in it.
        let most = (2 * waiters + 1) * (tally.ticks(HEARTBEAT) + 1);
        assert!(tally.all() <= most, "{} requests", tally.all());
        assert!(tally.bytes() <= 128 * most, "{} bytes", tally.bytes());
        // The turns.
        let tally = Tally::of(&proxy);
        release(held).await;
        for turn in turns {
            tokio::time::timeout(LIMIT * 2, turn)
                .await
                .expect("its turn")
                .expect("no panic");
        }
        let took = tally.elapsed();
        let [deletes, lists, syncs, created] =
            tally.requests([op::DELETE, op::GET_CHILDREN, op::SYNC, op::CREATE]);
        println!(
            "{waiters} turns in {took:?}: {} requests, {lists} lists, {syncs} syncs, {} events",
            tally.all(),
            tally.events()
        );
        assert_eq!((deletes, created), (waiters, 0));
        // The look of the next, and that of a heartbeat which comes in between.
        let beats = tally.ticks(HEARTBEAT);
        assert!(
            (waiters..=waiters + 2 * beats).contains(&lists),
            "{lists} lists"
        );
        // Only by a waiter that was told by its heartbeat first, and then by its watch.
        assert!(syncs <= 2 * beats, "{syncs} syncs");
        assert!(
            tally.events() <= 2 * waiters,
            "one to the next, and one to the watcher of its own: {}",
            tally.events()
        );
        drop(waiter);
    }
}

/// Names that were used leave no nodes: their parents are containers, which the server takes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_leave_nothing_behind() {
    const TASKS: usize = 50;
    let names = 10_000 * soak();
    let server = ZooKeeper::with()
        .property("znode.container.checkIntervalMs", "200")
        .property("znode.container.maxPerMinute", "1000000")
        .start();
    let client = client(&server);
    let before = server.count("zk_znode_count");
    let begun = Instant::now();
    in_tasks(TASKS, |task| {
        let client = client.clone();
        async move {
            for number in 0..names / TASKS {
                release(
                    client
                        .mutex(format!("used-{task}-{number}"))
                        .acquire()
                        .await
                        .expect("a grant"),
                )
                .await;
            }
        }
    })
    .await;
    let pool = client
        .semaphore("pool", 2)
        .acquire()
        .await
        .expect("a grant");
    println!(
        "{names} names in {:?}, {} nodes",
        begun.elapsed(),
        server.count("zk_znode_count") - before
    );
    assert!(server.count("zk_znode_count") > before);
    drop(pool);
    client.shutdown().await;
    let ended = Instant::now();
    let limit = LIMIT * u32::try_from(soak()).expect("a small number");
    palisade_testkit::eventually("nothing is left", limit, || {
        match server.count("zk_znode_count") - before {
            0 => Ok(()),
            left => Err(format!("{left} nodes")),
        }
    });
    println!("nothing is left after {:?}", ended.elapsed());
}

/// A free lock costs one write to the socket for each verb: what is asked at once leaves at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_at_once_leaves_in_one_piece() {
    let server = ZooKeeper::with().long_sessions().start();
    let (between, locks) = counted(&server);
    release(acquire(&locks, "piece").await).await;
    let pieces: Arc<Mutex<(usize, usize)>> = Arc::default();
    let counts = Arc::clone(&pieces);
    between.lose_reply_to(move |bytes| {
        let mut counts = counts.lock().expect("no panic");
        let (creates, lists) = (has(bytes, op::CREATE), has(bytes, op::GET_CHILDREN));
        *counts = (
            counts.0 + usize::from(creates),
            counts.1 + usize::from(creates && lists),
        );
        false
    });
    for _ in 0..50 {
        release(acquire(&locks, "piece").await).await;
    }
    let (creates, whole) = *pieces.lock().expect("no panic");
    // A proxy reads what has come: two pieces that come together would look like one, and not the
    // other way round.
    assert_eq!((creates, whole), (50, 50));
}

/// The names are read once, however many pages the list has: the node of 100,000 names is megabytes
/// long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_many_pages_reads_the_names_once() {
    const NAMES: u64 = 1200;
    let server = ZooKeeper::with().long_sessions().start();
    let (proxy, client) = counted(&server);
    let _held = acquire(&client, "held").await;
    let mut session = Raw::open(server.address(), Duration::from_secs(10)).expect("a session");
    for number in 1..NAMES {
        session
            .create(&format!("/lock/name-{number}"), b"", Make::Persistent)
            .expect("made");
    }
    for _ in 0..2 {
        let tally = Tally::of(&proxy);
        let listed = client.list("").await.expect("a list");
        assert_eq!((listed.len(), listed[0].name.as_str()), (1, "held"));
        assert_eq!(
            tally.requests([op::GET_CHILDREN]),
            [NAMES + 1],
            "one for each name, and one for all"
        );
    }
    // A page that comes late begins anew where the page before it has ended.
    let first = client.list_page("", None).await.expect("a page");
    assert!(first.next.is_some() && first.lines.len() == 1);
    client
        .list_page("name", None)
        .await
        .expect("a page of another list");
    let rest = client.list_page("", first.next).await.expect("a page");
    assert!(rest.lines.is_empty() && rest.next.is_some());
}
