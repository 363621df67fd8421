//! Promise 2 on a real store: the holder is told before the store lets go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::lease::BootClock;
use palisade::{Client, ErrorKind, Guard, LossReason, Released, Status};

use crate::faults::Faulty;
use crate::{Subject, Verdict, eventually, patience};

/// A holder that is cut off knows of its loss before another client can have the lock, and is told
/// once.
pub async fn the_holder_is_told_first(subject: &Subject) -> Verdict {
    let name = subject.name("told-first");
    let lease = subject.capability().min_lease.max(Duration::from_secs(1));
    let (faulty, faults) = Faulty::over(subject.store());
    let (ours, theirs) = (Client::over(faulty, Arc::new(BootClock)), subject.client());
    let guard = Arc::new(
        ours.mutex(&name)
            .lease(lease)
            .acquire()
            .await
            .expect("acquired"),
    );
    let stop = guard.on_lost();
    faults.hang(true);
    let next = tokio::spawn({
        let (lock, first) = (theirs.mutex(&name).lease(lease), Arc::clone(&guard));
        async move {
            let next = lock.acquire().await.expect("admitted");
            // At the moment of admission, on the clock that the first one reads.
            assert!(
                !first.is_held(),
                "another was admitted while the first could believe that it held"
            );
            next
        }
    });
    assert_eq!(
        tokio::time::timeout(patience(), guard.lost())
            .await
            .expect("told"),
        LossReason::Expired
    );
    assert!(stop.is_cancelled() && !guard.is_held());
    assert_eq!(guard.lost().await, LossReason::Expired, "once and for good");
    let next = tokio::time::timeout(patience(), next)
        .await
        .expect("admitted")
        .expect("told first");
    let guard = Arc::into_inner(guard).expect("the other task has ended");
    faults.hang(false);
    assert_eq!(
        guard.release().await.expect("an answer"),
        Released::AlreadyLost
    );
    still_holds(
        subject,
        &name,
        &next,
        "a late release freed the next holder's lock",
    )
    .await;
    drop(next);
    ours.shutdown().await;
    Verdict::Kept
}

/// A holder is sure of its lock again, and the store says the same. Not at once: where the lease is
/// short and the machine busy, a renewal may have to come first.
async fn still_holds(subject: &Subject, name: &str, guard: &Guard, otherwise: &str) {
    eventually(otherwise, async || {
        assert!(guard.is_held(), "{otherwise}");
        guard.status() == Status::Held
    })
    .await;
    let line = subject
        .client()
        .show(name)
        .await
        .expect("an answer")
        .expect(otherwise);
    assert_eq!(line.holders.len(), 1, "{otherwise}");
    if subject.capability().holders_known {
        assert_eq!(line.holders[0].fence, guard.fence(), "{otherwise}");
    }
}

/// A store that hangs for longer than the lease: the holder is told in time, a new claim gets an
/// error and no lock, and all clients work again when the store does.
pub async fn a_store_that_stands_still_is_survived(subject: &Subject) -> Verdict {
    let Some(pause) = &subject.hooks().pause else {
        return Verdict::NotPromised("standing still on demand");
    };
    let name = subject.name("stands-still");
    let lease = subject.capability().min_lease.max(Duration::from_secs(2));
    let (ours, theirs) = (subject.client(), subject.client());
    let guard = ours
        .mutex(&name)
        .lease(lease)
        .acquire()
        .await
        .expect("acquired");
    let paused = pause();
    let valid_until = Instant::now() + guard.remaining();
    let asking = theirs
        .mutex(&name)
        .store_wait(Duration::from_millis(100))
        .acquire_timeout(lease / 2)
        .await;
    let error = asking.expect_err("a hung store grants nothing");
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout),
        "{error:?}"
    );
    assert_eq!(
        tokio::time::timeout(patience(), guard.lost())
            .await
            .expect("told"),
        LossReason::Expired
    );
    let told = Instant::now();
    assert!(
        told < valid_until + lease / 2,
        "told {:?} late",
        told.duration_since(valid_until)
    );
    drop(paused);
    let next = theirs
        .mutex(&name)
        .lease(lease)
        .acquire_timeout(patience())
        .await
        .expect("the store goes on");
    assert_eq!(
        guard.release().await.expect("an answer"),
        Released::AlreadyLost
    );
    assert_eq!(next.release().await.expect("released"), Released::Done);
    ours.shutdown().await;
    Verdict::Kept
}

