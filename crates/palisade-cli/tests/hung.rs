//! A server that hangs, as a process that is stopped does: it accepts connections, and answers
//! nothing.

#![cfg(all(feature = "redis", feature = "etcd", feature = "zookeeper"))]

mod common;

use std::time::{Duration, Instant};

use common::{Place, is_alive, until};
use palisade_testkit::etcd::Etcd;
use palisade_testkit::redis::Redis;
use palisade_testkit::zookeeper::ZooKeeper;

/// The pages say 250 ms; the rest is for the start of a process on a busy machine.
const SLACK: Duration = Duration::from_millis(250 + 300);

/// A claim in line is renewed at least so often: the request that goes unanswered is sent by then.
const HEARTBEAT: Duration = Duration::from_millis(1700);

/// A server that the test can stop.
struct Server {
    place: Place,
    pause: Box<dyn Fn()>,
    resume: Box<dyn Fn()>,
}

macro_rules! server {
    ($start:expr, $url:expr) => {{
        let server = std::rc::Rc::new($start);
        let again = std::rc::Rc::clone(&server);
        let place = Place::of($url(&*server));
        Server {
            place,
            pause: Box::new(move || server.pause()),
            resume: Box::new(move || again.resume()),
        }
    }};
}

fn redis() -> Server {
    server!(Redis::start(), |server: &Redis| server.url())
}

fn etcd() -> Server {
    server!(Etcd::start(), |server: &Etcd| format!(
        "etcd://{}/hung",
        server.address()
    ))
}

fn zookeeper() -> Server {
    server!(
        ZooKeeper::with().long_sessions().start(),
        |server: &ZooKeeper| format!("zk://{}/hung", server.address())
    )
}

/// Neither a wait nor the patience with the store is overrun, whether the server hangs from the
/// beginning or while the claim waits.
fn waits_end_in_time(
    Server {
        place,
        pause,
        resume,
    }: Server,
) {
    // It is there, and the name is held.
    let holder = place.holder("run --lease 40s held");
    pause();
    for (line, wait) in [
        ("run --wait 1s free", 1),
        ("run --wait 3s free", 3),
        ("run --store-wait 2s free", 2),
    ] {
        let begun = Instant::now();
        let done = place.run(line, "echo never");
        let took = begun.elapsed();
        assert_eq!(
            (done.code, done.stdout.as_str()),
            (69, ""),
            "{line}: {done:?}"
        );
        let wait = Duration::from_secs(wait);
        assert!(took >= wait && took < wait + SLACK, "{line} took {took:?}");
    }
    resume();
    until("the holder is seen", || place.holders("held") == 1);
    for line in [
        "run --wait 2s held",
        "run --wait 3s held",
        "acquire --wait 2s held",
    ] {
        let wait = if line.contains("3s") { 3 } else { 2 };
        let wait = Duration::from_secs(wait);
        until("the line is empty", || place.waiters("held") == 0);
        let begun = Instant::now();
        let waiter = if line.starts_with("run") {
            place.start(line, "echo never")
        } else {
            place.launch(place.command(line.split(' ')))
        };
        until("it stands in line", || place.waiters("held") == 1);
        pause();
        let done = waiter.end();
        let took = begun.elapsed();
        resume();
        assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
        assert!(
            took >= wait && took < wait + SLACK,
            "{line} in line took {took:?}"
        );
    }
    holder.kill();
}

#[test]
fn waits_end_in_time_on_redis() {
    waits_end_in_time(redis());
}

#[test]
fn waits_end_in_time_on_etcd() {
    waits_end_in_time(etcd());
}

#[test]
fn waits_end_in_time_on_zookeeper() {
    waits_end_in_time(zookeeper());
}

/// The patience with a store counts from the first request that it leaves unanswered.
#[test]
fn patience_in_line_counts_from_the_unanswered_request() {
    let Server {
        place,
        pause,
        resume,
    } = redis();
    let holder = place.holder("run --lease 40s held");
    for (line, patience) in [
        ("run --store-wait 2s held", 2000),
        // Less than a request may take.
        ("run --store-wait 500ms held", 500),
    ] {
        until("the line is empty", || place.waiters("held") == 0);
        let waiter = place.waiter(line, "held", "echo never", 1);
        let stopped = Instant::now();
        pause();
        let done = waiter.end();
        let took = stopped.elapsed();
        resume();
        assert_eq!((done.code, done.stdout.as_str()), (69, ""), "{done:?}");
        let patience = Duration::from_millis(patience);
        assert!(
            took >= patience && took < HEARTBEAT + patience + SLACK,
            "{line} took {took:?} after the server was stopped"
        );
    }
    holder.kill();
}

/// Once the command is stopped, palisade does not linger to release a lock that is lost.
fn leaves_soon_after_a_loss(
    Server {
        place,
        pause,
        resume,
    }: Server,
    verb: &str,
) {
    let running = place.start(
        &format!("{verb} --lease 6s lost"),
        "echo $$ > pid; exec sleep 60",
    );
    let child = place.written_pid("pid");
    pause();
    until("the command is stopped", || !is_alive(child));
    let stopped = Instant::now();
    if verb.starts_with("elect") {
        // It campaigns again, and leaves when it is told to.
        running.signal(rustix::process::Signal::TERM);
    }
    let done = running.end();
    let took = stopped.elapsed();
    resume();
    assert!(done.stderr.contains("lost is lost"), "{done:?}");
    assert!(
        took < Duration::from_secs(1) + SLACK,
        "{verb}: {took:?} after the command"
    );
    if verb == "run" {
        assert_eq!(done.code, 79, "{done:?}");
    }
}

#[test]
fn a_run_leaves_soon_after_a_loss() {
    for server in [redis(), etcd(), zookeeper()] {
        leaves_soon_after_a_loss(server, "run");
    }
}

#[test]
fn an_elected_leader_leaves_soon_after_a_loss() {
    for server in [redis(), etcd(), zookeeper()] {
        leaves_soon_after_a_loss(server, "elect");
    }
}

#[test]
fn patience_with_the_store_may_have_no_end() {
    let Server {
        place,
        pause,
        resume,
    } = redis();
    pause();
    let begun = Instant::now();
    assert_eq!(place.run("run --store-wait 1s n", "true").code, 69);
    assert!(begun.elapsed() < Duration::from_secs(1) + SLACK);
    assert_eq!(
        place
            .run("run --store-wait forever --wait 1s n", "true")
            .code,
        69
    );
    let mut patient = place.start("run --store-wait forever n", "exit 5");
    let left = common::within(Duration::from_secs(12), || patient.has_ended());
    assert!(
        !left,
        "longer than the default of 10 s: {}",
        patient.stderr()
    );
    resume();
    assert_eq!(patient.end().code, 5);
}
