//! The client's threads end by themselves. Alone in its binary, because it counts threads.

use std::time::{Duration, Instant};

use palisade::blocking::Wait;

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task")
        .expect("proc")
        .flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("palisade")).count()
}

/// A thread takes its name a moment after it has started, and ends a moment after it was told.
fn come_to(count: usize) {
    let begun = Instant::now();
    while threads() != count {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{} threads and not {count}",
            threads()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_threads_per_client_and_none_after_it() {
    assert_eq!(threads(), 0);
    let locks = palisade::connect("memory:").wait().expect("a client");
    let lock = locks.mutex("a");
    assert_eq!(threads(), 0, "connecting starts nothing");
    let guards: Vec<_> = (0..100)
        .map(|number| {
            locks
                .mutex(format!("{number}"))
                .acquire()
                .wait()
                .expect("acquired")
        })
        .collect();
    come_to(2);
    drop(locks);
    drop(lock);
    assert!(guards.iter().all(palisade::Guard::is_held));
    assert_eq!(threads(), 2, "guards are still held");
    drop(guards);
    come_to(0);
}
