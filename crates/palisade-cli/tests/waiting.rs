//! How a wait is shown, and a lock that cannot be renewed.

mod common;

use std::fs;
use std::time::Duration;

use common::terminal::OnTerminal;
use common::{Place, until};
use rustix::process::Signal;

#[test]
fn the_wait_is_shown_on_one_updating_line() {
    let place = Place::new();
    let held = place.holder("run --owner web-1 --reason nightly queue");
    let _first = place.waiter("run queue", "queue", "sleep 0.1", 1);
    let mut terminal = OnTerminal::start(&place, &place.run_of("run queue", "echo ran"));
    terminal.shows("waiting for queue: held by web-1 (nightly) for ");
    terminal.shows("s, 2nd in line");
    held.signal(Signal::TERM);
    terminal.shows("ran");
    assert_eq!(terminal.ends(), Some(0));
    let screen = terminal.screen();
    assert!(
        screen.matches("\x1b[2K").count() >= 2 && screen.matches('\n').count() == 1,
        "{screen:?}"
    );
    assert!(
        screen.ends_with("\r\x1b[2Kran\r\n"),
        "the line is cleared away before the command writes: {screen:?}"
    );
}

/// Longer, it would go on in the next line of the screen, and be there once more each second.
#[test]
fn the_updating_line_is_no_wider_than_the_terminal() {
    let place = Place::new();
    let held =
        place.holder("run --owner web-1.example.com:20766:backup --reason every-night queue");
    let mut terminal = OnTerminal::with_columns(&place, &place.run_of("run queue", "echo ran"), 40);
    terminal.shows("palisade: waiting for ");
    terminal.shows(", 1st in line");
    held.signal(Signal::TERM);
    assert_eq!(terminal.ends(), Some(0));
    terminal.shows("ran\r\n");
    let screen = terminal.screen();
    let widest = screen
        .split("\r\x1b[2K")
        .map(|line| line.trim_end().chars().count())
        .max();
    assert_eq!(widest, Some(39), "{screen:?}");
    assert_eq!(screen.matches('\n').count(), 1, "{screen:?}");
}

#[test]
fn acquire_shows_its_wait_as_run_does() {
    let place = Place::new();
    let held = place.holder("run --owner web-1 --reason nightly queue");
    let waiting = place.launch(place.command(["acquire", "-v", "--owner", "me", "queue"]));
    let says = |line: &str| until(line, || waiting.stderr().contains(line));
    says("waiting for queue: held by web-1 (nightly) for ");
    says(", 1st in line\n");
    let acquire = place.command(["acquire", "--owner", "me too", "queue"]);
    let mut terminal = OnTerminal::start(&place, &acquire);
    terminal.shows("waiting for queue: held by web-1 (nightly) for ");
    terminal.shows("s, 2nd in line");
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.end().code, 143);
    terminal.shows("s, 1st in line");
    held.signal(Signal::TERM);
    assert_eq!(terminal.ends(), Some(0));
    terminal.shows("\r\x1b[2K{");
}

#[test]
fn a_signal_ends_the_wait_of_acquire_and_leaves_no_place_in_line() {
    let place = Place::new();
    let _held = place.holder("run queue");
    for (signal, code) in [
        (Signal::INT, 130),
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        let waiting = place.launch(place.command(["acquire", "queue"]));
        until("it stands in line", || place.waiters("queue") == 1);
        waiting.signal(signal);
        let done = waiting.end();
        assert_eq!((done.code, done.stdout.as_str()), (code, ""), "{done:?}");
        assert_eq!(place.waiters("queue"), 0, "{signal:?}");
    }
}

#[test]
fn a_short_wait_is_not_shown() {
    let place = Place::new();
    let held = place.start(
        "run queue",
        "echo $$ > pid; while ! test -e go; do sleep 0.01; done",
    );
    place.written_pid("pid");
    let mut terminal = OnTerminal::start(&place, &place.run_of("run queue", "echo ran"));
    until("it waits", || place.waiters("queue") == 1);
    fs::write(place.path("go"), "").unwrap();
    assert_eq!((terminal.ends(), held.end().code), (Some(0), 0));
    until("all is shown", || terminal.screen() == "ran\r\n");
}

