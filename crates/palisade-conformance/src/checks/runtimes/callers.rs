//! Every verb, from every kind of caller.

use std::thread;
use std::time::{Duration, Instant};

use palisade::blocking::Wait;
use palisade::{Client, ErrorKind, Guard, Mutex, Released};
use tokio::runtime::{Builder, Runtime};

use super::{Confirmed, aside, nothing_is_left, one_thread, rises, short_lease};
use crate::{Subject, Verdict, in_vain, needs, patience};

/// A hand-over is a push or a heartbeat. A waiter that needs longer was served by the end of a
/// lease, which is 30 s here.
const HAND_OVER: Duration = Duration::from_secs(8);

/// One kind of caller, which stays as it is while its locks are held.
struct Caller {
    label: &'static str,
    runtime: Option<Runtime>,
    polls: Polls,
}

/// Where a future is polled.
enum Polls {
    /// In a task.
    Task,
    /// In the body of `block_on`.
    Body,
    /// On a plain thread with an executor that knows nothing of tokio, inside the runtime's context
    /// if there is one.
    Thread,
}

impl Caller {
    fn all() -> Vec<Caller> {
        let build = |builder: &mut Builder| Some(builder.build().expect("a runtime"));
        let many = || build(Builder::new_multi_thread().worker_threads(2).enable_all());
        let bare = || build(&mut Builder::new_current_thread());
        let bare_worker = || build(Builder::new_multi_thread().worker_threads(1));
        let paused = || {
            build(
                Builder::new_current_thread()
                    .enable_all()
                    .start_paused(true),
            )
        };
        let caller = |label, runtime, polls| Caller {
            label,
            runtime,
            polls,
        };
        vec![
            caller("a task of many threads", many(), Polls::Task),
            caller("the body of many threads", many(), Polls::Body),
            caller("one thread", Some(one_thread()), Polls::Body),
            caller("a task of one thread", Some(one_thread()), Polls::Task),
            caller("one thread without I/O and timers", bare(), Polls::Body),
            caller(
                "a worker without I/O and timers",
                bare_worker(),
                Polls::Task,
            ),
            caller(
                "the body of a worker without I/O and timers",
                bare_worker(),
                Polls::Body,
            ),
            caller("one thread whose clock stands still", paused(), Polls::Body),
            caller("a plain thread", None, Polls::Thread),
            caller(
                "a plain thread that has entered a runtime",
                Some(one_thread()),
                Polls::Thread,
            ),
        ]
    }

    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        match (&self.runtime, &self.polls) {
            (Some(runtime), Polls::Task) => {
                runtime.block_on(runtime.spawn(future)).expect("no panic")
            }
            (Some(runtime), Polls::Body) => runtime.block_on(future),
            (runtime, _) => {
                let _inside = runtime.as_ref().map(Runtime::enter);
                future.wait()
            }
        }
    }

    fn try_acquire(&self, lock: &Mutex) -> Option<Guard> {
        let lock = lock.clone();
        self.run(async move { lock.try_acquire().await })
            .expect("an answer")
    }

    fn acquire(&self, lock: &Mutex) -> Guard {
        let lock = lock.clone();
        self.run(async move { lock.acquire().await })
            .expect("acquired")
    }

    fn release(&self, guard: Guard) {
        assert_eq!(
            self.run(guard.release()).expect("an answer"),
            Released::Done,
            "{}",
            self.label
        );
    }

    /// Try, time-out, wait in line, release and drop. The first request of a client is among them:
    /// it connects.
    fn every_verb(&self, client: &Client, outside: &Client, name: &str) {
        let lock = client.mutex(name);
        let held = self.try_acquire(&lock).expect("it is free");
        assert!(self.try_acquire(&lock).is_none(), "it is held");
        let waits = lock.clone();
        let error = self.run(async move {
            in_vain(Duration::from_millis(30), |wait| {
                waits.acquire_timeout(wait)
            })
            .await
        });
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let (next, dropped) = thread::scope(|scope| {
            let waiting = scope.spawn(|| (self.acquire(&lock), Instant::now()));
            stands_in_line(outside, name);
            let dropped = Instant::now();
            self.run(async move { drop(held) });
            let (next, at) = waiting.join().expect("no panic");
            (next, at.saturating_duration_since(dropped))
        });
        assert!(dropped < HAND_OVER, "the next one got in after {dropped:?}");
        let first = next.fence();
        self.release(next);
        let again = self.acquire(&lock);
        rises(client, first, &again);
        drop(again);
    }
}

fn stands_in_line(outside: &Client, name: &str) {
    let begun = Instant::now();
    let mut waits = !outside.capability().waiters_known;
    while !waits {
        thread::sleep(Duration::from_millis(2));
        waits = outside
            .show(name)
            .wait()
            .expect("an answer")
            .is_some_and(|line| line.waiters.len() == 1);
        assert!(begun.elapsed() < patience(), "not in line");
    }
}

/// Acquire, try, wait, time out, release and drop work from every kind of caller, and locks are
/// renewed while their runtime does nothing.
pub async fn every_kind_of_caller_will_do(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    let outside = subject.client();
    let lease = short_lease(subject);
    let callers = aside(Caller::all).await;
    let mut clients = Vec::new();
    let mut names = Vec::new();
    for number in 0..callers.len() {
        clients.push(subject.client());
        names.push(
            [format!("caller-{number}"), format!("kept-by-{number}")]
                .map(|name| subject.name(&name)),
        );
    }
    let (used, looks_on, asked) = (clients.clone(), outside.clone(), names.clone());
    let kept =
        aside(move || {
            let kept = callers.into_iter().zip(&used).zip(&asked).map(
                |((caller, client), [name, kept])| {
                    println!("{}", caller.label);
                    caller.every_verb(client, &looks_on, name);
                    let held = caller.acquire(&client.mutex(kept).lease(lease));
                    (caller, held)
                },
            );
            let kept: Vec<(Caller, Guard)> = kept.collect();
            // In none of these runtimes anything is polled now.
            let confirmed: Vec<Confirmed> =
                kept.iter().map(|(_, held)| Confirmed::of(held)).collect();
            let begun = Instant::now();
            for ((caller, held), confirmed) in kept.iter().zip(confirmed) {
                while !confirmed.again(held) {
                    assert!(
                        begun.elapsed() < patience(),
                        "not renewed: {}",
                        caller.label
                    );
                    thread::sleep(Duration::from_millis(5));
                }
            }
            for (caller, held) in kept {
                assert!(held.is_held(), "{}", caller.label);
                caller.release(held);
            }
        });
    kept.await;
    for (client, names) in clients.iter().zip(&names) {
        nothing_is_left(client, &outside, &names.each_ref().map(String::as_str)).await;
    }
    Verdict::Kept
}
