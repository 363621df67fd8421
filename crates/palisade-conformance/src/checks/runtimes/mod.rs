//! The runtime that polls a claim, and the fate of the claim when that runtime ends, hangs, or can
//! do nothing.
//!
//! Nothing of the client depends on the caller's runtime: sockets, timers and tasks are the
//! client's. So every kind of caller will do, and a caller that leaves or is never polled again
//! costs no other request anything.

mod callers;
mod ending;
mod unpolled;

use std::panic;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub use callers::every_kind_of_caller_will_do;
pub use ending::{
    a_claim_dropped_after_any_time_is_withdrawn, a_claim_outlives_its_runtime,
    a_runtime_that_ends_takes_only_its_own_tasks, an_ending_thread_releases,
};
use palisade::store::FenceSource;
use palisade::{Client, Fence, Guard, Mutex, Released, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
pub use unpolled::{
    a_blocked_runtime_keeps_its_locks, an_unpolled_release_ends_with_its_lease,
    an_unpolled_waiter_keeps_its_place, unpolled_claims_hold_up_no_other,
};

use super::mutex::free;
use crate::{Subject, eventually};

/// A claim in flight.
type Acquiring = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

fn acquiring(lock: &Mutex) -> Acquiring {
    let lock = lock.clone();
    Box::pin(async move { lock.acquire().await })
}

/// Polls once, and never wakes.
fn poll_once<T>(future: &mut Pin<Box<dyn Future<Output = T> + Send>>) -> Poll<T> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn one_thread() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn one_worker() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Runs on a thread of its own, which is in no runtime: one cannot be dropped or blocked on inside
/// of another.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = oneshot::channel();
    let thread = std::thread::spawn(move || drop(done.send(work())));
    match is_done.await {
        Ok(done) => done,
        Err(_) => panic::resume_unwind(thread.join().expect_err("it has panicked")),
    }
}

/// As short as this store allows on a machine with much else to do.
fn short_lease(subject: &Subject) -> Duration {
    subject
        .capability()
        .min_lease
        .max(Duration::from_millis(1500))
}

/// A lease, as far as it was confirmed at some time.
struct Confirmed {
    at: Instant,
    left: Duration,
}

impl Confirmed {
    fn of(guard: &Guard) -> Confirmed {
        // In this order here, and in the other below: time that passes in between makes the sum
        // smaller.
        let left = guard.remaining();
        Confirmed {
            at: Instant::now(),
            left,
        }
    }

    fn again(&self, guard: &Guard) -> bool {
        let passed = self.at.elapsed();
        guard.remaining() + passed > self.left + Duration::from_millis(1)
    }
}

/// Waits until the store has confirmed the lease again.
async fn is_renewed(guard: &Guard) {
    let confirmed = Confirmed::of(guard);
    eventually("renewed", async || confirmed.again(guard)).await;
    assert!(guard.is_held());
}

/// Waits until so many stand in line, where the store knows.
async fn in_line(outside: &Client, name: &str, count: usize) {
    if !outside.capability().waiters_known {
        return;
    }
    eventually(&format!("{count} in line for {name}"), async || {
        outside
            .show(name)
            .await
            .expect("an answer")
            .map_or(0, |line| line.waiters.len())
            == count
    })
    .await;
}

async fn release(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
}

/// The later grant has the higher fence, where there are fences.
fn rises(client: &Client, first: Fence, next: &Guard) {
    assert!(
        first < next.fence() || client.capability().fence == FenceSource::None,
        "{} after {first}",
        next.fence()
    );
}

/// Neither the client nor the store has anything of these names.
async fn nothing_is_left(client: &Client, outside: &Client, names: &[&str]) {
    tokio::time::timeout(crate::patience(), client.shutdown())
        .await
        .expect("all releases are sent");
    assert_eq!(client.stats().kept, 0, "the keeper still keeps something");
    assert_eq!(client.stats().unsent_releases, 0, "a release was not sent");
    for name in names {
        free(outside, name).await;
    }
}