#[test]
fn a_quiet_wait_says_nothing_on_a_terminal() {
    let place = Place::new();
    let held = place.holder("run queue");
    let mut terminal = OnTerminal::start(&place, &place.run_of("-q run queue", "echo ran"));
    until("it waits, and has had time to say so", || {
        place.show("queue")["waiters"][0]["waited_ms"]
            .as_u64()
            .is_some_and(|waited| waited > 1500)
    });
    held.signal(Signal::TERM);
    assert_eq!(terminal.ends(), Some(0));
    until("all is shown", || terminal.screen() == "ran\r\n");
}

#[test]
fn a_verbose_wait_says_each_change_on_a_line_of_its_own() {
    let place = Place::new();
    let held = place.holder("run --owner web-1 --reason nightly queue");
    let first = place.waiter("run --owner web-2 queue", "queue", "exec sleep 300", 1);
    let waiting = place.start("run -v queue", "echo ran");
    let says = |line: &str| until(line, || waiting.stderr().contains(line));
    says("waiting for queue: held by web-1 (nightly) for ");
    says(", 2nd in line\n");
    held.signal(Signal::TERM);
    says("waiting for queue: held by web-2 for ");
    says(", 1st in line\n");
    first.signal(Signal::TERM);
    let done = waiting.end();
    assert_eq!((done.code, done.stdout.as_str()), (0, "ran\n"), "{done:?}");
    let lines = done
        .stderr
        .lines()
        .filter(|line| line.contains("waiting for"));
    assert_eq!(lines.count(), 2, "{done:?}");
    assert!(!done.stderr.contains('\x1b'), "{done:?}");
}

#[test]
fn a_lock_that_cannot_be_renewed_is_told_once_at_half_of_its_lease() {
    let place = Place::new();
    let script = "echo $$ > pid; while ! test -e go; do sleep 0.02; done; exit 3";
    let running = place.start("run --lease 16s cut-off", script);
    let verbose = place.start(
        "run -v --lease 16s explained",
        &script.replace("pid", "pid2"),
    );
    place.written_pid("pid");
    place.written_pid("pid2");
    let connection = place.connection();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    until("it warns", || running.stderr().contains("cut-off"));
    let warning = running.stderr();
    assert!(
        warning.contains("cannot be renewed") && warning.contains("of the lease left"),
        "{warning}"
    );
    let left = place_of_seconds(&warning);
    assert!((2.0..=8.0).contains(&left), "{warning}");
    until("the other one explains", || {
        verbose.stderr().contains("explained: a renewal failed")
    });
    connection.execute_batch("ROLLBACK").unwrap();
    until("it is renewed", || {
        running.stderr().contains("renewed again")
    });
    until("that too", || verbose.stderr().contains("renewed again"));
    fs::write(place.path("go"), "").unwrap();
    let (done, explained) = (running.end(), verbose.end());
    assert_eq!(
        (done.code, explained.code),
        (3, 3),
        "{done:?} {explained:?}"
    );
    assert_eq!(done.stderr.lines().count(), 2, "said once: {done:?}");
    assert!(
        explained.stderr.contains("explained: a renewal failed"),
        "{explained:?}"
    );
}

/// The seconds before "of the lease left".
fn place_of_seconds(text: &str) -> f64 {
    let before = text.split(" of the lease left").next().unwrap();
    let number = before.rsplit(' ').next().unwrap();
    number.trim_end_matches('s').parse().expect("seconds")
}

#[test]
fn nothing_is_said_of_a_lock_that_is_renewed_in_time() {
    let place = Place::new();
    let done = place.run("run -v --lease 1s well", "sleep 3");
    assert_eq!(done.code, 0);
    assert!(
        done.stderr
            .lines()
            .all(|line| line.contains("acquired well") || line.contains(" key ")),
        "{done:?}"
    );
}

/// The store has named the holder in its last answer, which may be seconds old.
#[test]
fn a_wait_that_ran_out_counts_how_long_the_name_is_held_to_its_end() {
    let place = Place::new();
    let _held = place.holder("run --owner web-1 queue");
    let done = place.run("run --wait 3s queue", "echo never");
    assert_eq!(done.code, 75, "{done:?}");
    let (_, rest) = done
        .stderr
        .split_once("held by web-1 for ")
        .expect("how long");
    let (held, _) = rest
        .split_once("; look closer")
        .expect("and how to look closer");
    let held = palisade::parse_duration(held).expect("a duration");
    assert!(held >= Duration::from_secs(3), "{done:?}");
}
