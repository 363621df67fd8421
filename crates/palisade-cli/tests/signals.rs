//! Signals: passed on to the command's group while it runs; while palisade waits, a way out that
//! leaves nothing behind.

mod common;

use std::fs;

use common::{Place, until};
use rustix::process::Signal;

const ALL: [(Signal, &str); 6] = [
    (Signal::INT, "INT"),
    (Signal::TERM, "TERM"),
    (Signal::HUP, "HUP"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR1, "USR1"),
    (Signal::USR2, "USR2"),
];

#[test]
fn every_signal_is_passed_on_and_the_code_is_the_commands() {
    let place = Place::new();
    for (signal, name) in ALL {
        let script = format!(
            "trap 'echo got {name}; exit 41' {name}; echo ready > {name}; while :; do sleep 0.05; done"
        );
        let running = place.start(&format!("run passed-{name}"), &script);
        place.written(name);
        running.signal(signal);
        let done = running.end();
        assert_eq!(
            (done.code, done.stdout),
            (41, format!("got {name}\n")),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn a_command_that_does_not_mind_a_signal_ends_by_it() {
    let place = Place::new();
    for (signal, name) in ALL {
        let running = place.start(
            &format!("run ended-{name}"),
            &format!("ulimit -c 0; echo ready > {name}; exec sleep 60"),
        );
        place.written(name);
        running.signal(signal);
        assert_eq!(running.end().code, 128 + signal.as_raw(), "{name}");
    }
}

#[test]
fn the_whole_group_gets_the_signal() {
    let place = Place::new();
    let grandchild =
        "trap \"echo told > told; exit\" TERM; echo ready > ready; while :; do sleep 0.05; done";
    let running = place.start(
        "run group",
        &format!("trap : TERM; sh -c '{grandchild}' & wait; wait; exit 17"),
    );
    place.written("ready");
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, 17);
    assert_eq!(place.written("told"), "told");
}

#[test]
fn the_lock_is_held_until_the_command_has_ended() {
    let place = Place::new();
    let script = "trap 'echo told > told; while ! test -e go; do sleep 0.02; done; exit 5' TERM
        echo ready > ready; while :; do sleep 0.02; done";
    let running = place.start("run slow", script);
    place.written("ready");
    running.signal(Signal::TERM);
    place.written("told");
    assert_eq!(
        place.run("run --try slow", "true").code,
        75,
        "it is still held"
    );
    fs::write(place.path("go"), "").unwrap();
    assert_eq!(running.end().code, 5);
    assert_eq!(
        place.run("run --try slow", "true").code,
        0,
        "and now it is not"
    );
}

#[test]
fn a_waiter_leaves_at_once_and_leaves_no_place_in_line() {
    let place = Place::new();
    let _held = place.holder("run line");
    for (signal, code) in [
        (Signal::INT, 130),
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        let waiter = place.waiter("run line", "line", "echo ran", 1);
        waiter.signal(signal);
        let done = waiter.end();
        assert_eq!((done.code, done.stdout.as_str()), (code, ""), "{done:?}");
        // Not by show, which leaves out dead waiters: here the row itself must be gone.
        let count = "SELECT count(*) FROM entries WHERE name = 'line' AND fence IS NULL";
        let left: i64 = place
            .connection()
            .query_row(count, [], |row| row.get(0))
            .unwrap();
        assert_eq!((left, place.waiters("line")), (0, 0), "after {code}");
    }
}

#[test]
fn signals_for_the_command_say_nothing_to_a_waiter() {
    let place = Place::new();
    let held = place.holder("run usr");
    let mut waiter = place.waiter("run usr", "usr", "echo ran", 1);
    for signal in [Signal::USR1, Signal::USR2, Signal::USR1] {
        waiter.signal(signal);
    }
    assert_eq!(place.waiters("usr"), 1);
    assert!(!waiter.has_ended());
    held.signal(Signal::TERM);
    assert_eq!(held.end().code, 143);
    let done = waiter.end();
    assert_eq!((done.code, done.stdout.as_str()), (0, "ran\n"), "{done:?}");
}

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let place = Place::new();
    // As nohup does, and as a shell does with INT and QUIT for what it starts in the background.
    let script = format!(
        "trap '' HUP INT QUIT; exec {} --url {} run ignored -- sh -c 'kill -HUP $$; kill -INT $$; kill -QUIT $$; \
         echo survived; echo ready > ready; while ! test -e go; do sleep 0.02; done; exit 3'",
        env!("CARGO_BIN_EXE_palisade"),
        place.url()
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(place.folder());
    let mut running = place.launch(command);
    until("the command has survived or died", || {
        place.path("ready").exists() || running.has_ended()
    });
    if !running.has_ended() {
        [Signal::HUP, Signal::INT, Signal::QUIT]
            .into_iter()
            .for_each(|signal| running.signal(signal));
    }
    fs::write(place.path("go"), "").unwrap();
    let done = running.end();
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (3, "survived\n"),
        "{done:?}"
    );
}
