//! Several names in one run: all or nothing, and no deadlock.

mod common;

use std::fs;

use common::{Place, until};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn all_names_are_held_while_the_command_runs() {
    let place = Place::new();
    let script = "echo \"$PALISADE_NAME $PALISADE_FENCE $PALISADE_FENCES\"; echo ready > ready
        while ! test -e go; do sleep 0.02; done; exit 4";
    let running = place.start("run b --also a --also c/d", script);
    place.written("ready");
    for name in ["a", "b", "c/d"] {
        assert_eq!(place.holders(name), 1, "{name}");
    }
    let fences: Vec<String> = ["a", "b", "c/d"]
        .iter()
        .map(|name| place.fence(name))
        .collect();
    fs::write(place.path("go"), "").unwrap();
    let done = running.end();
    assert_eq!((done.code, done.stderr.as_str()), (4, ""), "{done:?}");
    let words: Vec<&str> = done.stdout.trim().splitn(3, ' ').collect();
    assert_eq!(words[..2], ["b", fences[1].as_str()]);
    let told: Value = serde_json::from_str(words[2]).expect("JSON");
    assert_eq!(
        told,
        serde_json::json!({"a": fences[0], "b": fences[1], "c/d": fences[2]})
    );
    assert!(place.list().is_empty());
}

#[test]
fn a_run_inside_has_no_fences_of_the_run_around_it() {
    let place = Place::new();
    let inner = format!(
        "{} --url {} run c -- sh -c 'echo \"<${{PALISADE_FENCES-none}}>\"'",
        env!("CARGO_BIN_EXE_palisade"),
        place.url()
    );
    assert_eq!(place.run("run a --also b", &inner).stdout, "<none>\n");
}

#[test]
fn all_or_nothing() {
    let place = Place::new();
    let held = place.holder("run --owner web-1 --reason nightly b");
    let done = place.run("run --try a --also b --also c", "echo ran");
    assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
    assert!(
        done.stderr.contains("b is held by web-1 (nightly)"),
        "{done:?}"
    );
    assert_eq!((place.holders("a"), place.holders("c")), (0, 0));
    let done = place.run("run --wait 300ms a --also b", "echo ran");
    assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
    assert!(
        done.stderr.contains("b is held by web-1 (nightly)"),
        "{done:?}"
    );
    let waiting = place.waiter("run a --also b", "b", "echo ran", 1);
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.end().code, 143);
    assert_eq!((place.holders("a"), place.waiters("b")), (0, 0));
    drop(held);
}

#[test]
fn opposite_orders_do_not_wait_for_each_other() {
    let place = Place::new();
    let runs: Vec<_> = (0..8)
        .map(|number| {
            let line = ["run a --also b", "run b --also a"][number % 2];
            place.start(line, "echo in >> log; sleep 0.05; echo out >> log")
        })
        .collect();
    for run in runs {
        assert_eq!(run.end().code, 0);
    }
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert_eq!(log, "in\nout\n".repeat(8));
}

#[test]
fn one_lost_is_all_lost() {
    let place = Place::new();
    let running = place.start("run a --also b", "echo $$ > pid; exec sleep 300");
    place.written_pid("pid");
    let fence = place.fence("b");
    assert_eq!(
        place.verb(&format!("release b --fence {fence} --yes")).code,
        0
    );
    let done = running.end();
    assert_eq!(done.code, 79, "{done:?}");
    until("the other is given back", || place.holders("a") == 0);
}

#[test]
fn readers_of_several_names() {
    let place = Place::new();
    let _reader = place.holder("run --shared b");
    assert_eq!(place.run("run --try --shared a --also b", "true").code, 0);
    assert_eq!(place.run("run --try a --also b", "true").code, 75);
}

#[test]
fn a_command_that_cannot_start_gives_all_back() {
    let place = Place::new();
    let mut command = place.command(["run", "--min-hold", "1h", "a", "--also", "b"]);
    command.args(["--", "no-such-command"]);
    assert_eq!(place.finish(command).code, 127);
    assert_eq!(place.run("run --try a --also b", "true").code, 0);
}

#[test]
fn what_cannot_be_combined_is_64() {
    let place = Place::new();
    for line in [
        "run a --also a -- true",
        "run a --also b --also b -- true",
        "run --limit 2 a --also b -- true",
        "run --once-per 1h a --also b -- true",
        "run a --also  -- true",
        "acquire a --also b",
        "elect a --also b -- true",
    ] {
        let done = place.verb(line);
        assert_eq!(done.code, 64, "{line}: {done:?}");
        assert!(!done.stderr.is_empty());
    }
    let done = place.verb("acquire a --also b");
    assert!(
        done.stderr.contains("run"),
        "it says where it works: {done:?}"
    );
}
