//! `list`, `show` and `stores`.

use palisade_testkit::shared;
use serde_json::Value;

use super::{fields, name, place};
use crate::common::Place;

#[test]
fn list_and_show_print_what_the_contract_says() {
    let (place, prefix) = (place(), name());
    let (mutex, permits) = (format!("{prefix}/a"), format!("{prefix}/b"));
    let _holder = place.holder(&format!(
        "run --owner web-1 --reason why --lease 40s {mutex}"
    ));
    let _waiter = place.waiter(
        &format!("run --owner web-2 --shared {mutex}"),
        &mutex,
        "true",
        1,
    );
    let _permits = place.holder(&format!(
        "run --owner web-3 --limit 3 --permits 2 {permits}"
    ));
    let shown = place.show(&mutex);
    let all = [
        "holders",
        "kind",
        "limit",
        "mode",
        "name",
        "store",
        "waiters",
        "waiters_known",
    ];
    assert_eq!(fields(&shown), all);
    let holder = &shown["holders"][0];
    assert_eq!(
        fields(holder),
        [
            "fence",
            "held_ms",
            "lease_left_ms",
            "owner",
            "permits",
            "reason"
        ]
    );
    assert_eq!(
        fields(&shown["waiters"][0]),
        ["mode", "owner", "reason", "waited_ms"]
    );
    for (value, said) in [
        ("name", mutex.as_str()),
        ("store", "redis"),
        ("kind", "rwlock"),
        ("mode", "exclusive"),
    ] {
        assert_eq!(shown[value], said, "{shown}");
    }
    assert!(
        shown["limit"].is_null() && shown["waiters_known"] == true,
        "{shown}"
    );
    assert!(
        holder["owner"] == "web-1" && holder["reason"] == "why" && holder["permits"].is_null(),
        "{holder}"
    );
    assert!(
        holder["fence"]
            .as_str()
            .is_some_and(|fence| fence.parse::<u64>().is_ok()),
        "a decimal string: {holder}"
    );
    assert!(
        holder["held_ms"].is_u64()
            && holder["lease_left_ms"]
                .as_u64()
                .is_some_and(|left| left <= 40_000),
        "{holder}"
    );
    assert!(
        shown["waiters"][0]["owner"] == "web-2" && shown["waiters"][0]["mode"] == "shared",
        "{shown}"
    );

    let listed = place.verb(&format!("list --json {prefix}"));
    let mut lines: Vec<Value> = listed
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    lines.sort_by_key(|line| line["name"].as_str().map(str::to_owned));
    assert_eq!(
        lines
            .iter()
            .map(|line| line["name"].as_str().unwrap())
            .collect::<Vec<_>>(),
        [&mutex, &permits]
    );
    assert!(lines.iter().all(|line| fields(line) == all), "{lines:?}");
    let semaphore = &lines[1];
    assert!(
        semaphore["kind"] == "semaphore"
            && semaphore["limit"] == 3
            && semaphore["mode"] == "permits",
        "{semaphore}"
    );
    assert_eq!(semaphore["holders"][0]["permits"], 2);

    let table = place.verb(&format!("list {prefix}"));
    let head: Vec<&str> = table
        .stdout
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(
        head,
        [
            "NAME",
            "KIND",
            "MODE",
            "HOLDER",
            "FENCE",
            "HELD",
            "LEASE-LEFT",
            "WAITERS",
            "REASON"
        ]
    );
    assert_eq!(table.stdout.lines().count(), 3, "{table:?}");
    let free = place.verb(&format!("show {prefix}/free"));
    assert_eq!(
        (free.code, free.stdout),
        (
            0,
            format!("{prefix}/free is free\n  key: palisade:1:{{{prefix}%2ffree}}\n")
        )
    );
}

#[test]
fn all_formats_are_among_the_stores() {
    let stores = place().verb("stores --json");
    let lines: Vec<Value> = stores
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let redis: Vec<&Value> = lines
        .iter()
        .filter(|line| line["store"] == "redis")
        .collect();
    assert_eq!(
        redis
            .iter()
            .map(|line| line["format"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["palisade", "simple", "redisson", "redisson&fair=yes"]
    );
    assert!(
        redis[0]["order"] == "first come, first served"
            && redis[0]["wakes"] == "push"
            && redis[0]["list"] == true
    );
    assert!(
        redis[1]["order"] == "none" && redis[1]["wakes"] == "polling" && redis[1]["list"] == false
    );
    assert!(redis[2]["order"] == "none" && redis[2]["wakes"] == "push");
    assert!(redis[3]["order"] == "first come, first served" && redis[3]["wakes"] == "push");
    assert!(
        redis
            .iter()
            .all(|line| line["fence"] == "counter and clock" && line["detach"] == true),
        "{redis:?}"
    );
    let table = place().verb("stores").stdout;
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("redis") && line.contains("simple")),
        "{table}"
    );
}

#[test]
fn a_strange_key_does_not_hide_the_other_lines() {
    let prefix = name();
    let place = Place::of(format!("{}?prefix={prefix}", shared::redis().url()));
    let _held = place.holder("run sound");
    let key = format!("{prefix}:1:{{strange}}");
    for (content, error) in [
        (&["SET", &key, "theirs"][..], "no lock of ours"),
        (&["HSET", &key, "field", "theirs"], "no lock of ours"),
        (&["HSET", &key, "s", "2x"], "newer version"),
        (&["HSET", &key, "s", "nonsense"], "cannot be read"),
    ] {
        shared::redis().call(&["DEL", &key]);
        shared::redis().call(content);
        place.lists_beside_a_strange_line("sound", "strange", error);
    }
}
