//! The command on etcd, from outside, on a real server.

#![cfg(feature = "etcd")]

mod common;

use std::fs;

use common::Place;
use palisade_testkit::shared;
use rustix::process::Signal;
use serde_json::Value;

fn url() -> String {
    format!("etcd://{}/command", shared::etcd().address())
}

/// A place on a plain server, which all tests here share: each has names of its own.
fn place() -> Place {
    Place::of(url())
}

fn name() -> String {
    shared::name("cli")
}

#[test]
fn a_run_passes_the_code_on_and_leaves_nothing() {
    let (place, name) = (place(), name());
    let script = "echo $PALISADE_NAME $PALISADE_STORE $PALISADE_OWNER $PALISADE_LEASE_MS $PALISADE_FENCE; exit 3";
    let done = place.run(&format!("run --owner me --lease 20s {name}"), script);
    assert_eq!((done.code, done.stderr.as_str()), (3, ""), "{done:?}");
    let (words, fence) = done.stdout.trim().rsplit_once(' ').expect("words");
    assert_eq!(words, format!("{name} etcd me 20000"));
    let next = place.run(&format!("run {name}"), "echo $PALISADE_FENCE");
    assert!(
        next.stdout.trim().parse::<u64>().unwrap() > fence.parse().unwrap(),
        "{fence}, then {next:?}"
    );
    let listed = place.verb(&format!("list --json {name}"));
    assert_eq!((listed.code, listed.stdout.as_str()), (0, ""), "{listed:?}");
}

#[test]
fn a_refusal_names_the_holder() {
    let (place, name) = (place(), name());
    let holder = place.holder(&format!("run --owner alice {name}"));
    for line in [
        format!("run --try {name}"),
        format!("run --wait 100ms {name}"),
    ] {
        let busy = place.run(&line, "echo never");
        assert!(
            busy.code == 75 && busy.stdout.is_empty() && busy.stderr.contains("alice"),
            "{busy:?}"
        );
    }
    let (line, fence) = (place.show(&name), place.fence(&name));
    assert_eq!(
        (&line["store"], &line["holders"][0]["owner"]),
        (&Value::from("etcd"), &Value::from("alice"))
    );
    let other = place.verb(&format!(
        "release --yes {name} --fence {}",
        fence.parse::<u64>().unwrap() + 1
    ));
    assert_eq!(other.code, 75, "another fence: {other:?}");
    let forced = place.verb(&format!("release --yes {name} --fence {fence}"));
    assert_eq!(forced.code, 0, "{forced:?}");
    assert_eq!(holder.end().code, 79, "its holder is told");
}

/// The grant has a lease of its own in etcd, which outlives the command that got it, and the one
/// that renews it.
#[test]
fn a_grant_outlives_the_process_and_can_be_renewed_and_released() {
    let (place, name) = (place(), name());
    let acquired = place.verb(&format!("acquire --lease 20s --reason script {name}"));
    assert_eq!(
        (acquired.code, acquired.stderr.as_str()),
        (0, ""),
        "{acquired:?}"
    );
    fs::write(place.path("grant"), &acquired.stdout).unwrap();
    for _ in 0..2 {
        let renewed = place.verb("renew --grant grant");
        assert_eq!(
            (renewed.code, renewed.stdout.as_str()),
            (0, ""),
            "{renewed:?}"
        );
    }
    assert_eq!(
        place.run(&format!("run --try {name}"), "echo never").code,
        75
    );
    for (verb, code) in [("release", 0), ("release", 79), ("renew", 79)] {
        let done = place.verb(&format!("{verb} --grant grant"));
        assert_eq!(done.code, code, "{verb}: {done:?}");
    }
    assert_eq!(place.run(&format!("run --try {name}"), "true").code, 0);
}

#[test]
fn what_etcd_cannot_do_is_refused() {
    let (place, plain, name) = (
        place(),
        Place::of(format!("{}?format=plain", url())),
        name(),
    );
    for (place, line, says) in [
        (&place, format!("run --lease 1s {name}"), "2s"),
        (&place, format!("run --once-per 1h {name}"), "once_per"),
        (&plain, format!("run --shared {name}"), "plain"),
    ] {
        let done = place.run(&line, "echo never");
        assert!(
            done.code == 64 && done.stderr.contains(says) && done.stdout.is_empty(),
            "{line}: {done:?}"
        );
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let done = Place::of("etcd://127.0.0.1:1").run("run --store-wait 200ms x", "echo never");
    assert!(
        done.code == 69 && done.stderr.contains("127.0.0.1:1") && done.stdout.is_empty(),
        "{done:?}"
    );
}

#[test]
fn a_waiter_that_is_told_to_go_leaves_no_place_behind() {
    let (place, name) = (place(), name());
    let holder = place.holder(&format!("run {name}"));
    let waiter = place.waiter(&format!("run {name}"), &name, "echo never", 1);
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.end().code, 143);
    assert_eq!(place.waiters(&name), 0);
    drop(holder);
}

/// During a rolling upgrade an older program can still list.
#[test]
fn a_line_of_a_newer_version_does_not_hide_the_others() {
    let root = name();
    let place = Place::of(format!("etcd://{}/{root}", shared::etcd().address()));
    let _held = place.holder("run sound");
    shared::etcd().etcdctl(&[
        "put",
        &format!("{root}/strange/1"),
        "palisade:2:owner=later",
    ]);
    place.lists_beside_a_strange_line("sound", "strange", "newer version");
}
