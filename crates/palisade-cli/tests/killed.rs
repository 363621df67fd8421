//! SIGKILL: of palisade, which takes the command's group with it, and of those who wait.

mod common;

use std::time::{Duration, Instant};

use common::{Place, is_alive, pid, until, within};
use rustix::process::Signal;

#[test]
fn the_whole_group_goes_with_palisade_and_the_next_comes_at_once() {
    let place = Place::new();
    let script = "sh -c 'trap \"\" TERM HUP; echo $$ > grandchild; while :; do sleep 0.05; done' & echo $$ > child; wait";
    let running = place.start("run killed", script);
    let (child, grandchild) = (place.written_pid("child"), place.written_pid("grandchild"));
    let next = place.waiter("run killed", "killed", "echo ran > ran", 1);
    let begun = Instant::now();
    running.kill();
    until("the child is gone", || !is_alive(child));
    until("the grandchild is gone", || !is_alive(grandchild));
    place.written("ran");
    // The lease was 30 s, and a waiter asks by itself only every few seconds.
    assert!(
        begun.elapsed() < Duration::from_millis(1500),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(next.end().code, 0);
}

/// `killall -9 palisade`, and an operator who kills by name: the watcher has another name, and
/// outlives them.
#[test]
fn the_whole_group_goes_with_all_processes_of_palisades_name() {
    let place = Place::new();
    let script =
        "sh -c 'trap \"\" TERM HUP; echo $$ > worker; while :; do sleep 0.05; done' & wait";
    let running = place.start("run by-name", script);
    let worker = place.written_pid("worker");
    let name =
        |process: u32| std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let ours = [running.pid()]
        .into_iter()
        .chain(children_of(running.pid()));
    let killed: Vec<u32> = ours
        .filter(|process| name(*process).trim() == "palisade")
        .collect();
    assert!(killed.contains(&running.pid()));
    // At once, as `killall` does: the first must not have time to tell the second.
    for process in &killed {
        rustix::process::kill_process(pid(*process), Signal::STOP).unwrap();
    }
    for process in &killed {
        rustix::process::kill_process(pid(*process), Signal::KILL).unwrap();
    }
    let gone = within(Duration::from_secs(10), || !is_alive(worker));
    if !gone {
        rustix::process::kill_process(pid(worker), Signal::KILL).unwrap();
    }
    assert!(
        gone,
        "the worker outlives palisade, whose processes {killed:?} were killed"
    );
}

#[test]
fn no_claim_is_admitted_before_the_killed_tree_is_gone() {
    let place = Place::new();
    // It has left the group, so it is not killed; but it may still be writing.
    let running = place.start("run detached", "setsid sleep 300 & echo $! > away; wait");
    let away = place.written_pid("away");
    let next = place.waiter("run detached", "detached", "echo ran > ran", 1);
    running.kill();
    let early = within(Duration::from_millis(2500), || place.path("ran").exists());
    assert!(is_alive(away), "this one was not in the group");
    let held = place.holders("detached");
    rustix::process::kill_process(pid(away), Signal::KILL).unwrap();
    assert!(!early, "a process of the tree was alive");
    assert_eq!(held, 1);
    let begun = Instant::now();
    place.written("ran");
    assert!(
        begun.elapsed() < Duration::from_millis(1500),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(next.end().code, 0);
}

#[test]
fn what_a_command_leaves_behind_does_not_keep_the_lock() {
    let place = Place::new();
    let done = place.run(
        "run daemon",
        "setsid sleep 300 > /dev/null 2>&1 & echo $! > away",
    );
    let away = place.written_pid("away");
    let free = place.run("run --try daemon", "true");
    let alive = is_alive(away);
    rustix::process::kill_process(pid(away), Signal::KILL).unwrap();
    assert_eq!(
        (done.code, free.code),
        (0, 0),
        "released, whichever process has inherited what"
    );
    assert!(
        alive,
        "a daemon is not killed when the run ends as it should"
    );
}

#[test]
fn a_killed_waiter_leaves_the_line_healthy() {
    let place = Place::new();
    let held = place.holder("run line");
    let first = place.waiter("run line", "line", "echo first >> order", 1);
    let second = place.waiter("run line", "line", "echo second >> order", 2);
    first.kill();
    until("the dead is not shown", || place.waiters("line") == 1);
    let begun = Instant::now();
    held.signal(Signal::TERM);
    assert_eq!(second.end().code, 0);
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(place.written("order"), "second");
}

#[test]
fn thirty_killed_waiters_hold_up_the_next_for_at_most_six_seconds() {
    let place = Place::new();
    let held = place.holder("run crowd");
    let crowd: Vec<_> = (0..30)
        .map(|_| place.start("run crowd", "echo dead >> order"))
        .collect();
    until("all stand in line", || place.waiters("crowd") == 30);
    let last = place.waiter("run crowd", "crowd", "echo last >> order", 31);
    crowd.into_iter().for_each(common::Running::kill);
    let begun = Instant::now();
    held.signal(Signal::TERM);
    assert_eq!(last.end().code, 0);
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(place.written("order"), "last");
}

#[test]
fn nothing_of_palisade_is_left_when_a_run_has_ended() {
    let place = Place::new();
    let running = place.start(
        "run tidy",
        "echo $PPID > parent; while ! test -e go; do sleep 0.02; done",
    );
    let parent = place.written_pid("parent");
    assert_eq!(parent, running.pid());
    let ours: Vec<u32> = children_of(parent);
    assert!(!ours.is_empty());
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(running.end().code, 0);
    until("all are gone", || !ours.iter().copied().any(is_alive));
    let left: Vec<_> = std::fs::read_dir(place.path("locks.db-clients"))
        .unwrap()
        .flatten()
        .map(|file| file.path())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

fn children_of(parent: u32) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))
        .unwrap_or_default();
    listed
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}
