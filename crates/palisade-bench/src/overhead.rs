//! The cost that every store pays: one acquire and release on `memory:`, uncontended, beside the
//! bare line without a client.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use palisade::blocking::Wait;
use palisade::line::{Line, StoreTime};
use palisade::store::{Answer, Claim, ClaimId, Ending, Kind, Mode};
use palisade::{Client, Name};

use crate::figure;

const ROUNDS: u32 = 300_000;
const RUNS: usize = 5;

pub(crate) fn run() -> ExitCode {
    let raw = median(bare_line);
    let ours = median(through_the_client);
    let hand_off = median_hand_off();
    figure("bare line, claim + release", raw * 1e9, "ns");
    figure("memory:, acquire + release", ours * 1e9, "ns");
    figure("ratio", ours / raw, "×");
    figure(
        "memory:, hand-off between two threads, p50",
        hand_off * 1e6,
        "µs",
    );
    ExitCode::SUCCESS
}

fn median(measure: fn() -> Duration) -> f64 {
    let mut runs: Vec<Duration> = (0..RUNS).map(|_| measure()).collect();
    runs.sort();
    runs[RUNS / 2].as_secs_f64() / f64::from(ROUNDS)
}

fn bare_line() -> Duration {
    let mut line = Line::default();
    let mut claim = Claim {
        id: ClaimId::from_bits(0),
        name: Name::new("bench").expect("a good name"),
        kind: Kind::Mutex,
        mode: Mode::Exclusive,
        owner: "bench".into(),
        reason: None,
        value: None,
        lease: Duration::from_secs(30),
        queue: true,
        min_hold: None,
        once_per: None,
        detachable: false,
        exact_lease: false,
    };
    let mut told = Vec::new();
    let begun = Instant::now();
    for round in 0..ROUNDS {
        claim.id = ClaimId::from_bits(round.into());
        let now = StoreTime::at(begun.elapsed());
        let Ok(Answer::Granted(grant)) = line.claim(now, &claim, &mut told) else {
            panic!("not granted")
        };
        let _ = line.release(
            StoreTime::at(begun.elapsed()),
            claim.id,
            Some(grant.fence),
            Ending::Release,
            &mut told,
        );
    }
    begun.elapsed()
}

fn through_the_client() -> Duration {
    let locks = Client::connect("memory:").expect("memory: is always there");
    let lock = locks.mutex("bench");
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let guard = lock.acquire().wait().expect("acquired");
        let _ = guard.release().wait().expect("released");
    }
    begun.elapsed()
}

/// Two threads that take the lock in turns: from the call of release to the other's acquire.
fn median_hand_off() -> f64 {
    const TURNS: usize = 2_000;
    let locks = Client::connect("memory:").expect("memory: is always there");
    let released = std::sync::Arc::new(std::sync::Mutex::new(Instant::now()));
    let worker = || {
        let (lock, released) = (locks.mutex("hand-off"), std::sync::Arc::clone(&released));
        std::thread::spawn(move || {
            let mut times = Vec::with_capacity(TURNS);
            for _ in 0..TURNS {
                let guard = lock.acquire().wait().expect("acquired");
                times.push(released.lock().expect("no panic").elapsed());
                // Long enough for the other thread to queue.
                std::thread::sleep(Duration::from_micros(200));
                *released.lock().expect("no panic") = Instant::now();
                let _ = guard.release().wait().expect("released");
            }
            times
        })
    };
    let (one, two) = (worker(), worker());
    let mut times = one.join().expect("no panic");
    times.extend(two.join().expect("no panic"));
    times.sort();
    times[times.len() / 2].as_secs_f64()
}
