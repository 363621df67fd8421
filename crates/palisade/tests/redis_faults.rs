//! One Redis server under faults, with a lock that is held and waited for meanwhile.
//!
//! Leases are so long that no waiter is granted by the end of one: it was told, or asked.

#![cfg(feature = "redis")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::ms;
use common::redis::{
    Believer, Confirmed, LONG, connect, fields, gets_in, give_back, in_line, is_renewed, is_told,
    key, rise, soon, wait_for,
};
use palisade::store::Revoked;
use palisade::{Client, ErrorKind, Guard, LossReason, Mutex, Released, Status};
use palisade_conformance::eventually;
use palisade_testkit::proxy::{Protocol, Proxy, Way};
use palisade_testkit::redis::Redis;

/// A server, a client that holds, one that waits, and one that observes.
struct Scene {
    redis: Redis,
    holder: Client,
    waiter: Client,
    outside: Client,
}

impl Scene {
    fn on(redis: Redis) -> Scene {
        let url = redis.url();
        Scene {
            holder: connect(&url),
            waiter: connect(&url),
            outside: connect(&url),
            redis,
        }
    }

    fn start() -> Scene {
        Scene::on(Redis::start())
    }

    fn long(client: &Client, name: &str) -> Mutex {
        client.mutex(name).lease(LONG).store_wait(LONG)
    }

    /// A holder of the lock, and a waiter for it.
    async fn begin(&self, name: &str) -> (Guard, tokio::task::JoinHandle<palisade::Result<Guard>>) {
        let held = Scene::long(&self.holder, name)
            .acquire()
            .await
            .expect("a grant");
        let waiting = wait_for(&Scene::long(&self.waiter, name));
        in_line(&self.outside, name, 1).await;
        (held, waiting)
    }
}

/// A server behind a proxy for the holder and the waiter; the observer connects directly.
fn behind_proxy(words: &str) -> (Proxy, Scene) {
    let redis = Redis::start();
    // Starting it blocks, which a task must not.
    let address = redis.address();
    let starts = std::thread::spawn(move || Proxy::speaking(Protocol::Redis, address));
    let proxy = starts.join().expect("a proxy");
    let url = format!("redis://{}{words}", proxy.address());
    let scene = Scene {
        holder: connect(&url),
        waiter: connect(&url),
        outside: connect(redis.url()),
        redis,
    };
    (proxy, scene)
}

/// Whether a request is a claim that may queue: only such a claim has this word.
fn is_claim(request: &[u8]) -> bool {
    request
        .windows(3)
        .any(|part| part == b"fmx" || part == b"qmx")
}

/// How often the server has written a state or a place in line.
fn writes(redis: &Redis) -> u64 {
    let stats = redis.call(&["INFO", "commandstats"]).text();
    let of_hset = stats.lines().find_map(|line| {
        line.strip_prefix("cmdstat_hset:calls=")?
            .split(',')
            .next()?
            .parse()
            .ok()
    });
    of_hset.unwrap_or_default()
}

// Connections that end.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_are_restored_long_before_the_lease_ends() {
    let scene = Scene::start();
    for (round, kinds) in [&["normal", "pubsub"][..], &["pubsub"], &["normal"]]
        .into_iter()
        .enumerate()
    {
        let name = format!("killed-{round}");
        let (held, waiting) = scene.begin(&name).await;
        for _ in 0..3 {
            for kind in kinds {
                scene.redis.call(&["CLIENT", "KILL", "TYPE", kind]);
            }
            tokio::time::sleep(ms(20)).await;
        }
        assert!(held.is_held(), "a connection is not a lock");
        let first = held.fence();
        give_back(held).await;
        let next = gets_in(waiting).await;
        rise(&[first, next.fence()]);
        assert_eq!(next.status(), Status::Held);
        give_back(next).await;
    }
}

/// The inbox alone is killed, and the lock released before it can be back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_into_a_killed_inbox_is_not_missed() {
    let scene = Scene::start();
    let (held, waiting) = scene.begin("inbox").await;
    let inboxes = scene
        .redis
        .call(&["CLIENT", "LIST", "TYPE", "pubsub"])
        .text();
    let id = |line: &str| Some(line.strip_prefix("id=")?.split(' ').next()?.to_owned());
    let ids: Vec<String> = inboxes.lines().filter_map(id).collect();
    assert!(!ids.is_empty(), "the waiter has an inbox");
    for id in &ids {
        scene.redis.call(&["CLIENT", "KILL", "ID", id]);
    }
    let fence = held.fence();
    give_back(held).await;
    let next = gets_in(waiting).await;
    rise(&[fence, next.fence()]);
}

