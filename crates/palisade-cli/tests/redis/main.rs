//! The command on Redis, from outside, on real servers.

#![cfg(feature = "redis")]

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod grants;
mod inspect;
mod refusals;
mod run;
mod simple;
mod topologies;

use std::fs;

use common::{Done, Place};
use palisade_testkit::shared;
use serde_json::Value;

/// A place on a plain server, which all tests here share: each has names of its own.
fn place() -> Place {
    Place::of(shared::redis().url())
}

/// The same in the format that other libraries use.
fn simple() -> Place {
    Place::of(format!("{}?format=simple", shared::redis().url()))
}

fn name() -> String {
    shared::name("cli")
}

fn acquire(place: &Place, line: &str) -> Value {
    let done = place.verb(&format!("acquire {line}"));
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    fs::write(place.path("grant"), &done.stdout).unwrap();
    serde_json::from_str(&done.stdout).expect("a grant is JSON")
}

/// The fields of an object, in the order of the alphabet.
fn fields(object: &Value) -> Vec<&str> {
    object
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

#[track_caller]
fn assert_says(done: &Done, code: i32, what: &str) {
    assert!(
        done.code == code && done.stderr.contains(what),
        "expected {code} and {what:?}: {done:?}"
    );
}
