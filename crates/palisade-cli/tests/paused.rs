//! Palisade itself is stopped (SIGSTOP): it can neither renew nor stop the command. Its watcher
//! process ends the command's group at the deadline.

mod common;

use common::{Place, is_alive, until};
use rustix::process::Signal;

/// Ignores TERM, and so does the process that it starts: only KILL ends them.
const STUBBORN: &str = "trap '' TERM; sh -c 'echo $$ > grandchild; while :; do sleep 0.02; done' &
    echo $$ > child; while :; do sleep 0.02; done";

/// Says whether a process of the holder still runs. One that has ended stays as a zombie until its
/// parent goes on.
const LOOK: &str = "for pid in $(cat child grandchild); do
    if grep -q '^State:.[^ZX]' /proc/$pid/status; then echo overlap; fi; done; echo looked";

#[test]
fn a_stopped_palisade_leaves_no_overlap_with_the_next_holder() {
    let place = Place::new();
    let running = place.start("run --lease 3s paused", STUBBORN);
    let (child, grandchild) = (place.written_pid("child"), place.written_pid("grandchild"));
    let next = place.waiter("run paused", "paused", LOOK, 1);
    running.signal(Signal::STOP);
    let next = next.end();
    assert_eq!(
        (next.code, next.stdout.as_str()),
        (0, "looked\n"),
        "{next:?}"
    );
    assert!(!is_alive(child) && !is_alive(grandchild));
    running.signal(Signal::CONT);
    let done = running.end();
    assert_eq!(done.code, 79, "{done:?}");
    assert!(done.stderr.contains("paused is lost"), "{done:?}");
}

/// The server ends the session of a holder that is stopped, after its lease and not before.
#[cfg(all(feature = "postgres", feature = "mysql"))]
#[test]
fn a_stopped_holder_of_a_session_lock_leaves_no_overlap() {
    use palisade_testkit::shared;
    for url in [shared::postgres().url(), shared::mariadb().url()] {
        let place = Place::of(format!("{url}?format=session"));
        let name = shared::name("paused");
        let running = place.start(&format!("run --lease 3s {name}"), STUBBORN);
        let (child, grandchild) = (place.written_pid("child"), place.written_pid("grandchild"));
        let next = place.start(&format!("run -v {name}"), LOOK);
        until("it waits", || next.stderr().contains("waiting for"));
        running.signal(Signal::STOP);
        let next = next.end();
        assert_eq!(
            (next.code, next.stdout.as_str()),
            (0, "looked\n"),
            "{next:?}"
        );
        assert!(!is_alive(child) && !is_alive(grandchild));
        running.signal(Signal::CONT);
        let done = running.end();
        assert_eq!(done.code, 79, "{done:?}");
    }
}

#[test]
fn a_stopped_palisade_says_so() {
    let place = Place::new();
    let runs: Vec<_> = (0..6)
        .map(|number| {
            let running = place.start(
                &format!("run --lease 1s paused-{number}"),
                &format!("echo $$ > child-{number}; exec sleep 300"),
            );
            let child = place.written_pid(&format!("child-{number}"));
            running.signal(Signal::STOP);
            (running, child)
        })
        .collect();
    for (_, child) in &runs {
        until("the watcher has killed it", || !is_alive(*child));
    }
    for number in 0..runs.len() {
        // Only then does the clock, too, say that it is lost.
        until("its lease is over", || {
            place.holders(&format!("paused-{number}")) == 0
        });
    }
    for (number, (running, _)) in runs.into_iter().enumerate() {
        running.signal(Signal::CONT);
        let done = running.end();
        let said = format!(
            "palisade: paused-{number} is lost (palisade was stopped, and could not renew it); the command was killed\n"
        );
        assert_eq!((done.code, done.stderr), (79, said));
    }
}

#[test]
fn a_run_that_outlasts_its_lease_is_left_alone() {
    let place = Place::new();
    let done = place.run("run --lease 1s renewed", "sleep 4; echo whole");
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (0, "whole\n"),
        "{done:?}"
    );
    assert_eq!(done.stderr, "");
}

#[test]
fn a_command_that_is_to_go_on_without_the_lock_is_not_killed() {
    let place = Place::new();
    let running = place.start(
        "run --lease 1s --on-lost ignore ignored",
        "echo $$ > child; while ! test -e go; do sleep 0.02; done; exit 6",
    );
    let child = place.written_pid("child");
    running.signal(Signal::STOP);
    assert_eq!(place.run("run --wait 20s ignored", "true").code, 0);
    assert!(is_alive(child));
    std::fs::write(place.path("go"), "").unwrap();
    running.signal(Signal::CONT);
    assert_eq!(running.end().code, 6);
}

#[test]
fn a_leader_that_was_stopped_campaigns_again_and_is_watched_again() {
    let place = Place::new();
    let running = place.start(
        "elect --lease 2s lead",
        "echo $$ >> leaders; exec sleep 300",
    );
    let leaders = || -> Vec<u32> {
        let text = std::fs::read_to_string(place.path("leaders")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    for turn in 1..=2 {
        until("it leads", || leaders().len() == turn);
        let child = leaders()[turn - 1];
        running.signal(Signal::STOP);
        until("the watcher has killed it", || !is_alive(child));
        running.signal(Signal::CONT);
    }
    until("it leads once more", || leaders().len() == 3);
    running.signal(Signal::TERM);
    let done = running.end();
    assert_eq!(done.code, 143, "{done:?}");
    assert_eq!(
        done.stderr.matches("campaigning again").count(),
        2,
        "{done:?}"
    );
}

/// Starts palisade many times and stops it after a little while, also inside of a verb. Each name is
/// free when the lease is over, and the server has no transaction open.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn stopped_at_any_moment(place: &Place, open_transactions: impl Fn() -> String) {
    assert_eq!(place.run("run warm", "true").code, 0);
    let stopped: Vec<_> = (0..12)
        .map(|number| {
            let running = place.start(&format!("run --lease 1s paused-{number}"), "exec sleep 300");
            // From before the first connection to after the grant.
            std::thread::sleep(std::time::Duration::from_millis(8 * number));
            running.signal(Signal::STOP);
            running
        })
        .collect();
    for number in 0..stopped.len() {
        let done = place.run(&format!("run --wait 30s paused-{number}"), "echo in");
        assert_eq!((done.code, done.stdout.as_str()), (0, "in\n"), "{done:?}");
    }
    until("no transaction is open", || open_transactions() == "0");
    for running in stopped {
        running.kill();
    }
}

#[cfg(feature = "postgres")]
#[test]
fn a_palisade_stopped_inside_a_verb_holds_up_none_in_postgres() {
    let server = palisade_testkit::postgres::Postgres::start();
    stopped_at_any_moment(&Place::of(server.url()), || {
        server.sql(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'locker' AND state <> 'idle'",
        )
    });
}

#[cfg(feature = "mysql")]
#[test]
fn a_palisade_stopped_inside_a_verb_holds_up_none_in_mariadb() {
    let server = palisade_testkit::mariadb::MariaDb::start();
    stopped_at_any_moment(&Place::of(server.url()), || {
        // The server shows the same again to those who ask sooner.
        std::thread::sleep(std::time::Duration::from_millis(200));
        server.sql("SELECT COUNT(*) FROM information_schema.innodb_trx")
    });
}
