//! The time limits: the longest and the shortest hold, once per period, once and for all.

use std::time::{Duration, Instant};

use palisade::store::Marks;
use palisade::{Attempt, Cause, Client, LossReason, Obstacle, Released};

use super::mutex::free;
use crate::{Subject, Verdict, eventually, needs, patience};

const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

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
    // A closed period is not a lost lock: a waiter gets the lock at its end.
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

/// The rest of a minimum hold is shown, alone and in the list; a refusal says how long it lasts; and
/// it can be cleared.
pub async fn a_closed_period_is_shown_and_cleared(subject: &Subject) -> Verdict {
    needs!(subject.capability().min_hold, "a minimum hold");
    let name = subject.name("closed");
    let client = subject.client();
    let lock = client.mutex(&name).min_hold(LONG);
    let guard = lock.acquire().await.expect("acquired");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let marks = shown(subject, &client, &name).await;
    assert_left(marks.closed_for, "closed for");
    assert_eq!(marks.done_for.or(marks.due_in), None);
    let obstacle = refused(client.mutex(&name).try_acquire_or_holder().await);
    assert_eq!(obstacle.cause, Cause::Closed, "{obstacle}");
    assert_left(obstacle.left, "closed for");
    assert!(client.clear_marks(&name).await.expect("an answer"));
    free(&client, &name).await;
    assert!(
        !client.clear_marks(&name).await.expect("an answer"),
        "cleared twice"
    );
    Verdict::Kept
}

/// The last run of a period is shown, alone and in the list; a refusal says when the next is due;
/// and it can be cleared.
pub async fn a_last_run_is_shown_and_cleared(subject: &Subject) -> Verdict {
    needs!(subject.capability().once_per, "once per period");
    let name = subject.name("last-run");
    let client = subject.client();
    let lock = client.mutex(&name).once_per(LONG);
    let guard = lock.try_acquire().await.expect("an answer").expect("due");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let marks = shown(subject, &client, &name).await;
    assert!(
        marks.ran_ago.is_some_and(|ago| ago < patience()),
        "{marks:?}"
    );
    assert_left(marks.due_in, "due in");
    let obstacle = refused(lock.try_acquire_or_holder().await);
    assert_eq!(obstacle.cause, Cause::TooSoon, "{obstacle}");
    assert_left(obstacle.left, "due in");
    assert!(client.clear_marks(&name).await.expect("an answer"));
    let guard = lock
        .try_acquire()
        .await
        .expect("an answer")
        .expect("cleared");
    assert_eq!(guard.undo().await.expect("released"), Released::Done);
    assert!(
        !client.clear_marks(&name).await.expect("an answer"),
        "cleared twice"
    );
    Verdict::Kept
}

/// Finished work is shown, alone and in the list, and can be cleared.
pub async fn a_seal_is_shown_and_cleared(subject: &Subject) -> Verdict {
    needs!(subject.capability().once, "once and for all");
    let name = subject.name("done");
    let client = subject.client();
    let once = client.once(&name).keep(LONG);
    let begun = once
        .begin()
        .await
        .expect("an answer")
        .expect("not done yet");
    begun.finish().await.expect("recorded");
    let marks = shown(subject, &client, &name).await;
    assert_left(marks.done_for, "done for");
    assert!(client.clear_marks(&name).await.expect("an answer"));
    let begun = once.begin().await.expect("an answer").expect("cleared");
    drop(begun);
    client.shutdown().await;
    assert!(
        !client.clear_marks(&name).await.expect("an answer"),
        "cleared twice"
    );
    Verdict::Kept
}

/// The marks of a name, the same alone and in the list.
async fn shown(subject: &Subject, client: &Client, name: &str) -> Marks {
    let line = client.show(name).await.expect("an answer");
    let marks = line.expect("a mark is shown").marks;
    if subject.capability().list {
        let listed = client.list(name).await.expect("an answer");
        let listed = listed.first().expect("a mark is listed").marks;
        let which = |marks: Marks| {
            [
                marks.closed_for,
                marks.ran_ago,
                marks.due_in,
                marks.done_for,
            ]
            .map(|span| span.is_some())
        };
        assert_eq!(which(listed), which(marks));
    }
    marks
}

fn refused<G>(attempt: palisade::Result<Attempt<G>>) -> Obstacle {
    match attempt.expect("an answer") {
        Attempt::Busy(obstacle) => obstacle,
        Attempt::Acquired(_) => panic!("not refused"),
    }
}

/// The rest of a long time that has just begun. A store may count in whole seconds.
#[track_caller]
fn assert_left(left: Option<Duration>, what: &str) {
    let left = left.unwrap_or_else(|| panic!("nothing says {what}"));
    assert!(
        left <= LONG + Duration::from_secs(1) && left > LONG - patience(),
        "{what} {left:?}"
    );
}

/// At the end of the longest hold the guard is lost, for that reason, and the lock is free for
/// others at the latest when the lease has run out.
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
    // The guard still exists, but is not renewed.
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

/// Refused while less than the period has passed since the last such grant; an undone run does not
/// count.
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

/// Finished work is not begun again; abandoned work is.
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
