//! The command on ZooKeeper, from outside, on a real server.

#![cfg(feature = "zookeeper")]

mod common;

use std::fs;
use std::time::Duration;

use common::Place;
use palisade_testkit::shared;
use palisade_testkit::zookeeper::{Make, Raw};

/// A place on a server whose sessions last 1 to 10 seconds, which all tests here share: each has
/// names of its own.
fn place() -> Place {
    Place::of(format!("zk://{}/cli", shared::zookeeper().address()))
}

fn name() -> String {
    shared::name("cli")
}

/// The default lease is what the server grants, and the command has a quarter of that to stop;
/// another length is refused.
#[test]
fn the_default_lease_is_what_the_server_grants() {
    let (place, name) = (place(), name());
    let done = place.run(
        &format!("run {name}"),
        "echo $PALISADE_STORE $PALISADE_LEASE_MS; exit 3",
    );
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (3, "zk 7500\n", ""),
        "{done:?}"
    );
    let done = place.run(&format!("run --lease 60s {name}"), "true");
    assert!(
        done.code == 64 && done.stderr.contains("1s to 10s"),
        "{done:?}"
    );
}

/// The three objects of one name, as Curator has them.
#[test]
fn mutex_sides_and_permits_are_shown() {
    let (place, name) = (place(), name());
    let mutex = place.holder(&format!("run {name}"));
    let busy = place.run(&format!("run --try {name}"), "true");
    assert!(
        busy.code == 75 && busy.stderr.contains("is held by"),
        "{busy:?}"
    );
    let beside = place.run(&format!("run --try --exclusive {name}"), "true");
    assert_eq!(
        beside.code, 0,
        "the read/write lock of the name is another object: {beside:?}"
    );
    let refused = place.run(&format!("run --try --limit 2 {name}"), "true");
    assert!(
        refused.code == 64
            && refused.stderr.contains("mutex")
            && refused.stderr.contains("semaphore"),
        "{refused:?}"
    );
    let fence = place.fence(&name);
    let done = place.verb(&format!("release {name} --fence {fence} --yes"));
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(mutex.end().code, 79, "the victim is told");
}

/// A detached grant has a session of its own, which another process takes up.
#[test]
fn a_grant_is_carried_from_process_to_process() {
    let (place, name) = (place(), name());
    let grant = place.path("grant");
    for verb in [
        format!("acquire --lease 8s {name}"),
        format!("renew --grant {}", grant.display()),
    ] {
        let done = place.verb(&verb);
        assert_eq!(
            (done.code, done.stderr.as_str()),
            (0, ""),
            "{verb}: {done:?}"
        );
        if verb.starts_with("acquire") {
            fs::write(&grant, &done.stdout).unwrap();
        }
        assert_eq!(
            place.run(&format!("run --try {name}"), "true").code,
            75,
            "after {verb}"
        );
    }
    let released = place.verb(&format!("release --grant {}", grant.display()));
    assert_eq!(released.code, 0, "{released:?}");
    assert_eq!(place.run(&format!("run --try {name}"), "true").code, 0);
    assert_eq!(
        place
            .verb(&format!("release --grant {}", grant.display()))
            .code,
        79,
        "it is gone"
    );
}

/// During a rolling upgrade an older program can still list.
#[test]
fn a_line_of_a_newer_version_does_not_hide_the_others() {
    let root = name();
    let place = Place::of(format!("zk://{}/{root}", shared::zookeeper().address()));
    let _held = place.holder("run sound");
    let mut session =
        Raw::open(shared::zookeeper().address(), Duration::from_secs(10)).expect("a session");
    let mut make =
        |path: String, data: &[u8]| session.create(&path, data, Make::Persistent).expect("made");
    make(format!("/{root}/strange"), b"");
    make(
        format!("/{root}/strange/_c_0-lock-0000000000"),
        b"palisade:2:owner=later",
    );
    place.lists_beside_a_strange_line("sound", "strange", "newer version");
}
