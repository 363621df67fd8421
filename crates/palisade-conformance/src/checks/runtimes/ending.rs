//! Runtimes and threads that end, and claims that are dropped.

use std::cell::RefCell;
use std::time::Duration;

use palisade::Guard;
use palisade::store::Revoked;
use tokio::time::timeout;

use super::{
    Acquiring, acquiring, aside, in_line, is_renewed, nothing_is_left, one_thread, one_worker,
    poll_once, release, rises, short_lease,
};
use crate::checks::mutex::free;
use crate::{Subject, Verdict, needs, patience};

/// A runtime that is shut down withdraws the claims of its tasks, wherever they are. What was
/// acquired in it is kept, and other tasks of the same client go on.
pub async fn a_runtime_that_ends_takes_only_its_own_tasks(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    let (client, outside) = (subject.client(), subject.client());
    let [x, y, z, w] = ["x", "y", "z", "w"].map(|name| subject.name(&format!("ends-{name}")));
    let blocker = outside.mutex(&y).acquire().await.expect("acquired");
    let other = outside.mutex(&z).acquire().await.expect("acquired");
    // The first request of the client is made there, so that whatever it begins for all requests
    // begins there.
    let user = one_worker();
    let held = user
        .spawn(acquiring(&client.mutex(&x).lease(short_lease(subject))))
        .await
        .expect("no panic")
        .expect("acquired");
    let abandoned = user.spawn(acquiring(&client.mutex(&y)));
    let waiting = tokio::spawn(acquiring(&client.mutex(&z)));
    in_line(&outside, &y, 1).await;
    in_line(&outside, &z, 1).await;
    user.shutdown_background();
    assert!(abandoned.await.is_err(), "its task is gone");
    in_line(&outside, &y, 0).await;
    is_renewed(&held).await;
    let first = other.fence();
    release(other).await;
    let next = timeout(patience(), waiting)
        .await
        .expect("gets in")
        .expect("no panic")
        .expect("acquired");
    rises(&outside, first, &next);
    release(next).await;
    release(held).await;
    release(blocker).await;
    if outside.capability().revoke {
        let revoked = client
            .mutex(&w)
            .lease(short_lease(subject))
            .acquire()
            .await
            .expect("acquired");
        assert_eq!(
            outside
                .revoke(&w, revoked.fence())
                .await
                .expect("an answer"),
            Revoked::Done
        );
        timeout(patience(), revoked.lost()).await.expect("told");
    }
    in_flight(subject, &x).await;
    nothing_is_left(&client, &outside, &[&x, &y, &z, &w]).await;
    Verdict::Kept
}

/// The same, at any time after the request was made.
async fn in_flight(subject: &Subject, name: &str) {
    for micros in [0, 100, 300, 1_000, 3_000, 10_000] {
        let (client, outside) = (subject.client(), subject.client());
        let user = one_worker();
        let warm = user
            .spawn(acquiring(&client.mutex(name)))
            .await
            .expect("no panic")
            .expect("acquired");
        release(warm).await;
        let claims: Vec<_> = (0..4)
            .map(|_| user.spawn(acquiring(&client.mutex(name))))
            .collect();
        after(micros).await;
        user.shutdown_background();
        for claim in claims {
            // One may have the lock already, which goes with it.
            drop(
                timeout(patience(), claim)
                    .await
                    .expect("its task has ended"),
            );
        }
        nothing_is_left(&client, &outside, &[name]).await;
    }
}

/// Tokio's own timers count in milliseconds.
async fn after(micros: u64) {
    aside(move || std::thread::sleep(Duration::from_micros(micros))).await;
}

/// A claim that began in a runtime that has ended goes on where it is awaited now.
pub async fn a_claim_outlives_its_runtime(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    let (client, outside) = (subject.client(), subject.client());
    for stands_in_line in [false, true] {
        let name = subject.name(&format!("moved-{stands_in_line}"));
        let held = outside.mutex(&name).acquire().await.expect("acquired");
        let mut moved = acquiring(&client.mutex(&name));
        let (looks_on, waited_for) = (outside.clone(), name.clone());
        let moved = aside(move || {
            let user = one_thread();
            user.block_on(async {
                tokio::select! {
                    biased;
                    _ = &mut moved => panic!("the name is held"),
                    () = std::future::ready(()), if !stands_in_line => {}
                    () = in_line(&looks_on, &waited_for, 1), if stands_in_line => {}
                }
            });
            moved
        })
        .await;
        let waiting = tokio::spawn(moved);
        in_line(&outside, &name, 1).await;
        let first = held.fence();
        release(held).await;
        let next = timeout(patience(), waiting)
            .await
            .expect("gets in")
            .expect("no panic")
            .expect("acquired");
        rises(&outside, first, &next);
        release(next).await;
        nothing_is_left(&client, &outside, &[&name]).await;
    }
    Verdict::Kept
}

/// A guard, and a claim that waits, in a thread-local variable: its destructor runs when the thread
/// ends, before or after those of the runtime that the thread was in.
pub async fn an_ending_thread_releases(subject: &Subject) -> Verdict {
    thread_local! {
        static EARLY: RefCell<Option<(Guard, Acquiring)>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<(Guard, Acquiring)>> = const { RefCell::new(None) };
    }
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    let (client, outside) = (subject.client(), subject.client());
    for late in [false, true] {
        let name = subject.name(&format!("ends-{late}"));
        let lock = client.mutex(&name);
        let ends = std::thread::spawn(move || {
            // The last variable that is used is the first that is destroyed.
            if late {
                LATE.with_borrow_mut(|left| drop(left.take()));
            }
            let held = one_thread().block_on(lock.acquire()).expect("acquired");
            let mut waits = acquiring(&lock);
            assert!(poll_once(&mut waits).is_pending(), "it is held");
            let left = if late { &LATE } else { &EARLY };
            left.with_borrow_mut(|left| *left = Some((held, waits)));
        });
        aside(move || ends.join().expect("no panic")).await;
        free(&outside, &name).await;
        nothing_is_left(&client, &outside, &[&name]).await;
    }
    Verdict::Kept
}

/// A claim that is dropped leaves nothing, however long it was on its way, on a new connection and
/// on one that is open, for a name that is free or held.
pub async fn a_claim_dropped_after_any_time_is_withdrawn(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    let (open, outside) = (subject.client(), subject.client());
    let [free, held] = ["free", "held"].map(|name| subject.name(&format!("dropped-{name}")));
    for micros in [0, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800] {
        let new = subject.client();
        let blocker = outside.mutex(&held).acquire().await.expect("acquired");
        for (client, name) in [(&new, &free), (&open, &free), (&new, &held), (&open, &held)] {
            let mut claim = acquiring(&client.mutex(name));
            match micros {
                0 => assert!(
                    poll_once(&mut claim).is_pending() || *name == free,
                    "it is held"
                ),
                micros => tokio::select! {
                    biased;
                    acquired = &mut claim => assert!(acquired.is_ok() && *name == free, "it is held"),
                    () = after(micros) => {}
                },
            }
            drop(claim);
            timeout(patience(), client.shutdown())
                .await
                .expect("withdrawn");
            assert_eq!(client.stats().kept, 0, "after {micros} µs");
        }
        in_line(&outside, &held, 0).await;
        release(blocker).await;
        nothing_is_left(&new, &outside, &[&free, &held]).await;
    }
    Verdict::Kept
}
