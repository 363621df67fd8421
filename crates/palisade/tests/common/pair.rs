//! A holder and a waiter through a fault, on any store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::{Client, ErrorKind, Exclusive, Guard, GuardMode, LossReason, Released, Result};
use palisade_conformance::eventually;
use tokio::task::JoinHandle;

use super::actors::{Believer, number, rise};

/// Longer than any test: a waiter that gets the lock sooner did not wait for a lease to end.
pub const LONG: Duration = Duration::from_secs(120);

/// The most that any step takes, on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(40);

/// A holder and a waiter. At no time do both guards say held.
pub struct Pair<M: GuardMode = Exclusive> {
    pub held: Arc<Guard<M>>,
    believer: Believer,
    waiting: JoinHandle<Result<(Guard<M>, Instant)>>,
}

impl Pair {
    /// One client takes the lock, another stands in line for it. `outside` sees it.
    pub async fn begin(
        [holder, waiter, outside]: [&Client; 3],
        name: &str,
        lease: Duration,
    ) -> Pair {
        let held = holder
            .mutex(name)
            .lease(lease)
            .store_wait(LONG)
            .acquire()
            .await
            .expect("a grant");
        let lock = waiter.mutex(name).lease(lease).store_wait(LONG);
        let pair = Pair::of(held, async move { lock.acquire().await });
        line_is(outside, name, (1, 1)).await;
        pair
    }
}

impl<M: GuardMode> Pair<M> {
    /// Pairs a guard with a waiter that begins now.
    pub fn of(
        held: Guard<M>,
        waiting: impl Future<Output = Result<Guard<M>>> + Send + 'static,
    ) -> Pair<M> {
        let held = Arc::new(held);
        let believer = Believer::watch(Arc::clone(&held));
        let waiting =
            tokio::spawn(async move { waiting.await.map(|guard| (guard, Instant::now())) });
        Pair {
            held,
            believer,
            waiting,
        }
    }

    /// The holder still holds, and the waiter still waits.
    #[track_caller]
    pub fn stands(&self) {
        assert!(self.held.is_held() && !self.waiting.is_finished());
    }

    /// The holder gives the lock back, and the waiter gets in.
    pub async fn hands_over(self) -> Guard<M> {
        let Pair {
            held,
            believer,
            waiting,
        } = self;
        let fence = number(&held);
        let last = believer.last_belief().expect("it was held at first");
        let released = Arc::into_inner(held)
            .expect("no other reference is left")
            .release();
        match tokio::time::timeout(LIMIT, released)
            .await
            .expect("an answer in time")
        {
            Ok(released) => assert!(
                matches!(released, Released::Done | Released::Unknown),
                "{released:?}"
            ),
            // It is unknown whether the release arrived.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        let (next, began) = gets_in(waiting).await;
        assert!(last <= began, "two believed for {:?}", last - began);
        rise(&[fence, number(&next)]);
        next
    }

    /// The holder is told that it has lost the lock, and only then does the waiter get in.
    pub async fn loses_it_to_the_next(self) -> (LossReason, Guard<M>) {
        let Pair {
            held,
            believer,
            waiting,
        } = self;
        let reason = tokio::time::timeout(LIMIT, held.lost())
            .await
            .expect("the holder is told");
        let (next, began) = gets_in(waiting).await;
        let last = believer.last_belief().expect("it was held at first");
        assert!(last <= began, "two believed for {:?}", last - began);
        assert!(!held.is_held());
        rise(&[number(&held), number(&next)]);
        (reason, next)
    }

    /// The same, where the store itself drops the grant: the holder is told at its next contact.
    pub async fn has_it_dropped(self) -> (LossReason, Guard<M>) {
        let Pair {
            held,
            believer,
            waiting,
        } = self;
        let reason = tokio::time::timeout(LIMIT, held.lost())
            .await
            .expect("the holder is told");
        let (next, _) = gets_in(waiting).await;
        let _ = believer.last_belief();
        assert!(!held.is_held());
        rise(&[number(&held), number(&next)]);
        (reason, next)
    }
}

async fn gets_in<M: GuardMode>(
    waiting: JoinHandle<Result<(Guard<M>, Instant)>>,
) -> (Guard<M>, Instant) {
    let brought = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("the waiter gets in");
    brought.expect("no panic").expect("a grant")
}

/// Waits until so many hold and so many wait. A member that has just had a fault may leave the
/// first questions unanswered.
pub async fn line_is(client: &Client, name: &str, wanted: (usize, usize)) {
    eventually(&format!("{wanted:?} in line"), async || {
        match client.show(name).await {
            Ok(line) => {
                line.map_or((0, 0), |line| (line.holders.len(), line.waiters.len())) == wanted
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                false
            }
        }
    })
    .await;
}
