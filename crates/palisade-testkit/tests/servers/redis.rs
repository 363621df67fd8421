use std::time::Duration;

use palisade_testkit::redis::{LOCKER, Redis};
use palisade_testkit::resp::Connection;

use crate::{PATIENCE, Trace, wait_for};

#[test]
fn a_redis_starts_answers_and_goes() {
    let redis = Redis::start();
    let trace = Trace::of(&redis);
    assert_eq!(redis.call(&["SET", "name", "value"]).text(), "OK");
    assert_eq!(redis.call(&["GET", "name"]).text(), "value");
    assert!(
        redis
            .call(&["INFO", "server"])
            .text()
            .contains(&format!("process_id:{}", redis.pid())),
        "another process's"
    );
    assert_eq!(redis.url(), format!("redis://{}", redis.address()));
    drop(redis);
    trace.assert_gone();
}

#[test]
fn a_paused_redis_is_silent_and_then_goes_on() {
    let redis = Redis::start();
    let mut connection = Connection::open(redis.address(), PATIENCE).expect("a connection");
    redis.pause();
    connection.send(&["PING"]).expect("the kernel takes it");
    connection
        .set_limit(Duration::from_millis(300))
        .expect("an open socket");
    assert!(connection.read().is_err(), "a paused server answered");
    redis.resume();
    wait_for("the answer", || connection.read().is_ok());
}

#[test]
fn a_restart_keeps_port_and_durable_data_and_an_empty_one_only_the_port() {
    let redis = Redis::with().durable().start();
    let (pid, address) = (redis.pid(), redis.address());
    redis.call(&["SET", "name", "value"]);
    redis.kill();
    assert!(!redis.is_running() && redis.try_call(&["PING"]).is_err());
    redis.restart();
    assert_ne!(redis.pid(), pid);
    assert_eq!(redis.address(), address);
    assert_eq!(redis.call(&["GET", "name"]).text(), "value");
    redis.stop();
    redis.restart_empty();
    assert_eq!(redis.call(&["GET", "name"]).text(), "");
}

#[test]
fn the_port_of_a_redis_that_is_down_stays_reserved() {
    let redis = Redis::start();
    redis.kill();
    let others: Vec<Redis> = (0..3).map(|_| Redis::start()).collect();
    assert!(
        others
            .iter()
            .all(|other| other.address() != redis.address())
    );
    redis.restart();
}

#[test]
fn a_server_that_ended_by_itself_is_seen_and_started_again() {
    let redis = Redis::start();
    redis.try_call(&["SHUTDOWN", "NOSAVE"]).ok();
    wait_for("its end", || !redis.is_running());
    let paused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| redis.pause()));
    let message = *paused
        .expect_err("there is nothing to pause")
        .downcast::<String>()
        .expect("a message");
    assert!(
        message.contains("redis-server does not run") && message.contains("ready to exit"),
        "{message}"
    );
    redis.restart();
    assert_eq!(redis.call(&["PING"]).text(), "PONG");
}

#[test]
fn tls_and_users() {
    let redis = Redis::with().tls().acl(LOCKER).start();
    let trace = Trace::of(&redis);
    assert_eq!(redis.call(&["SET", "lock:a", "1"]).text(), "OK");
    assert!(
        Connection::open(redis.address(), Duration::from_secs(5))
            .and_then(|mut plain| plain.call(&["PING"]))
            .is_err()
    );
    assert_eq!(redis.url(), format!("rediss://:rootpw@{}", redis.address()));
    redis.restart();
    drop(redis);
    assert!(!trace.dir.exists());
}

#[test]
fn users_without_tls() {
    let redis = Redis::with().acl(LOCKER).start();
    let mut connection =
        Connection::open(redis.address(), Duration::from_secs(5)).expect("a connection");
    let mut call = |words: &[&str]| connection.call(words).expect("an answer").text();
    assert!(call(&["GET", "lock:a"]).starts_with("NOAUTH"));
    assert_eq!(call(&["AUTH", "locker", "lockpw"]), "OK");
    assert_eq!(call(&["SET", "lock:a", "1"]), "OK");
    assert!(call(&["SET", "other", "1"]).starts_with("NOPERM"));
    assert_eq!(
        call(&["EVAL", "return redis.call('get', KEYS[1])", "1", "lock:a"]),
        "1"
    );
}

#[test]
fn a_start_that_fails_shows_the_log() {
    let failed = std::panic::catch_unwind(|| Redis::with().set("no-such-setting", "1").start());
    let message = *failed
        .expect_err("it cannot start")
        .downcast::<String>()
        .expect("a message");
    assert!(
        message.contains("redis-server: it ended before it was ready")
            && message.contains("no-such-setting"),
        "{message}"
    );
}

#[test]
fn the_clock_of_one_redis_moves_and_that_of_others_does_not() {
    let (moved, other) = (Redis::with().clock().start(), Redis::with().clock().start());
    let seconds = |redis: &Redis| redis.call(&["TIME"]).list()[0].int().expect("seconds");
    moved.call(&["SET", "lease", "me", "PX", "60000"]);
    assert!((seconds(&moved) - seconds(&other)).abs() <= 2);

    moved.clock().set_ahead(Duration::from_secs(120));
    assert!((118..=122).contains(&(seconds(&moved) - seconds(&other))));
    assert_eq!(
        moved.call(&["GET", "lease"]).text(),
        "",
        "it outlived its minute"
    );

    moved.clock().set_right();
    moved.call(&["SET", "lease", "me", "PX", "1000"]);
    moved.clock().set_back(Duration::from_millis(3_600_500));
    assert!((3598..=3603).contains(&(seconds(&other) - seconds(&moved))));
    let left = moved.call(&["PTTL", "lease"]).int().expect("milliseconds");
    assert!(
        left > 3_500_000,
        "{left} ms are left of a lease of a second, an hour before"
    );
}