/// A client whose session the store has ended learns it at its next contact, and cannot harm the
/// holder that was admitted meanwhile.
pub async fn a_lost_session_is_told(subject: &Subject) -> Verdict {
    let Some(lose_sessions) = &subject.hooks().lose_sessions else {
        return Verdict::NotPromised("losing sessions on demand");
    };
    let name = subject.name("lost-session");
    let lease = subject.capability().min_lease.max(Duration::from_secs(2));
    let ours = subject.client();
    let guard = ours
        .mutex(&name)
        .lease(lease)
        .acquire()
        .await
        .expect("acquired");
    drop(lose_sessions());
    let theirs = subject.client();
    let next = theirs
        .mutex(&name)
        .acquire_timeout(patience())
        .await
        .expect("the name is free");
    assert!(
        next.fence() > guard.fence() || next.fence().is_none(),
        "{} after {}",
        next.fence(),
        guard.fence()
    );
    tokio::time::timeout(patience(), guard.lost())
        .await
        .expect("told");
    assert_eq!(
        guard.release().await.expect("an answer"),
        Released::AlreadyLost
    );
    still_holds(
        subject,
        &name,
        &next,
        "the old holder's release freed the next one's lock",
    )
    .await;
    assert_eq!(next.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// The store keeps a grant for at least the promised length, counted from the request.
pub async fn a_lease_is_kept_in_full(subject: &Subject) -> Verdict {
    let name = subject.name("in-full");
    let lease = subject.capability().min_lease.max(Duration::from_secs(1));
    let (ours, theirs) = (subject.client(), subject.client());
    let guard = ours
        .mutex(&name)
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .expect("acquired");
    let asked_by = Instant::now();
    let valid = guard.remaining();
    eventually("the lease ends", async || {
        let taken = theirs
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_some();
        assert!(
            !taken || asked_by.elapsed() >= valid,
            "let go after {:?} of {valid:?}",
            asked_by.elapsed()
        );
        taken
    })
    .await;
    assert!(!guard.is_held());
    drop(guard);
    ours.shutdown().await;
    Verdict::Kept
}

/// After the loss the same client takes the same name again: the new hold is renewed, the old guard
/// stays lost.
pub async fn a_lost_lock_can_be_taken_again(subject: &Subject) -> Verdict {
    let name = subject.name("again");
    let lease = subject.capability().min_lease.max(Duration::from_secs(3));
    let client = subject.client();
    let old = client
        .mutex(&name)
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .expect("acquired");
    old.lost().await;
    let new = client
        .mutex(&name)
        .lease(lease)
        .acquire()
        .await
        .expect("acquired");
    tokio::time::sleep(lease + Duration::from_millis(500)).await;
    assert!(new.is_held(), "the new hold was not renewed");
    assert!(!old.is_held());
    assert_eq!(
        old.release().await.expect("an answer"),
        Released::AlreadyLost
    );
    assert!(new.is_held(), "the old guard's release freed the new hold");
    assert_eq!(new.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// The shortest and the longest lease, and waits of nothing and of ages.
pub async fn extreme_durations_work(subject: &Subject) -> Verdict {
    let capability = subject.capability();
    let name = subject.name("extreme");
    let client = subject.client();
    for lease in [capability.min_lease, capability.max_lease] {
        let guard = client
            .mutex(&name)
            .lease(lease)
            .acquire_timeout(Duration::MAX)
            .await
            .expect("acquired");
        assert!(guard.lease() <= lease, "{:?} of {lease:?}", guard.lease());
        assert!(
            client
                .mutex(&name)
                .acquire_timeout(Duration::from_nanos(1))
                .await
                .is_err()
        );
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
    let too_long = capability.max_lease + Duration::from_millis(1);
    for wrong in [
        Duration::ZERO,
        capability.min_lease / 2,
        too_long,
        Duration::MAX,
    ] {
        assert!(
            client.mutex(&name).lease(wrong).acquire().await.is_err(),
            "{wrong:?}"
        );
    }
    Verdict::Kept
}
