//! A lock that is lost while the command runs: the command is stopped, its whole group, before the
//! store can admit another.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Done, Place, is_alive, until, within};
use rustix::time::{ClockId, clock_gettime};

/// Does what it is there for until it is killed, and minds no TERM.
const STUBBORN: &str = "trap '' TERM; echo $$ > pid; while :; do sleep 0.02; done";

/// Forces a name open, as an operator would.
#[track_caller]
fn force_open(place: &Place, name: &str) -> Done {
    let done = place.verb(&format!(
        "release {name} --fence {} --yes",
        place.fence(name)
    ));
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    done
}

#[test]
fn the_command_gets_term_at_once_and_the_code_is_79() {
    let place = Place::new();
    let running = place.start(
        "run told",
        "trap 'echo told; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done",
    );
    place.written_pid("pid");
    let begun = Instant::now();
    force_open(&place, "told");
    let done = running.end();
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (79, "told\n"),
        "{done:?}"
    );
    // The next renewal would have been ten seconds later: it was pushed.
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    assert!(done.stderr.contains("told is lost"), "{done:?}");
}

#[test]
fn the_code_for_lost_can_be_chosen() {
    let place = Place::new();
    for code in [0, 9] {
        let running = place.start(
            &format!("run --lost-exit-code {code} n{code}"),
            "echo $$ > pid; exec sleep 60",
        );
        place.written_pid("pid");
        fs::remove_file(place.path("pid")).unwrap();
        force_open(&place, &format!("n{code}"));
        assert_eq!(running.end().code, code);
    }
}

#[test]
fn a_command_that_minds_no_term_is_killed_after_the_grace() {
    let place = Place::new();
    let running = place.start("run --lease 20s --kill-after 1s stubborn", STUBBORN);
    let child = place.written_pid("pid");
    let begun = Instant::now();
    force_open(&place, "stubborn");
    let done = running.end();
    let took = begun.elapsed();
    assert_eq!(done.code, 79, "{done:?}");
    assert!(!is_alive(child));
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(8),
        "{took:?}"
    );
}

#[test]
fn a_grandchild_that_minds_no_term_is_gone_before_palisade_is() {
    let place = Place::new();
    let script = format!(
        "( {} ) & echo $$ > child; wait",
        STUBBORN.replace("$$ > pid", "$(exec sh -c 'echo $PPID') > pid")
    );
    let running = place.start("run --lease 20s --kill-after 1s family", &script);
    let (child, grandchild) = (place.written_pid("child"), place.written_pid("pid"));
    assert!(child != grandchild && is_alive(child) && is_alive(grandchild));
    force_open(&place, "family");
    let done = running.end();
    assert!(
        !is_alive(grandchild),
        "alive after palisade has said that it is stopped"
    );
    assert!(!is_alive(child));
    assert_eq!(done.code, 79, "{done:?}");
}

#[test]
fn on_lost_kill_does_not_ask_first() {
    let place = Place::new();
    let script = "trap 'echo told > told' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let running = place.start("run --on-lost kill killed", script);
    let child = place.written_pid("pid");
    force_open(&place, "killed");
    let done = running.end();
    assert_eq!(done.code, 79, "{done:?}");
    assert!(!is_alive(child) && !place.path("told").exists());
}

