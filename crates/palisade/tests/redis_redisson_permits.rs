//! Semaphores and latches in Redisson's layout. The peer here is the bytes that Redisson writes; its
//! own jar is in `interop`.

#![cfg(feature = "redis")]

mod common;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::ms;
use common::redis::{connect, listener, soon};
use palisade::store::{Kind, Mode};
use palisade::{ErrorKind, Guard, GuardMode, Released};
use palisade_conformance::eventually;
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

/// A permit of a peer: 16 bytes, which Redisson shows in hexadecimal.
const PERMIT: &str = "0123456789abcdef";
const PERMIT_SHOWN: &str = "30313233343536373839616263646566";

fn url(redis: &Redis, words: &str) -> String {
    format!("{}?format=redisson{words}", redis.url())
}

fn text(redis: &Redis, words: &[&str]) -> String {
    redis.call(words).text()
}

fn in_millis(span: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("later");
    (i64::try_from(now.as_millis()).expect("in range") + span).to_string()
}

async fn end<M: GuardMode>(guard: Guard<M>) {
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

async fn is_listening(redis: &Redis, channel: &str) {
    eventually("a waiter listens", async || {
        redis.call(&["PUBSUB", "NUMSUB", channel]).list()[1].text() != "0"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_is_the_number_of_its_free_permits() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    let seats = locks.semaphore("seats", 5);
    let two = seats.acquire_many(2).await.expect("two permits");
    assert_eq!(text(&redis, &["GET", "seats"]), "3");
    assert_eq!(redis.call(&["PTTL", "seats"]).int(), Some(-1));
    let line = locks.show("seats").await.expect("an answer").expect("held");
    assert_eq!(line.kind, Kind::Semaphore { limit: 5 });
    assert_eq!(line.holders[0].mode, Mode::Permits(2));
    assert_eq!(line.holders[0].fence.get(), two.fence().get());
    end(two).await;
    assert_eq!(text(&redis, &["GET", "seats"]), "5");
    assert!(locks.show("seats").await.expect("an answer").is_none());
    // The number stays for the peers, and with it how many there are. What else is ours ends by
    // itself.
    for key in redis.call(&["KEYS", "*"]).list() {
        let left = redis.call(&["PTTL", &key.text()]).int();
        let stays = ["seats", "palisade:1:redisson-total:{seats}"];
        assert!(
            stays.contains(&&*key.text()) || left > Some(0),
            "{}: {left:?}",
            key.text()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_peer_took_is_taken_and_what_it_gives_back_wakes_us() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    // A peer has made it, and holds both permits.
    redis.call(&["SET", "seats", "0"]);
    let seats = locks.semaphore("seats", 2);
    assert!(seats.try_acquire().await.expect("an answer").is_none());
    let waiting = tokio::spawn(async move { seats.acquire().await });
    is_listening(&redis, "redisson_sc:{seats}").await;
    // Past the attempt that follows a subscription.
    tokio::time::sleep(ms(50)).await;
    redis.call(&["INCRBY", "seats", "1"]);
    let freed = Instant::now();
    redis.call(&["PUBLISH", "redisson_sc:{seats}", "1"]);
    let guard = soon("woken", waiting).await.expect("no panic");
    println!("woken after {:?}", freed.elapsed());
    assert_eq!(text(&redis, &["GET", "seats"]), "0");
    end(guard.expect("a permit")).await;
    assert_eq!(text(&redis, &["GET", "seats"]), "1");
}

/// Redisson would never have them back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_dead_client_of_ours_come_back() {
    for words in ["", "&expirable=yes"] {
        let redis = Redis::start();
        let (dies, next) = (connect(url(&redis, words)), connect(url(&redis, words)));
        let seats = dies.semaphore("seats", 3).lease(ms(1500)).detachable();
        let guard = seats.acquire_many(3).await.expect("all permits");
        let lost = guard.detach().await.map_err(|refused| refused.error);
        lost.expect("no client renews it from now on");
        let begun = Instant::now();
        let wanted = next.semaphore("seats", 3);
        let guard = soon("free again", wanted.acquire_many(3)).await;
        let took = begun.elapsed();
        assert!(took > ms(500) && took < ms(4000), "{took:?} with {words:?}");
        end(guard.expect("all permits")).await;
        assert_eq!(text(&redis, &["GET", "seats"]), "3");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expirable_permits_are_those_of_redisson() {
    let redis = Redis::start();
    let locks = connect(url(&redis, "&expirable=yes"));
    let seats = locks.semaphore("seats", 4);
    let two = seats.acquire_many(2).await.expect("two permits");
    let times = "{seats}:timeout";
    let held = redis.call(&["ZRANGE", times, "0", "-1", "WITHSCORES"]);
    assert_eq!(held.list().len(), 4, "two permits, each with its time");
    assert_eq!(text(&redis, &["GET", "seats"]), "2");

    // A permit of a peer is known by its id, and comes back at its time.
    redis.call(&["DECRBY", "seats", "1"]);
    redis.call(&["ZADD", times, &in_millis(1200), PERMIT]);
    let line = locks.show("seats").await.expect("an answer").expect("held");
    let owners: Vec<_> = line.holders.iter().map(|holder| &*holder.owner).collect();
    assert_eq!(owners.len(), 2, "{owners:?}");
    assert!(owners.contains(&PERMIT_SHOWN), "{owners:?}");
    let wanted = seats.clone();
    let last = soon("its time is over", wanted.acquire_many(2)).await;
    end(last.expect("two permits")).await;

    // A peer may end a permit by its id, as any of its own.
    let id = text(&redis, &["ZRANGE", times, "0", "0"]);
    assert!(!id.is_empty());
    redis.call(&["DEL", times]);
    redis.call(&["SET", "seats", "4"]);
    assert_eq!(
        two.release().await.expect("an answer"),
        Released::AlreadyLost
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_are_never_mixed_on_one_name() {
    let redis = Redis::start();
    let (plain, expirable) = (
        connect(url(&redis, "")),
        connect(url(&redis, "&expirable=yes")),
    );
    let mutex = plain.mutex("a").acquire().await.expect("a grant");
    let refused = plain.semaphore("a", 2).try_acquire().await;
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Config);
    end(mutex).await;

    let permit = plain.semaphore("b", 2).acquire().await.expect("a permit");
    let refused = expirable.semaphore("b", 2).try_acquire().await;
    let refused = refused.map(drop).expect_err("refused");
    assert!(refused.to_string().contains("expirable=yes"), "{refused}");
    let fair = connect(url(&redis, "&fair=yes"));
    for refused in [
        plain.mutex("b").try_acquire().await.map(drop),
        plain.rwlock("b").try_write().await.map(drop),
        fair.mutex("b").try_acquire().await.map(drop),
    ] {
        let refused = refused.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains("semaphore"), "{refused}");
    }
    let refused = plain.semaphore("b", 3).try_acquire().await;
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Config);
    end(permit).await;
    // Whether a peer has some of them is not known, so the number stays until the key is deleted.
    let refused = plain.semaphore("b", 3).try_acquire().await;
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Config);
    redis.call(&["DEL", "b"]);
    let three = plain.semaphore("b", 3).acquire_many(3).await;
    end(three.expect("three permits")).await;

    redis.call(&["SET", "c", "a token"]);
    let refused = plain.semaphore("c", 2).try_acquire().await;
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Protocol);
    assert_eq!(
        plain.show("c").await.expect_err("refused").kind(),
        ErrorKind::Protocol
    );
    assert_eq!(text(&redis, &["GET", "c"]), "a token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_that_is_deleted_is_told() {
    for words in ["", "&expirable=yes"] {
        let redis = Redis::start();
        let locks = connect(url(&redis, words));
        let seats = locks.semaphore("seats", 2).lease(ms(1500));
        let guard = seats.acquire().await.expect("a permit");
        redis.call(&["DEL", "seats", "{seats}:timeout"]);
        soon("told", guard.lost()).await;
        let again = seats.acquire_many(2).await.expect("it is made again");
        assert_eq!(text(&redis, &["GET", "seats"]), "0");
        end(again).await;
    }
}

/// The number of a semaphore that a peer has made is the peer's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_a_peer_is_never_set() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    redis.call(&["SET", "seats", "10"]);
    for limit in [5, 7] {
        end(locks
            .semaphore("seats", limit)
            .acquire()
            .await
            .expect("one"))
        .await;
    }
    // The peer takes five: what is left looks like a limit of ours.
    redis.call(&["DECRBY", "seats", "5"]);
    end(locks.semaphore("seats", 10).acquire().await.expect("one")).await;
    assert_eq!(text(&redis, &["GET", "seats"]), "5");
}

/// Redisson's waiters ask again for no other reason than a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_is_told_of_all_permits_that_come() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    let said = || text(&redis, &["GET", "seats"]);
    let mut heard = listener(&redis, "SUBSCRIBE", "redisson_sc:{seats}").await;
    let one = locks.semaphore("seats", 3).acquire().await.expect("one");
    assert_eq!(
        soon("a message", heard.recv()).await.expect("heard"),
        "2",
        "the semaphore was made"
    );
    end(one).await;
    assert_eq!(soon("a message", heard.recv()).await.expect("heard"), "3");

    // A holder that was paused past its lease, and releases then.
    let seats = locks.semaphore("seats", 3).lease(ms(1000)).detachable();
    let late = seats.acquire_many(3).await.expect("all");
    let late = late.detach().await.map_err(|refused| refused.error);
    let late = late.expect("detached");
    eventually("its lease is over", async || {
        locks.show("seats").await.expect("an answer").is_none()
    })
    .await;
    assert_eq!(said(), "0");
    let gone = locks.adopt::<palisade::Permits>(&late).await;
    let gone = gone.map(drop).expect_err("its lease is over");
    assert!(matches!(gone.kind(), ErrorKind::Lost(_)), "{gone}");
    assert_eq!(
        soon("a message", heard.recv()).await.expect("heard"),
        "3",
        "its permits came back"
    );
    assert_eq!(said(), "3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_revoked_by_their_fence() {
    for words in ["", "&expirable=yes"] {
        let redis = Redis::start();
        let locks = connect(url(&redis, words));
        let seats = locks.semaphore("seats", 3).lease(ms(1500));
        let (one, two) = (
            seats.acquire().await.expect("a permit"),
            seats.acquire_many(2).await.expect("two permits"),
        );
        locks
            .revoke(
                "seats",
                palisade::Fence::new(two.fence().get()).expect("a fence"),
            )
            .await
            .expect("an answer");
        assert_eq!(text(&redis, &["GET", "seats"]), "2");
        soon("told", two.lost()).await;
        assert!(one.is_held());
        end(one).await;
        assert_eq!(text(&redis, &["GET", "seats"]), "3");
    }
}

/// A latch in both formats: by the message alone, the re-check after a second would be noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_opens_for_all_at_once() {
    for format in ["?format=redisson", ""] {
        let redis = Redis::start();
        let at = format!("{}{format}", redis.url());
        let (one, other) = (connect(at.clone()), connect(at));
        let latch = one.latch("ready", 2);
        assert!(latch.wait_timeout(Duration::ZERO).await.expect("an answer"));
        assert!(latch.set().await.expect("an answer"));
        assert!(!other.latch("ready", 5).set().await.expect("an answer"));
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let waiting: Vec<_> = [&one, &other, &other]
                .map(|client| client.latch("ready", 2))
                .into_iter()
                .map(|latch| tokio::spawn(async move { latch.wait().await }))
                .collect();
            assert_eq!(latch.count().await.expect("an answer"), 2);
            assert_eq!(latch.count_down().await.expect("an answer"), 1);
            assert!(!latch.wait_timeout(ms(150)).await.expect("an answer"));
            assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
            let opened = Instant::now();
            assert_eq!(
                other
                    .latch("ready", 2)
                    .count_down()
                    .await
                    .expect("an answer"),
                0
            );
            for waiter in waiting {
                soon("open", waiter).await.expect("no panic").expect("open");
            }
            fastest = fastest.min(opened.elapsed());
            assert_eq!(latch.count_down().await.expect("an answer"), 0);
            assert!(latch.set().await.expect("an answer"), "it can be set again");
        }
        assert!(fastest < ms(100), "{fastest:?} with {format:?}");
        latch.count_down().await.expect("an answer");
        latch.count_down().await.expect("an answer");
        for key in redis.call(&["KEYS", "*"]).list() {
            let left = redis.call(&["PTTL", &key.text()]).int();
            assert!(left > Some(0), "{} stays: {left:?}", key.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_of_a_peer_opens_by_its_message_or_without() {
    let redis = Redis::start();
    let locks = connect(url(&redis, ""));
    for says_so in [true, false] {
        redis.call(&["SET", "ready", "1"]);
        let latch = locks.latch("ready", 1);
        let waiting = tokio::spawn(async move { latch.wait().await });
        let channel = "redisson_countdownlatch__channel__{ready}";
        is_listening(&redis, channel).await;
        redis.call(&["DEL", "ready"]);
        if says_so {
            redis.call(&["PUBLISH", channel, "0"]);
        }
        soon("open", waiting)
            .await
            .expect("no panic")
            .expect("open");
    }
}

#[tokio::test]
async fn latches_are_refused_where_they_cannot_be() {
    let memory = connect(format!("memory:{}", shared::name("latch")));
    let refused = memory.latch("ready", 1).set().await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let locks = connect(shared::redis().url());
    let refused = locks.latch("ready", 0).set().await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    let cluster = shared::redis_cluster();
    let locks = connect(format!("{}?format=redisson", cluster.url()));
    let refused = locks.latch("{a}b", 1).set().await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    let name = shared::name("latch");
    let latch = locks.latch(&name, 1);
    assert!(latch.set().await.expect("an answer"));
    let waiter = latch.clone();
    let waiting = tokio::spawn(async move { waiter.wait().await });
    assert_eq!(latch.count_down().await.expect("an answer"), 0);
    soon("open", waiting)
        .await
        .expect("no panic")
        .expect("open");
}