/// Each of many connections that end at once is replaced, and none is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_do_not_pile_up() {
    let scene = Scene::start();
    let (held, waiting) = scene.begin("piles").await;
    let count = || scene.redis.call(&["CLIENT", "LIST"]).text().lines().count();
    for _ in 0..20 {
        scene.redis.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        scene.redis.call(&["CLIENT", "KILL", "TYPE", "normal"]);
        tokio::time::sleep(ms(5)).await;
    }
    give_back(held).await;
    drop(gets_in(waiting).await);
    // Of three clients: for requests and for renewals; and the one of this test.
    eventually("few connections", async || count() <= 3 * 3 + 1).await;
}

/// While a server is away, the client tries to reconnect with pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_is_not_flooded() {
    let scene = Scene::start();
    let (held, waiting) = scene.begin("away").await;
    // One for each client.
    let inboxes = || {
        scene
            .redis
            .call(&["PUBSUB", "CHANNELS", "palisade:1:inbox:*"])
            .list()
            .len()
    };
    eventually("inboxes for renewals", async || inboxes() >= 2).await;
    scene.redis.kill();
    let listener = tokio::net::TcpListener::bind(scene.redis.address())
        .await
        .expect("the port is free");
    let mut attempts = 0;
    let counting = async {
        loop {
            drop(listener.accept().await);
            attempts += 1;
        }
    };
    let _ = tokio::time::timeout(ms(2000), counting).await;
    println!("{attempts} attempts in 2 s");
    assert!((1..150).contains(&attempts), "{attempts} attempts in 2 s");
    drop((held, waiting));
}

// Messages that are lost.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_push_is_healed_by_the_renewal() {
    let (proxy, scene) = behind_proxy("");
    let (held, waiting) = scene.begin("push").await;
    proxy.lose_pushes();
    let fence = held.fence();
    give_back(held).await;
    let next = gets_in(waiting).await;
    rise(&[fence, next.fence()]);
    assert!(proxy.lost() >= 1, "the push was lost");
    assert_eq!(next.status(), Status::Held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_reply_is_lost_finds_its_one_grant() {
    let (proxy, scene) = behind_proxy("");
    // One cycle, so that the client is connected.
    give_back(
        Scene::long(&scene.holder, "warm")
            .acquire()
            .await
            .expect("a grant"),
    )
    .await;
    proxy.lose_reply_to(is_claim);
    let held = soon("a grant", Scene::long(&scene.holder, "reply").acquire())
        .await
        .expect("a grant");
    assert_eq!(proxy.lost(), 1);
    let line = scene
        .outside
        .show("reply")
        .await
        .expect("an answer")
        .expect("held");
    assert_eq!((line.holders.len(), line.waiters.len()), (1, 0));
    assert_eq!(line.holders[0].fence, held.fence());
    // The same for claims that must wait: of a client that is not connected yet, and of one that is.
    let mut held = held;
    for lost in [2, 3] {
        let before = writes(&scene.redis);
        proxy.lose_reply_to(is_claim);
        let waiting = wait_for(&Scene::long(&scene.waiter, "reply"));
        eventually("the reply is lost", async || proxy.lost() == lost).await;
        eventually("it is sent again", async || {
            writes(&scene.redis) >= before + 2
        })
        .await;
        let line = scene
            .outside
            .show("reply")
            .await
            .expect("an answer")
            .expect("held");
        assert_eq!(line.waiters.len(), 1, "one place in line, not two");
        let fence = held.fence();
        give_back(held).await;
        let next = gets_in(waiting).await;
        rise(&[fence, next.fence()]);
        give_back(next).await;
        assert_eq!(
            fields(&scene.redis, "reply"),
            1,
            "nothing is left but the last fence"
        );
        held = soon("a grant", Scene::long(&scene.holder, "reply").acquire())
            .await
            .expect("a grant");
    }
}

/// The release was done, but the second attempt cannot tell: `AlreadyLost` would be wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_is_lost_is_done_once() {
    let (proxy, scene) = behind_proxy("");
    let (held, waiting) = scene.begin("release").await;
    proxy.lose_reply();
    let released = soon("released", held.release()).await.expect("an answer");
    assert!(
        matches!(released, Released::Done | Released::Unknown),
        "{released:?}"
    );
    let next = gets_in(waiting).await;
    // The second release, if there was one, has not ended the next grant.
    scene.holder.shutdown().await;
    assert!(next.is_held());
    let line = scene
        .outside
        .show("release")
        .await
        .expect("an answer")
        .expect("held");
    assert_eq!(line.holders[0].fence, next.fence());
    give_back(next).await;
}