#[test]
fn on_lost_ignore_lets_the_command_go_on_and_says_so() {
    let place = Place::new();
    let script = "echo $$ > pid; while ! test -e go; do sleep 0.02; done; exit 5";
    let running = place.start("run --on-lost ignore ignored", script);
    let child = place.written_pid("pid");
    force_open(&place, "ignored");
    until("it says so", || {
        running.stderr().contains("ignored is lost")
    });
    assert_eq!(
        place.run("run --try ignored", "true").code,
        0,
        "another may have it"
    );
    assert!(is_alive(child));
    fs::write(place.path("go"), "").unwrap();
    let done = running.end();
    assert_eq!(done.code, 5, "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "said once: {done:?}");
}

#[test]
fn max_hold_stops_the_command_with_79() {
    let place = Place::new();
    let begun = Instant::now();
    let done = place.run("run --max-hold 1s longest", "exec sleep 60");
    assert_eq!(done.code, 79, "{done:?}");
    assert!(
        begun.elapsed() >= Duration::from_millis(900) && begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(place.run("run --try longest", "true").code, 0, "it is free");
    assert_eq!(
        place.run("run --max-hold 30s longest", "exit 4").code,
        4,
        "one that is quicker is not stopped"
    );
}

#[test]
fn the_lock_is_held_while_max_hold_stops_the_command() {
    let place = Place::new();
    let script = "trap 'echo told > told; while ! test -e go; do sleep 0.02; done; exit 0' TERM
        echo $$ > pid; while :; do sleep 0.02; done";
    let running = place.start("run --max-hold 500ms stopping", script);
    place.written("told");
    let busy = place.run("run --try stopping", "true");
    fs::write(place.path("go"), "").unwrap();
    assert_eq!(busy.code, 75, "the command is still there: {busy:?}");
    let done = running.end();
    assert_eq!(done.code, 79, "{done:?}");
    assert!(done.stderr.contains("longest hold"), "{done:?}");
    assert_eq!(place.run("run --try stopping", "true").code, 0);
}

#[test]
fn max_hold_frees_the_name_of_a_command_that_is_not_stopped() {
    let place = Place::new();
    let script = "echo $$ > pid; while ! test -e go; do sleep 0.02; done; exit 8";
    let running = place.start(
        "run --lease 2s --max-hold 500ms --on-lost ignore free",
        script,
    );
    let child = place.written_pid("pid");
    assert_eq!(place.run("run --wait 20s free", "true").code, 0);
    assert!(is_alive(child));
    fs::write(place.path("go"), "").unwrap();
    assert_eq!(running.end().code, 8);
}

/// Milliseconds of CLOCK_BOOTTIME, on which the file's times are.
fn boottime_ms() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

#[test]
fn a_lease_that_cannot_be_renewed_stops_the_whole_group_before_the_next_is_admitted() {
    let place = Place::new();
    let script = "trap 'echo told > told; exit 0' TERM
        sh -c \"trap '' TERM; echo \\$\\$ > pid; while :; do sleep 0.02; done\" &
        echo $$ > child; while :; do sleep 0.02; done";
    let running = place.start("run --lease 3s cut-off", script);
    let (child, grandchild) = (place.written_pid("child"), place.written_pid("pid"));
    let connection = place.connection();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    // When the store may admit another. The test holds the file, so no renewal can move it.
    let expiry_ns: i64 = connection
        .query_row(
            "SELECT expiry_ns - base_ns FROM entries, meta WHERE name = 'cut-off'",
            [],
            |row| row.get(0),
        )
        .expect("it holds");
    let expiry = expiry_ns / 1_000_000;
    assert!(
        within(Duration::from_secs(10), || !is_alive(child)),
        "told to stop"
    );
    assert!(place.path("told").exists(), "by TERM");
    let (ended, stubborn) = (boottime_ms(), is_alive(grandchild));
    // TERM comes 100 ms and the grace, a quarter of the lease, before the lock is no longer ours.
    assert!(
        ended < expiry - 300,
        "told to stop only {} ms before another can be admitted",
        expiry - ended
    );
    assert!(stubborn, "the grace is over early");
    assert!(within(Duration::from_secs(10), || !is_alive(grandchild)));
    let gone = boottime_ms();
    assert!(
        gone < expiry,
        "the group was alive {} ms after another could have been admitted",
        gone - expiry
    );
    assert!(
        ended >= expiry - 3000 / 4 - 400,
        "told {} ms before the end, which is too early",
        expiry - ended
    );
    connection.execute_batch("ROLLBACK").unwrap();
    let done = running.end();
    assert_eq!(done.code, 79, "{done:?}");
    assert!(done.stderr.contains("could not be renewed"), "{done:?}");
}

#[test]
fn once_term_is_sent_a_late_renewal_does_not_save_the_run() {
    let place = Place::new();
    let script = "trap 'echo told > told; while ! test -e go; do sleep 0.01; done; exit 0' TERM
        echo $$ > pid; while :; do sleep 0.02; done";
    let running = place.start("run --lease 4s late", script);
    place.written_pid("pid");
    let connection = place.connection();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    place.written("told");
    connection.execute_batch("ROLLBACK").unwrap();
    fs::write(place.path("go"), "").unwrap();
    let done = running.end();
    assert_eq!(done.code, 79, "{done:?}");
}

#[test]
fn a_lease_is_renewed_while_the_command_runs() {
    let place = Place::new();
    let done = place.run("run --lease 1s renewed", "sleep 2.5; exit 6");
    assert_eq!((done.code, done.stderr.as_str()), (6, ""), "{done:?}");
}
