//! The time limits: the longest and the shortest hold, once per period, once and for all.

use std::time::{Duration, Instant};

use palisade::{LossReason, Released};

use super::mutex::free;
use crate::{Subject, Verdict, eventually, needs, patience};

const SHORT: Duration = Duration::from_millis(400);

/// The name stays closed until grant + min_hold, though it was released.
pub async fn min_hold_closes(subject: &Subject) -> Verdict {
    needs!(subject.capability().min_hold, "a minimum hold");
    let name = subject.name("min-hold");
    let client = subject.client();
    let before = Instant::now();
    let guard = client
        .mutex(&name)
        .min_hold(SHORT)
        .acquire()
        .await
        .expect("acquired");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    assert!(
        client
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
            || before.elapsed() >= SHORT,
        "open too early"
    );
    // It is a closed period, not a lost lock: who waits in line gets it at its end.
    let next = tokio::time::timeout(patience(), client.mutex(&name).acquire())
        .await
        .expect("opened")
        .expect("acquired");
    assert!(
        before.elapsed() >= SHORT,
        "open after {:?}",
        before.elapsed()
    );
    assert_eq!(next.release().await.expect("released"), Released::Done);
    let guard = client
        .mutex(&name)
        .min_hold(Duration::from_secs(60))
        .acquire()
        .await
        .expect("acquired");
    assert_eq!(guard.undo().await.expect("released"), Released::Done);
    free(&client, &name).await;
    Verdict::Kept
}

/// At the end of the longest hold the guard is lost, for that reason, and the lock is free for others at the latest when the
/// lease has run out.
pub async fn max_hold_ends(subject: &Subject) -> Verdict {
    let name = subject.name("max-hold");
    let client = subject.client();
    let lease = subject.capability().min_lease.max(Duration::from_secs(1));
    let before = Instant::now();
    let guard = client
        .mutex(&name)
        .lease(lease)
        .max_hold(SHORT)
        .acquire()
        .await
        .expect("acquired");
    assert!(guard.remaining() <= SHORT);
    assert_eq!(
        tokio::time::timeout(patience(), guard.lost())
            .await
            .expect("told"),
        LossReason::MaxHold
    );
    assert!(before.elapsed() >= SHORT && !guard.is_held());
    // The guard is still here, but nobody renews it.
    eventually("the lease ends", async || {
        client
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_some()
    })
    .await;
    assert_eq!(
        guard.release().await.expect("an answer"),
        Released::AlreadyLost
    );
    Verdict::Kept
}

/// Refused while less than the period has passed since the last such grant; an undone run does not count.
pub async fn once_per_refuses(subject: &Subject) -> Verdict {
    needs!(subject.capability().once_per, "once per period");
    let name = subject.name("once-per");
    let client = subject.client();
    let long = client.mutex(&name).once_per(Duration::from_secs(60));
    let undone = long.try_acquire().await.expect("an answer").expect("due");
    assert_eq!(undone.undo().await.expect("released"), Released::Done);
    let lock = client.mutex(&name).once_per(SHORT);
    let before = Instant::now();
    let run = lock
        .run(async |guard| guard.fence())
        .await
        .expect("acquired");
    assert!(run.is_some(), "an undone run counted");
    assert!(
        lock.acquire().await.expect("an answer").is_none() || before.elapsed() >= SHORT,
        "twice in one period"
    );
    assert!(
        client
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_some(),
        "a plain mutex does not look at the mark"
    );
    eventually("the period ends", async || {
        lock.try_acquire().await.expect("an answer").is_some()
    })
    .await;
    assert!(
        before.elapsed() >= SHORT,
        "again after {:?}",
        before.elapsed()
    );
    Verdict::Kept
}

/// What was finished is not begun again; what was left is.
pub async fn once_is_once(subject: &Subject) -> Verdict {
    needs!(subject.capability().once, "once and for all");
    let name = subject.name("once");
    let (ours, theirs) = (subject.client(), subject.client());
    let left = ours
        .once(&name)
        .begin()
        .await
        .expect("an answer")
        .expect("not done yet");
    drop(left);
    let begun = theirs
        .once(&name)
        .begin()
        .await
        .expect("an answer")
        .expect("left by the first");
    let waiting = {
        let once = ours.once(&name);
        tokio::spawn(async move { once.begin().await.expect("an answer").is_none() })
    };
    begun.finish().await.expect("recorded");
    assert!(
        tokio::time::timeout(patience(), waiting)
            .await
            .expect("told")
            .expect("no panic"),
        "done twice"
    );
    assert!(ours.once(&name).begin().await.expect("an answer").is_none());
    Verdict::Kept
}