/// Half-open connections. A renewal detects its own connection, and a missing push the inbox's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_are_detected() {
    let (proxy, scene) = behind_proxy("?request_timeout=1s");
    let held = scene
        .holder
        .mutex("frozen")
        .lease(ms(9000))
        .acquire()
        .await
        .expect("a grant");
    let waiting = wait_for(&Scene::long(&scene.waiter, "frozen"));
    in_line(&scene.outside, "frozen", 1).await;
    // So that renewals have their connections.
    is_renewed(&held).await;
    proxy.freeze();
    let fence = held.fence();
    // By a client whose connection works.
    assert_eq!(
        scene
            .outside
            .revoke("frozen", fence)
            .await
            .expect("an answer"),
        Revoked::Done
    );
    let next = gets_in(waiting).await;
    rise(&[fence, next.fence()]);
    // By the store, or by its own clock.
    is_told(&held).await;
    // The inbox was moved too, though no request used its connection: the next push arrives.
    let third = wait_for(&Scene::long(&scene.waiter, "frozen"));
    in_line(&scene.outside, "frozen", 1).await;
    let begun = Instant::now();
    give_back(next).await;
    rise(&[fence, gets_in(third).await.fence()]);
    println!("by push after {:?}", begun.elapsed());
}

/// A firewall drops the open connections silently. The default request time-out is longer than this
/// lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_lease_survives_half_open_connections() {
    let (proxy, scene) = behind_proxy("");
    for lease in [ms(6000), ms(3000), ms(1500)] {
        let held = scene
            .holder
            .mutex("half-open")
            .lease(lease)
            .acquire()
            .await
            .expect("a grant");
        for dead in [false, true, true] {
            if dead {
                // So that the renewals have a connection that dies.
                proxy.freeze();
            }
            let confirmed = Confirmed::of(&held);
            tokio::select! {
                reason = held.lost() => panic!("a lease of {lease:?} is lost: {reason:?}"),
                () = confirmed.again(&held) => {}
            }
        }
        // The connection for requests died with that for renewals, and no request was in flight
        // there.
        let begun = Instant::now();
        give_back(held).await;
        assert!(
            begun.elapsed() < ms(4000),
            "a release took {:?}, of a lease of {lease:?}",
            begun.elapsed()
        );
    }
}

/// Everything sent to the clients is dropped for a while, then the network works again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_drops_everything_is_survived() {
    let (proxy, scene) = behind_proxy("?request_timeout=1s&connect_timeout=500ms");
    let (held, waiting) = scene.begin("swallowed").await;
    proxy.swallow(Way::ToClient);
    tokio::time::sleep(ms(2500)).await;
    proxy.reset();
    proxy.heal();
    assert!(held.is_held());
    let fence = held.fence();
    give_back(held).await;
    rise(&[fence, gets_in(waiting).await.fence()]);
}

