//! The options of `run`: readers, permits, periods, and the order of the line.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::Place;
use rustix::process::Signal;

/// Says that it runs, and goes on until it is let go.
fn until_let_go(name: &str) -> String {
    format!("echo ready > {name}; while ! test -e go; do sleep 0.02; done")
}

#[test]
fn readers_run_together_and_keep_writers_out() {
    let place = Place::new();
    let readers: Vec<_> = ["a", "b"]
        .map(|name| place.start("run --shared book", &until_let_go(name)))
        .into_iter()
        .collect();
    place.written("a");
    place.written("b");
    assert_eq!(place.holders("book"), 2);
    for writer in [
        "run --try book",
        "run --try --exclusive book",
        "run -n -x book",
    ] {
        assert_eq!(place.run(writer, "echo ran").code, 75, "{writer}");
    }
    assert_eq!(place.run("run -s --try book", "true").code, 0);
    fs::write(place.path("go"), "").unwrap();
    readers
        .into_iter()
        .for_each(|reader| assert_eq!(reader.end().code, 0));
    assert_eq!(place.run("run --try --exclusive book", "true").code, 0);
}

#[test]
fn a_limit_of_two_admits_two() {
    let place = Place::new();
    let two: Vec<_> = ["a", "b"]
        .map(|name| place.start("run --limit 2 slots", &until_let_go(name)))
        .into_iter()
        .collect();
    place.written("a");
    place.written("b");
    let third = place.waiter("run --limit 2 slots", "slots", "echo third", 1);
    assert_eq!(place.run("run --limit 2 --try slots", "echo ran").code, 75);
    assert_eq!(place.holders("slots"), 2);
    fs::write(place.path("go"), "").unwrap();
    two.into_iter()
        .for_each(|run| assert_eq!(run.end().code, 0));
    assert_eq!(third.end().stdout, "third\n");
}

#[test]
fn permits_count() {
    let place = Place::new();
    let three = place.holder("run --limit 4 --permits 3 slots");
    assert_eq!(
        place
            .run("run --limit 4 --permits 2 --try slots", "true")
            .code,
        75
    );
    assert_eq!(
        place
            .run("run --limit 4 --permits 1 --try slots", "true")
            .code,
        0
    );
    assert_eq!(place.show("slots")["holders"][0]["permits"], 3);
    drop(three);
    assert_eq!(
        place
            .run("run --limit 4 --permits 4 --wait 20s slots", "true")
            .code,
        0
    );
}

#[test]
fn min_hold_keeps_the_name_closed_after_the_command() {
    let place = Place::new();
    let begun = Instant::now();
    assert_eq!(place.run("run --min-hold 3s closed", "true").code, 0);
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "it does not wait for that itself"
    );
    let early = place.run("run --try closed", "echo ran");
    if begun.elapsed() < Duration::from_secs(3) {
        assert_eq!((early.code, early.stdout.as_str()), (75, ""), "{early:?}");
    }
    assert_eq!(place.run("run --wait 30s closed", "true").code, 0);
    assert!(
        begun.elapsed() >= Duration::from_millis(2900),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn once_per_runs_again_when_the_period_is_over() {
    let place = Place::new();
    assert_eq!(
        place.run("run --once-per 1500ms again", "echo ran").stdout,
        "ran\n"
    );
    common::until("it runs again", || {
        place.run("run --once-per 1500ms again", "echo ran").stdout == "ran\n"
    });
}

#[test]
fn the_line_is_first_come_first_served() {
    let place = Place::new();
    let held = place.holder("run line");
    let waiters: Vec<_> = (1..=6)
        .map(|number| {
            place.waiter(
                "run line",
                "line",
                &format!("echo {number} >> order"),
                number,
            )
        })
        .collect();
    held.signal(Signal::TERM);
    assert_eq!(held.end().code, 143);
    waiters
        .into_iter()
        .for_each(|waiter| assert_eq!(waiter.end().code, 0));
    assert_eq!(
        fs::read_to_string(place.path("order")).unwrap(),
        "1\n2\n3\n4\n5\n6\n"
    );
}

#[test]
fn two_commands_never_run_at_once_and_fences_grow() {
    let place = Place::new();
    let script = "mkdir busy || exit 99; echo $PALISADE_FENCE >> fences; rmdir busy";
    let runs: Vec<_> = (0..12)
        .map(|_| place.start("run counter", script))
        .collect();
    runs.into_iter()
        .for_each(|run| assert_eq!(run.end().code, 0));
    let fences = fs::read_to_string(place.path("fences")).unwrap();
    let fences: Vec<u64> = fences.lines().map(|fence| fence.parse().unwrap()).collect();
    assert!(
        fences.len() == 12 && fences.is_sorted_by(|a, b| a < b),
        "{fences:?}"
    );
}
