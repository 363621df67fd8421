//! Every fault of the proxy, in front of a real Redis.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use palisade_testkit::proxy::{Protocol, Proxy, Way};
use palisade_testkit::redis::Redis;
use palisade_testkit::resp::Connection;
use palisade_testkit::{eventually, shared};

const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for what must not come.
const SILENCE: Duration = Duration::from_millis(300);

struct Scene {
    proxy: Proxy,
    redis: Redis,
}

fn scene() -> Scene {
    let redis = Redis::start();
    Scene {
        proxy: Proxy::speaking(Protocol::Redis, redis.address()),
        redis,
    }
}

impl Scene {
    fn connect(&self) -> Connection {
        Connection::open(self.proxy.address(), PATIENCE).expect("a connection")
    }

    fn stored(&self) -> String {
        self.redis.call(&["GET", "name"]).text()
    }
}

fn set(connection: &mut Connection) -> std::io::Result<String> {
    Ok(connection.call(&["SET", "name", "value"])?.text())
}

/// Nothing comes: no answer, and no end either.
fn is_silent(connection: &mut Connection) -> bool {
    connection.set_limit(SILENCE).expect("an open socket");
    let silent = connection
        .read()
        .is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    connection.set_limit(PATIENCE).expect("an open socket");
    silent
}

/// Asks, and leaves the answer.
fn send_set(connection: &mut Connection) {
    connection
        .send(&["SET", "name", "value"])
        .expect("the kernel takes it");
}

#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, PATIENCE, || {
        if is_so() {
            Ok(())
        } else {
            Err("not yet".into())
        }
    });
}

#[test]
fn without_faults_it_is_not_there() {
    let scene = scene();
    let mut connection = scene.connect();
    assert_eq!(set(&mut connection).expect("an answer"), "OK");
    let long = "x".repeat(3_000_000);
    connection.call(&["SET", "long", &long]).expect("an answer");
    assert_eq!(
        connection.call(&["GET", "long"]).expect("an answer").text(),
        long
    );
    assert_eq!(scene.proxy.connections(), 1);
    drop(connection);
    wait_for("the end of the connection", || {
        scene.proxy.connections() == 0
    });
}

#[test]
fn the_end_of_the_server_reaches_the_client() {
    let scene = scene();
    let mut connection = scene.connect();
    set(&mut connection).expect("an answer");
    scene.redis.kill();
    assert!(
        connection
            .read()
            .is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
    );
    let late =
        Connection::open(scene.proxy.address(), PATIENCE).and_then(|mut late| set(&mut late));
    assert!(late.is_err(), "no server is there to answer");
}

#[test]
fn delay_and_jitter() {
    let scene = scene();
    let mut connection = scene.connect();
    scene.proxy.delay(
        Way::Both,
        Duration::from_millis(100),
        Duration::from_millis(50),
    );
    let start = Instant::now();
    for _ in 0..20 {
        connection.send(&["INCR", "n"]).expect("room");
    }
    for n in 1..=20 {
        assert_eq!(
            connection.read().expect("an answer").int(),
            Some(n),
            "the order is kept"
        );
    }
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(200),
        "{took:?} for a way there and a way back"
    );
    assert!(
        took < Duration::from_secs(4),
        "{took:?}: each waited for the one before"
    );
}

#[test]
fn slow() {
    let scene = scene();
    let mut connection = scene.connect();
    connection
        .call(&["SET", "name", &"x".repeat(2_000)])
        .expect("an answer");
    scene.proxy.slow(Way::ToClient, 4_000);
    let start = Instant::now();
    connection.call(&["GET", "name"]).expect("an answer");
    assert!(
        start.elapsed() >= Duration::from_millis(480),
        "{:?}",
        start.elapsed()
    );
    // An hour's worth, which healing ends.
    scene.proxy.slow(Way::ToClient, 1);
    connection.send(&["GET", "name"]).expect("room");
    scene.proxy.heal();
    connection.read().expect("the rest at once");
}

#[test]
fn swallowed_requests_never_come() {
    let scene = scene();
    let mut connection = scene.connect();
    scene.proxy.swallow(Way::ToServer);
    send_set(&mut connection);
    assert!(is_silent(&mut connection));
    assert_eq!(scene.stored(), "");
    let mut new = scene.connect();
    send_set(&mut new);
    assert!(
        is_silent(&mut new),
        "new connections are accepted and swallowed too"
    );
    scene.proxy.heal();
    assert_eq!(set(&mut connection).expect("an answer"), "OK");
}

#[test]
fn swallowed_replies_belong_to_requests_that_were_applied() {
    let scene = scene();
    let mut connection = scene.connect();
    scene.proxy.swallow(Way::ToClient);
    send_set(&mut connection);
    assert!(is_silent(&mut connection));
    assert_eq!(scene.stored(), "value");
    scene.redis.kill();
    assert!(
        is_silent(&mut connection),
        "the end of the server is swallowed too"
    );
}

#[test]
fn a_stall_keeps_everything_for_later() {
    let scene = scene();
    let mut connection = scene.connect();
    scene.proxy.stall(Way::ToServer);
    send_set(&mut connection);
    assert!(is_silent(&mut connection));
    assert_eq!(scene.stored(), "");
    scene.proxy.stall(Way::ToClient);
    scene.proxy.heal();
    assert_eq!(connection.read().expect("the late answer").text(), "OK");
    assert_eq!(scene.stored(), "value");
}

#[test]
fn a_stalled_client_does_not_learn_of_the_end_of_the_server() {
    let scene = scene();
    let mut connection = scene.connect();
    set(&mut connection).expect("an answer");
    scene.proxy.stall(Way::ToClient);
    scene.redis.kill();
    assert!(is_silent(&mut connection));
    scene.proxy.heal();
    assert!(
        connection
            .read()
            .is_err_and(|error| error.kind() != ErrorKind::WouldBlock),
        "the end"
    );
}

