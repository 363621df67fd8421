//! `ping`: which server answers, how fast, and the usual exit codes.

#![cfg(all(feature = "redis", feature = "etcd", feature = "zookeeper"))]

mod common;

use common::Place;
use palisade_testkit::redis::Redis;
use serde_json::Value;

#[test]
fn the_server_that_answers_is_named() {
    let redis = Redis::start();
    let place = Place::of(redis.url());
    let done = place.verb("ping");
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let address = redis.address().to_string();
    for text in [address.as_str(), "master", ": answers in "] {
        assert!(done.stdout.contains(text), "{text}: {done:?}");
    }
    let done = place.verb("ping --json");
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    for (field, value) in [("store", "redis"), ("role", "master")] {
        assert_eq!(json[field], value, "{json}");
    }
    assert!(
        json["version"].is_string() && json["latency_ms"].is_u64(),
        "{json}"
    );
}

#[test]
fn a_file_answers_too() {
    let place = Place::new();
    let done = place.verb("ping");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.starts_with("sqlite"), "{done:?}");
}

#[test]
fn failures_have_the_usual_codes() {
    let nothing = Place::of("redis://127.0.0.1:1");
    assert_eq!(nothing.verb("ping").code, 69);
    let redis = Redis::start();
    let wrong = Place::of(format!("redis://me:SENTINEL@{}", redis.address()));
    let done = wrong.verb("ping");
    assert_eq!(done.code, 77, "{done:?}");
    assert!(!done.stderr.contains("SENTINEL"), "{done:?}");
    assert_eq!(Place::of("nosuch://h").verb("ping").code, 78);
}