// Servers that stop.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_its_data_keeps_the_line() {
    let scene = Scene::on(Redis::with().durable().start());
    let (held, waiting) = scene.begin("kept").await;
    let confirmed = Confirmed::of(&held);
    scene.redis.restart();
    confirmed.again(&held).await;
    assert!(held.is_held() && !waiting.is_finished());
    in_line(&scene.outside, "kept", 1).await;
    let fence = held.fence();
    give_back(held).await;
    rise(&[fence, gets_in(waiting).await.fence()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_its_data_tells_the_holder_at_once() {
    let scene = Scene::start();
    let (held, waiting) = scene.begin("emptied").await;
    let begun = Instant::now();
    scene.redis.restart();
    // Long before its next renewal is due.
    is_told(&held).await;
    let next = gets_in(waiting).await;
    rise(&[held.fence(), next.fence()]);
    assert!(begun.elapsed() < LONG / 3);
    assert!(next.is_held());
    // The old grant cannot end the new one.
    assert!(matches!(held.release().await, Ok(Released::AlreadyLost)));
    assert!(
        scene
            .outside
            .show("emptied")
            .await
            .expect("an answer")
            .is_some_and(|line| line.holders[0].fence == next.fence())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_or_a_deleted_key_is_noticed_by_the_next_renewal() {
    let scene = Scene::start();
    let drop_key = key("flushed");
    for fault in [
        &["FLUSHALL"][..],
        &["DEL", &drop_key],
        &["UNLINK", &drop_key],
    ] {
        let held = scene
            .holder
            .mutex("flushed")
            .lease(ms(3000))
            .acquire()
            .await
            .expect("a grant");
        let waiting = wait_for(&Scene::long(&scene.waiter, "flushed"));
        in_line(&scene.outside, "flushed", 1).await;
        scene.redis.call(fault);
        is_told(&held).await;
        let next = gets_in(waiting).await;
        rise(&[held.fence(), next.fence()]);
        give_back(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_are_sent_again() {
    let scene = Scene::start();
    let (held, waiting) = scene.begin("scripts").await;
    let short = scene
        .holder
        .mutex("short")
        .lease(ms(1500))
        .acquire()
        .await
        .expect("a grant");
    scene.redis.call(&["SCRIPT", "FLUSH"]);
    // The first attempt after the flush succeeds.
    let first = scene
        .holder
        .mutex("first")
        .try_acquire()
        .await
        .expect("an answer")
        .expect("free");
    give_back(first).await;
    is_renewed(&short).await;
    scene.redis.call(&["SCRIPT", "FLUSH"]);
    let fence = held.fence();
    give_back(held).await;
    let next = gets_in(waiting).await;
    rise(&[fence, next.fence()]);
    scene.redis.call(&["SCRIPT", "FLUSH"]);
    is_renewed(&short).await;
    give_back(next).await;
    assert!(short.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_shorter_than_the_lease_is_survived() {
    let scene = Scene::start();
    let held = scene
        .holder
        .mutex("short-pause")
        .lease(ms(6000))
        .acquire()
        .await
        .expect("a grant");
    let waiting = wait_for(&Scene::long(&scene.waiter, "short-pause"));
    in_line(&scene.outside, "short-pause", 1).await;
    scene.redis.pause();
    tokio::time::sleep(ms(1500)).await;
    assert!(held.is_held());
    scene.redis.resume();
    is_renewed(&held).await;
    assert!(!waiting.is_finished());
    let fence = held.fence();
    give_back(held).await;
    rise(&[fence, gets_in(waiting).await.fence()]);
}

/// The holder is told by its own clock while no server answers, and no other client holds before
/// that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_longer_than_the_lease_never_makes_two_holders() {
    let scene = Scene::start();
    let held = Arc::new(
        scene
            .holder
            .mutex("long-pause")
            .lease(ms(900))
            .acquire()
            .await
            .expect("a grant"),
    );
    let waiting = {
        let mutex = scene
            .waiter
            .mutex("long-pause")
            .lease(LONG)
            .store_wait(LONG);
        tokio::spawn(async move { mutex.acquire().await.map(|guard| (guard, Instant::now())) })
    };
    in_line(&scene.outside, "long-pause", 1).await;
    let believer = Believer::watch(Arc::clone(&held));
    scene.redis.pause();
    // Twice the lease. No server answers: only its own clock can tell the holder.
    tokio::time::sleep(ms(1800)).await;
    assert_eq!(held.status(), Status::Lost(LossReason::Expired));
    let resumed = Instant::now();
    scene.redis.resume();
    let (next, began) = soon("the waiter gets in", waiting)
        .await
        .expect("no panic")
        .expect("a grant");
    let last = believer.last_belief().expect("it was held at first");
    assert!(last < resumed && last <= began, "two believed");
    rise(&[held.fence(), next.fence()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_fails_closed() {
    let scene = Scene::start();
    let held = scene
        .holder
        .mutex("gone")
        .lease(ms(1500))
        .acquire()
        .await
        .expect("a grant");
    scene.redis.kill();
    assert_eq!(is_told(&held).await, LossReason::Expired);
    let begun = Instant::now();
    let refused = scene
        .waiter
        .mutex("gone")
        .store_wait(ms(500))
        .acquire()
        .await
        .expect_err("no server");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    let tried = scene
        .waiter
        .mutex("gone")
        .try_acquire()
        .await
        .expect_err("no server");
    assert_eq!(tried.kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() < ms(8000), "{:?}", begun.elapsed());
    // The server comes back, and the client reconnects.
    scene.redis.start_again();
    let next = soon("a grant", Scene::long(&scene.waiter, "gone").acquire())
        .await
        .expect("a grant");
    rise(&[held.fence(), next.fence()]);
}

/// A claim that was never sent needs no withdrawal, which would be retried until the lease has
/// ended: no caller that leaves waits for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_never_reached_a_server_is_not_withdrawn() {
    let scene = Scene::start();
    scene.redis.kill();
    let mutex = Scene::long(&scene.waiter, "unsent");
    let refused = mutex
        .clone()
        .store_wait(ms(200))
        .acquire()
        .await
        .expect_err("no server");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(
        mutex.try_acquire().await.expect_err("no server").kind(),
        ErrorKind::Unavailable
    );
    let waited = mutex.acquire_timeout(ms(200)).await.expect_err("no server");
    assert_eq!(waited.kind(), ErrorKind::Unavailable);
    soon("nothing is left to do", scene.waiter.shutdown()).await;
    assert_eq!(scene.waiter.stats().unsent_releases, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sleeps_or_loads_delays_no_caller_longer() {
    let setup = Redis::with()
        .set("enable-debug-command", "yes")
        .set("loading-process-events-interval-bytes", "1024");
    let scene = Scene::on(setup.start());
    // Enough keys that it loads for about two seconds.
    scene
        .redis
        .call(&["DEBUG", "POPULATE", "2000", "filler", "100"]);
    scene
        .redis
        .call(&["CONFIG", "SET", "key-load-delay", "1000"]);
    for (name, fault) in [
        ("sleeps", &["DEBUG", "SLEEP", "1.5"][..]),
        ("loads", &["DEBUG", "RELOAD"]),
    ] {
        let (held, waiting) = scene.begin(name).await;
        let address = scene.redis.address();
        let words: Vec<String> = fault.iter().map(|&word| word.to_owned()).collect();
        let fault = std::thread::spawn(move || {
            let mut connection =
                palisade_testkit::resp::Connection::open(address, Duration::from_secs(60))
                    .expect("a connection");
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            connection.call(&words)
        });
        let mut loading = false;
        while !fault.is_finished() {
            // A time-out of its own: a server that sleeps answers nothing.
            let asked =
                tokio::time::timeout(ms(300), scene.outside.mutex("other").try_acquire()).await;
            if let Ok(Err(error)) = asked {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                loading |= error.to_string().contains("loading");
            }
        }
        assert_eq!(
            fault.join().expect("no panic").expect("an answer").text(),
            "OK"
        );
        assert_eq!(loading, name == "loads");
        assert!(held.is_held() && !waiting.is_finished());
        let fence = held.fence();
        give_back(held).await;
        rise(&[fence, gets_in(waiting).await.fence()]);
    }
}

// Rights.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_password_is_reported_and_not_shown() {
    let redis = Redis::with()
        .acl("locker on >s3cr3t-one ~* &* +@all")
        .start();
    let url = format!("redis://locker:s3cr3t-one@{}", redis.address());
    let (holder, waiter) = (connect(&url), connect(&url));
    let held = holder
        .mutex("rotated")
        .lease(ms(2000))
        .acquire()
        .await
        .expect("a grant");
    let waiting = wait_for(&waiter.mutex("rotated"));
    in_line(&connect(redis.url()), "rotated", 1).await;
    redis.call(&["ACL", "SETUSER", "locker", "resetpass", ">s3cr3t-two"]);
    redis.call(&["CLIENT", "KILL", "USER", "locker"]);
    let refused = soon("the waiter is refused", waiting)
        .await
        .expect("no panic")
        .expect_err("not let in");
    let direct = holder
        .mutex("other")
        .acquire()
        .await
        .expect_err("not let in");
    for error in [refused, direct] {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(
            !format!("{error} {error:?}").contains("s3cr3t"),
            "{error:?}"
        );
        assert!(error.to_string().contains("password"), "{error}");
    }
    assert_eq!(is_told(&held).await, LossReason::Expired);
    // The password is back: everything works.
    redis.call(&["ACL", "SETUSER", "locker", "resetpass", ">s3cr3t-one"]);
    let next = soon("a grant", waiter.mutex("rotated").acquire())
        .await
        .expect("a grant");
    rise(&[held.fence(), next.fence()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_missing_is_named() {
    let redis = Redis::with()
        .acl("locker on >lockpw ~palisade:* &palisade:* +@all -eval -evalsha")
        .start();
    let client = connect(format!("redis://locker:lockpw@{}", redis.address()));
    let error = client.mutex("right").acquire().await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains("eval") && !format!("{error:?}").contains("lockpw"),
        "{error:?}"
    );
    // Taken away while it is held and waited for.
    redis.call(&["ACL", "SETUSER", "locker", "+@all"]);
    let held = client
        .mutex("right")
        .lease(ms(2000))
        .acquire()
        .await
        .expect("a grant");
    let waiting = wait_for(&client.mutex("right"));
    in_line(&connect(redis.url()), "right", 1).await;
    redis.call(&["ACL", "SETUSER", "locker", "-evalsha", "-eval"]);
    let refused = soon("the waiter is refused", waiting)
        .await
        .expect("no panic")
        .expect_err("not let in");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert_eq!(is_told(&held).await, LossReason::Expired);
}