#[test]
fn reset_ends_what_is_open_and_nothing_else() {
    let scene = scene();
    let mut connections = [scene.connect(), scene.connect()];
    for connection in &mut connections {
        set(connection).expect("an answer");
    }
    scene.proxy.reset();
    for connection in &mut connections {
        assert_eq!(
            connection.read().expect_err("it is over").kind(),
            ErrorKind::ConnectionReset
        );
    }
    assert_eq!(set(&mut scene.connect()).expect("an answer"), "OK");
}

#[test]
fn refused_connections_are_refused_by_the_kernel() {
    let scene = scene();
    let mut open = scene.connect();
    scene.proxy.refuse();
    let refused = TcpStream::connect(scene.proxy.address()).expect_err("the port is closed");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(set(&mut open).expect("open ones stay"), "OK");
    scene.proxy.heal();
    assert_eq!(set(&mut scene.connect()).expect("an answer"), "OK");
}

#[test]
fn a_server_out_of_reach_is_a_reset_and_a_refusal_together() {
    let scene = scene();
    let mut open = scene.connect();
    scene.proxy.refuse();
    scene.proxy.reset();
    assert!(set(&mut open).is_err());
    assert!(TcpStream::connect(scene.proxy.address()).is_err());
    scene.proxy.heal();
    assert_eq!(set(&mut scene.connect()).expect("an answer"), "OK");
}

#[test]
fn a_lost_reply_is_that_of_a_request_that_was_applied() {
    let scene = scene();
    let mut connection = scene.connect();
    connection.call(&["PING"]).expect("an answer");
    scene.proxy.lose_reply();
    assert_eq!(
        set(&mut connection).expect_err("it is lost").kind(),
        ErrorKind::ConnectionReset
    );
    assert_eq!(scene.stored(), "value");
    assert_eq!(scene.proxy.lost(), 1);
    assert_eq!(set(&mut scene.connect()).expect("only one is lost"), "OK");
}

#[test]
fn a_lost_reply_can_be_chosen_by_its_request() {
    let scene = scene();
    let mut connection = scene.connect();
    scene
        .proxy
        .lose_reply_to(|request| request.windows(3).any(|word| word == b"SET"));
    connection.call(&["GET", "name"]).expect("not this one");
    assert!(set(&mut connection).is_err());
    assert_eq!(scene.stored(), "value");
}

#[test]
fn only_pushes_are_lost_also_between_answers() {
    let scene = scene();
    let mut subscriber = scene.connect();
    subscriber.call(&["SUBSCRIBE", "news"]).expect("an answer");
    let publish = |text: &str| scene.redis.call(&["PUBLISH", "news", text]).int();
    scene.proxy.lose_pushes();
    assert_eq!(publish("lost"), Some(1), "the server has a subscriber");
    wait_for("the loss", || scene.proxy.lost() == 1);
    // An answer on the same connection, sent by the server together with a message.
    let together = "redis.call('publish', 'news', 'lost too')";
    scene.redis.call(&["EVAL", together, "0"]);
    assert_eq!(
        subscriber.call(&["PING"]).expect("answers come").list()[0].text(),
        "pong"
    );
    scene.proxy.heal();
    publish("seen");
    assert_eq!(
        subscriber.read().expect("a message").list()[2].text(),
        "seen"
    );
    assert_eq!(scene.proxy.lost(), 2);
}

#[test]
fn postgres_notifications_are_lost_and_rows_are_not() {
    let postgres = shared::postgres();
    let proxy = Proxy::speaking(Protocol::Postgres, postgres.address());
    let channel = shared::name("news").replace('-', "_");
    let ask = || {
        let through = postgres.url().replace(
            &postgres.address().to_string(),
            &proxy.address().to_string(),
        );
        let words = [
            format!("listen {channel}"),
            format!("notify {channel}"),
            "select 'a row'".to_owned(),
        ];
        let mut psql = Command::new("timeout");
        psql.args(["30", "psql", "-X", "-A", "-t", "-d", &through])
            .args(words.iter().flat_map(|sql| ["-c", sql]));
        String::from_utf8(psql.output().expect("psql").stdout).expect("text")
    };
    let said = ask();
    assert!(
        said.contains("a row") && said.contains("Asynchronous notification"),
        "{said}"
    );
    proxy.lose_pushes();
    let said = ask();
    assert!(
        said.contains("a row") && !said.contains("Asynchronous notification"),
        "{said}"
    );
    assert_eq!(proxy.lost(), 1);
}

#[test]
fn messages_are_lost_by_choice() {
    let scene = scene();
    let mut subscriber = scene.connect();
    subscriber.call(&["SUBSCRIBE", "news"]).expect("an answer");
    scene.proxy.lose_if(|message| message.ends_with(b"odd\r\n"));
    for text in ["odd", "even"] {
        scene.redis.call(&["PUBLISH", "news", text]);
    }
    assert_eq!(
        subscriber.read().expect("a message").list()[2].text(),
        "even"
    );
}

#[test]
fn frozen_connections_are_silent_for_good_and_new_ones_work() {
    let scene = scene();
    let mut frozen = scene.connect();
    assert_eq!(set(&mut frozen).expect("an answer"), "OK");
    scene.proxy.freeze();
    send_set(&mut frozen);
    assert!(is_silent(&mut frozen));
    assert_eq!(set(&mut scene.connect()).expect("an answer"), "OK");
    scene.proxy.heal();
    assert!(
        is_silent(&mut frozen),
        "a new network does not bring it back"
    );
    assert_eq!(scene.stored(), "value");
}
