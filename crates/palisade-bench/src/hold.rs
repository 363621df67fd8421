//! Many guards held by one client with a 10 s lease: none lost, little CPU, little memory.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use palisade::blocking::Wait;
use palisade::{Client, Guard};

use crate::{figure, usage};

const LEASE: Duration = Duration::from_secs(10);

pub(crate) fn run(guards: usize, seconds: usize) -> ExitCode {
    let locks = Client::connect("memory:").expect("memory: is always there");
    // Warm: threads, allocator and tables are not the guards' memory.
    drop(hold(&locks, 10));
    let before = usage::resident_bytes();
    let held = hold(&locks, guards);
    let bytes = usage::resident_bytes().saturating_sub(before);
    let (cpu, begun) = (usage::cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds as u64));
    let share = (usage::cpu() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    let lost = held.iter().filter(|guard| !guard.is_held()).count();
    let after = usage::resident_bytes().saturating_sub(before);
    figure("guards held", guards as f64, "");
    figure(
        "seconds, with a lease of 10 s",
        begun.elapsed().as_secs_f64(),
        "s",
    );
    figure("guards lost", lost as f64, "");
    figure("CPU, of one core", share * 100.0, "%");
    figure(
        "memory per guard, when acquired",
        bytes as f64 / guards as f64,
        "bytes",
    );
    figure(
        "memory per guard, at the end",
        after as f64 / guards as f64,
        "bytes",
    );
    if lost == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn hold(locks: &Client, guards: usize) -> Vec<Guard> {
    (0..guards)
        .map(|number| {
            locks
                .mutex(format!("hold/{number}"))
                .lease(LEASE)
                .acquire()
                .wait()
                .expect("acquired")
        })
        .collect()
}
