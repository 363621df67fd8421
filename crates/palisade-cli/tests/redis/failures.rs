//! Servers and processes that fail.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use super::{assert_says, name, place};
use crate::common::{Place, is_alive, until};

#[test]
fn a_killed_palisade_leaves_the_lock_to_its_lease() {
    let (place, name) = (place(), name());
    let running = place.start(
        &format!("run --lease 8s {name}"),
        "echo $$ > pid; exec sleep 300",
    );
    let command = place.written_pid("pid");
    running.kill();
    until("the command has gone with it", || !is_alive(command));
    assert_says(
        &place.run(&format!("run --try {name}"), "true"),
        75,
        "is held by",
    );
    assert_eq!(place.run(&format!("run --wait 40s {name}"), "true").code, 0);
}

#[test]
fn a_server_that_comes_back_without_its_data_ends_the_run_at_once() {
    let server = Redis::start();
    let place = Place::of(server.url());
    let running = place.start("run --lease 60s forgotten", "echo $$ > pid; exec sleep 300");
    place.written_pid("pid");
    let begun = Instant::now();
    server.restart();
    let done = running.end();
    assert_says(&done, 79, "forgotten is lost");
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "before the next renewal: {:?}",
        begun.elapsed()
    );
}

#[test]
fn a_server_that_cannot_be_reached_is_69_in_time_and_is_waited_for() {
    let server = Redis::start();
    let place = Place::of(server.url());
    server.kill();
    let refused = "cannot be reached: Connection refused";
    for (line, at_most) in [
        ("run --try a", 8),
        ("run --store-wait 1s a", 10),
        ("run --wait 1s --store-wait 1h a", 10),
    ] {
        let begun = Instant::now();
        assert_says(&place.run(line, "echo never"), 69, refused);
        assert!(
            begun.elapsed() < Duration::from_secs(at_most),
            "{line}: {:?}",
            begun.elapsed()
        );
    }
    for line in [
        "list",
        "show a",
        "release a --fence 1 --yes",
        "acquire --store-wait 1s a",
    ] {
        assert_says(&place.verb(line), 69, refused);
    }
    // Another listener at its address counts connections, and closes them.
    let door = TcpListener::bind(server.address()).unwrap();
    door.set_nonblocking(true).unwrap();
    let mut running = place.start("run --store-wait 40s a", "echo here");
    for _ in 0..3 {
        until("it tries once more", || {
            door.accept().is_ok() || running.has_ended()
        });
        assert!(!running.has_ended(), "it goes on trying");
    }
    drop(door);
    server.start_again();
    let done = running.end();
    assert_eq!((done.code, done.stdout.as_str()), (0, "here\n"), "{done:?}");

    server.pause();
    let begun = Instant::now();
    let silent = place.run("run --store-wait 1s a", "echo never");
    server.resume();
    assert_says(&silent, 69, "has not answered within 1s");
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_grant_that_no_replica_confirms_is_refused_and_given_back() {
    let alone = Place::of(format!("{}?replicas=1", shared::redis().url()));
    let name = name();
    assert_says(
        &alone.run(&format!("run --try {name}"), "echo never"),
        69,
        "too few replicas have it",
    );
    assert_eq!(alone.holders(&name), 0);
    let pair = Place::of(format!("{}?replicas=1", shared::redis_sentinel().url()));
    assert_eq!(pair.run(&format!("run --try {name}"), "true").code, 0);
}
