//! Readers, permits, owners, and several locks at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade::store::{Detach, Mode, Order, Revoked};
use palisade::{AnyMode, Error, ErrorKind, Exclusive, LossReason, Member, Multi, Released};

use super::mutex::{free, waiters};
use crate::{Subject, Verdict, in_vain, needs, patience};

/// Promise 1: readers share; a writer is alone; the mutex is the write side where the capability
/// says so.
pub async fn readers_share_and_writers_do_not(subject: &Subject) -> Verdict {
    needs!(
        subject.is_as_it_is(),
        "anything about kinds that run as a mutex"
    );
    let capability = subject.capability();
    needs!(capability.rwlock, "read/write locks");
    let name = subject.name("readers");
    let (ours, theirs) = (subject.client(), subject.client());
    let one = ours.rwlock(&name).read().await.expect("acquired");
    let two = theirs
        .rwlock(&name)
        .try_read()
        .await
        .expect("an answer")
        .expect("readers share");
    assert_ne!(one.fence(), two.fence(), "every grant has its own fence");
    assert!(
        theirs
            .rwlock(&name)
            .try_write()
            .await
            .expect("an answer")
            .is_none(),
        "a writer beside readers"
    );
    if capability.mutex_is_write_side {
        assert!(
            theirs
                .mutex(&name)
                .try_acquire()
                .await
                .expect("an answer")
                .is_none(),
            "a mutex beside readers"
        );
    }
    assert_eq!(one.release().await.expect("released"), Released::Done);
    assert!(
        ours.rwlock(&name)
            .try_write()
            .await
            .expect("an answer")
            .is_none(),
        "a writer beside a reader"
    );
    assert_eq!(two.release().await.expect("released"), Released::Done);
    let writer = ours
        .rwlock(&name)
        .try_write()
        .await
        .expect("an answer")
        .expect("it is free");
    assert!(
        theirs
            .rwlock(&name)
            .try_read()
            .await
            .expect("an answer")
            .is_none(),
        "a reader beside a writer"
    );
    assert!(
        theirs
            .rwlock(&name)
            .try_write()
            .await
            .expect("an answer")
            .is_none(),
        "two writers"
    );
    assert_eq!(writer.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// Readers that come after a waiting writer wait behind it.
pub async fn a_writer_is_not_starved(subject: &Subject) -> Verdict {
    let capability = subject.capability();
    needs!(
        capability.rwlock && capability.order == Order::Fifo && capability.waiters_known,
        "a line of readers and writers"
    );
    let name = subject.name("starved");
    let client = subject.client();
    let reader = client.rwlock(&name).read().await.expect("acquired");
    let lock = client.rwlock(&name);
    let writing = tokio::spawn(async move { lock.write().await });
    waiters(&client, &name, 1).await;
    assert!(
        client
            .rwlock(&name)
            .try_read()
            .await
            .expect("an answer")
            .is_none(),
        "a reader overtook a writer"
    );
    let lock = client.rwlock(&name);
    let reading = tokio::spawn(async move { lock.read().await });
    waiters(&client, &name, 2).await;
    assert_eq!(reader.release().await.expect("released"), Released::Done);
    let writer = writing.await.expect("no panic").expect("acquired");
    assert!(!reading.is_finished(), "a reader came in with a writer");
    assert_eq!(writer.release().await.expect("released"), Released::Done);
    let reader = reading.await.expect("no panic").expect("acquired");
    assert_eq!(reader.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// A writer becomes a reader in one step: waiting readers come in, no writer comes between, the
/// fence stays.
pub async fn downgrade_lets_readers_in(subject: &Subject) -> Verdict {
    needs!(
        subject.is_as_it_is(),
        "anything about kinds that run as a mutex"
    );
    let capability = subject.capability();
    needs!(
        capability.downgrade && capability.waiters_known,
        "downgrading"
    );
    let name = subject.name("downgrade");
    let client = subject.client();
    let writer = client.rwlock(&name).write().await.expect("acquired");
    let fence = writer.fence().get();
    let lock = client.rwlock(&name);
    let reading = tokio::spawn(async move { lock.read().await });
    waiters(&client, &name, 1).await;
    let lock = client.rwlock(&name);
    let writing = tokio::spawn(async move { lock.write().await });
    waiters(&client, &name, 2).await;
    let downgraded = writer.downgrade().await.expect("downgraded");
    assert_eq!(
        (downgraded.fence().get(), downgraded.mode()),
        (fence, Mode::Shared)
    );
    let reader = reading.await.expect("no panic").expect("acquired");
    assert!(!writing.is_finished(), "a writer came in beside readers");
    assert_eq!(reader.release().await.expect("released"), Released::Done);
    assert_eq!(
        downgraded.release().await.expect("released"),
        Released::Done
    );
    let writer = writing.await.expect("no panic").expect("acquired");
    assert_eq!(writer.release().await.expect("released"), Released::Done);
    let mutex = client.mutex(&name).acquire().await.expect("acquired");
    let refused = mutex
        .downgrade()
        .await
        .expect_err("a mutex has no read side");
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
    assert!(refused.guard.is_held(), "the guard comes back");
    Verdict::Kept
}

/// An owner enters again with the same fence; the last guard gives the lock back; another mode is
/// refused at once.
pub async fn an_owner_enters_again(subject: &Subject) -> Verdict {
    needs!(
        subject.is_as_it_is(),
        "anything about kinds that run as a mutex"
    );
    let name = subject.name("owner");
    let client = subject.client();
    let (billing, namesake) = (client.identity("billing"), client.identity("billing"));
    let lock = client.mutex(&name);
    let outer = lock.acquire_as(&billing).await.expect("acquired");
    let inner = lock.acquire_as(&billing).await.expect("entered again");
    assert_eq!(outer.fence(), inner.fence());
    let short = Duration::from_millis(30);
    assert!(
        lock.acquire_timeout_as(&namesake, short).await.is_err(),
        "two owners of one label contend"
    );
    assert!(lock.try_acquire().await.expect("an answer").is_none());
    assert_eq!(outer.release().await.expect("released"), Released::Done);
    assert!(inner.is_held(), "given back too early");
    assert!(
        lock.try_acquire().await.expect("an answer").is_none(),
        "given back too early"
    );
    assert_eq!(inner.release().await.expect("released"), Released::Done);
    free(&client, &name).await;
    assert_eq!(client.stats().kept, 0);
    if subject.capability().revoke {
        let lost = lock.acquire_as(&billing).await.expect("acquired");
        assert_eq!(
            client.revoke(&name, lost.fence()).await.expect("an answer"),
            Revoked::Done
        );
        tokio::time::timeout(patience(), lost.lost())
            .await
            .expect("told");
        let next = tokio::time::timeout(patience(), lock.acquire_as(&billing))
            .await
            .expect("free")
            .expect("acquired");
        assert!(
            next.is_held() && !lost.is_held(),
            "what is lost is not entered again"
        );
        assert_eq!(
            lost.release().await.expect("an answer"),
            Released::AlreadyLost
        );
        assert!(next.is_held(), "the lost one took the new one with it");
        assert_eq!(next.release().await.expect("released"), Released::Done);
    }
    needs!(subject.capability().rwlock, "read/write locks");
    let mutex = client
        .mutex(&name)
        .acquire_as(&billing)
        .await
        .expect("acquired");
    let other_kind = tokio::time::timeout(patience(), client.rwlock(&name).write_as(&billing))
        .await
        .expect("never a self-deadlock");
    assert_eq!(other_kind.expect_err("refused").kind(), ErrorKind::Deadlock);
    assert_eq!(mutex.release().await.expect("released"), Released::Done);
    let lock = client.rwlock(&name);
    let reader = lock.read_as(&billing).await.expect("acquired");
    let upgrade = tokio::time::timeout(patience(), lock.write_as(&billing))
        .await
        .expect("never a self-deadlock");
    assert_eq!(upgrade.expect_err("refused").kind(), ErrorKind::Deadlock);
    assert_eq!(reader.release().await.expect("released"), Released::Done);
    let writer = lock.write_as(&billing).await.expect("acquired");
    assert_eq!(
        lock.read_as(&billing).await.expect_err("refused").kind(),
        ErrorKind::Deadlock
    );
    assert_eq!(writer.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// Promise 1: never more permits than the limit, weighted or not.
pub async fn permits_are_limited(subject: &Subject) -> Verdict {
    needs!(subject.capability().semaphore, "semaphores");
    const LIMIT: u32 = 5;
    let name = subject.name("permits");
    let out = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for task in 0..40 {
        let semaphore = subject.client().semaphore(&name, LIMIT);
        let out = Arc::clone(&out);
        tasks.push(tokio::spawn(async move {
            let permits = task % LIMIT + 1;
            let guard = semaphore.acquire_many(permits).await.expect("acquired");
            let before = out.fetch_add(permits.into(), Ordering::SeqCst);
            assert!(
                before + u64::from(permits) <= LIMIT.into(),
                "{before} + {permits} are more than {LIMIT}"
            );
            tokio::task::yield_now().await;
            out.fetch_sub(permits.into(), Ordering::SeqCst);
            guard.release().await.expect("released")
        }));
    }
    for task in tasks {
        assert_eq!(
            tokio::time::timeout(patience(), task)
                .await
                .expect("served")
                .expect("no panic"),
            Released::Done
        );
    }
    let client = subject.client();
    for wrong in [0, LIMIT + 1] {
        let error = client
            .semaphore(&name, LIMIT)
            .acquire_many(wrong)
            .await
            .expect_err("never to be granted");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    free(&client, &name).await;
    Verdict::Kept
}

/// A claim for many permits is not starved by claims for few.
pub async fn many_permits_are_not_overtaken(subject: &Subject) -> Verdict {
    let capability = subject.capability();
    needs!(
        capability.semaphore && capability.order == Order::Fifo && capability.waiters_known,
        "a line of permits"
    );
    let name = subject.name("many-permits");
    let client = subject.client();
    let one = client
        .semaphore(&name, 3)
        .acquire()
        .await
        .expect("acquired");
    let semaphore = client.semaphore(&name, 3);
    let many = tokio::spawn(async move { semaphore.acquire_many(3).await });
    waiters(&client, &name, 1).await;
    assert!(
        client
            .semaphore(&name, 3)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "a small claim overtook a big one"
    );
    assert_eq!(one.release().await.expect("released"), Released::Done);
    let many = many.await.expect("no panic").expect("acquired");
    assert_eq!(many.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// All or nothing; one lost, all lost; a release tries every member.
pub async fn several_locks_are_one(subject: &Subject) -> Verdict {
    let [a, b, c] = ["multi-a", "multi-b", "multi-c"].map(|what| subject.name(what));
    let (ours, theirs) = (subject.client(), subject.client());
    let taken = theirs.mutex(&b).acquire().await.expect("acquired");
    let multi = ours.multi([&c, &b, &a]);
    assert!(multi.try_acquire().await.expect("an answer").is_none());
    let error = in_vain(Duration::from_millis(30), |wait| {
        multi.acquire_timeout(wait)
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
    free(&ours, &a).await;
    free(&ours, &c).await;
    assert_eq!(taken.release().await.expect("released"), Released::Done);
    let all = multi.acquire().await.expect("acquired");
    assert_eq!(
        all.members()
            .iter()
            .map(|member| member.name())
            .collect::<Vec<_>>(),
        [&a, &b, &c]
    );
    assert!(
        theirs
            .mutex(&c)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    assert!(all.fence(&a).is_some() && all.fence("another").is_none());
    let released = all.release().await;
    assert!(released.all_done(), "{released:?}");
    for twice in [vec![], vec![&a, &b, &a]] {
        let refused = tokio::time::timeout(patience(), ours.multi(twice).acquire())
            .await
            .expect("never a self-deadlock");
        assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Config);
    }
    let capability = subject.capability();
    if capability.rwlock && capability.semaphore && subject.kinds_take_turns() {
        let pool = if capability.semaphore_stays {
            subject.name("multi-pool")
        } else {
            b.clone()
        };
        let members = [
            Member::read(&ours.rwlock(&a)),
            Member::permits(&ours.semaphore(&pool, 4), 2),
            ours.mutex(&c).into(),
        ];
        let mixed = Multi::of(members).acquire().await.expect("acquired");
        let reader = theirs
            .rwlock(&a)
            .try_read()
            .await
            .expect("an answer")
            .expect("held as a reader");
        // Not dropped: what follows asks for the name as another kind.
        assert_eq!(reader.release().await.expect("released"), Released::Done);
        assert!(mixed.release().await.all_done());
    }
    needs!(subject.capability().revoke, "revocation");
    let all = multi
        .lease_all(subject.capability().min_lease.max(Duration::from_secs(3)))
        .acquire()
        .await
        .expect("acquired");
    let stop = all.on_lost();
    let fence = all.fence(&b).expect("held exclusively");
    theirs.revoke(&b, fence).await.expect("an answer");
    assert_eq!(
        tokio::time::timeout(patience(), all.lost())
            .await
            .expect("told"),
        LossReason::Revoked
    );
    assert!(stop.is_cancelled() && !all.is_held());
    assert!(
        all.members().iter().all(|member| !member.is_held()),
        "one lost, all lost"
    );
    let released = all.release().await;
    assert_eq!(
        released.failures().count(),
        3,
        "every member was tried, and none was held to the end: {released:?}"
    );
    for name in [&a, &b, &c] {
        free(&theirs, name).await;
    }
    Verdict::Kept
}

/// {A, B} and {B, A} at the same time never wait for each other.
pub async fn several_locks_do_not_deadlock(subject: &Subject) -> Verdict {
    let names = ["circle-a", "circle-b", "circle-c"].map(|what| subject.name(what));
    let mut tasks = Vec::new();
    for task in 0..12 {
        let mut names = names.clone();
        names.rotate_left(task % 3);
        let multi = subject.client().multi(&names);
        tasks.push(tokio::spawn(async move {
            for _ in 0..3 {
                let released = multi.run(async |_| tokio::task::yield_now().await).await;
                released.expect("acquired");
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(patience(), task)
            .await
            .expect("no deadlock")
            .expect("no panic");
    }
    Verdict::Kept
}

/// Two stripes are held at once, one stripe is not, and the whole excludes every part and itself.
pub async fn stripes_exclude_as_parts_and_as_a_whole(subject: &Subject) -> Verdict {
    let name = subject.name("striped");
    let (ours, theirs) = (
        subject.client().striped(&name, 3),
        subject.client().striped(&name, 3),
    );
    let keys = (0..3).map(|index| {
        let mut keys = (0..).map(|number| format!("key {number}"));
        keys.find(|key| ours.index(key) == index)
            .expect("a key of each stripe")
    });
    let keys: Vec<String> = keys.collect();
    let one = ours.stripe(&keys[0]).acquire().await.expect("acquired");
    let two = theirs
        .stripe(&keys[1])
        .acquire()
        .await
        .expect("another stripe is free");
    let busy = theirs.stripe(&keys[0]).try_acquire().await;
    assert!(
        busy.expect("an answer").is_none(),
        "one stripe was held twice"
    );
    for held in [one, two] {
        let busy = theirs.whole().try_acquire().await;
        assert!(
            busy.expect("an answer").is_none(),
            "the whole was held beside a part"
        );
        let error = in_vain(Duration::from_millis(30), |wait| {
            let whole = ours.whole();
            async move { whole.acquire_timeout(wait).await }
        })
        .await;
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
        assert_eq!(held.release().await.expect("released"), Released::Done);
    }
    let whole = ours.whole().acquire().await.expect("every part is free");
    for key in &keys {
        let busy = theirs.stripe(key).try_acquire().await;
        assert!(
            busy.expect("an answer").is_none(),
            "a part was held beside the whole"
        );
    }
    let busy = theirs.whole().try_acquire().await;
    assert!(
        busy.expect("an answer").is_none(),
        "the whole was held twice"
    );
    let released = whole.release().await;
    assert!(released.all_done(), "{released:?}");
    let all = theirs.whole().acquire().await.expect("it is free again");
    assert_eq!(all.members().len(), 3);
    assert!(all.release().await.all_done());
    for stripes in [0, palisade::Striped::MOST + 1] {
        let bad = subject.client().striped(&name, stripes);
        let part = bad.stripe("key").acquire().await.map(drop);
        let whole = bad.whole().acquire().await.map(drop);
        for refused in [bad.check(), part, whole] {
            assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Config);
        }
    }
    Verdict::Kept
}

/// A grant can be taken out of one client and into another, with its fence; a stale one cannot.
pub async fn a_grant_can_be_handed_over(subject: &Subject) -> Verdict {
    needs!(
        subject.capability().detach != Detach::Never,
        "detached grants"
    );
    let name = subject.name("detached");
    let (first, second) = (subject.client(), subject.client());
    let guard = first
        .mutex(&name)
        .detachable()
        .acquire()
        .await
        .expect("acquired");
    let fence = guard.fence();
    let detached = guard.detach().await.map_err(Error::from).expect("detached");
    assert!(
        second
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "the grant ended with its guard"
    );
    let adopted = second.adopt::<Exclusive>(&detached).await.expect("adopted");
    assert_eq!(adopted.fence(), fence);
    // And on again, as `palisade renew` does.
    let again = adopted
        .detach()
        .await
        .map_err(Error::from)
        .expect("detached again");
    assert_eq!(again.fence(), fence);
    assert!(
        first
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "the grant ended with its second guard"
    );
    let adopted = second
        .adopt::<Exclusive>(&again)
        .await
        .expect("adopted again");
    assert_eq!(adopted.fence(), fence);
    assert_eq!(adopted.release().await.expect("released"), Released::Done);
    let error = first
        .adopt::<AnyMode>(&detached)
        .await
        .expect_err("it is gone");
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error:?}");
    Verdict::Kept
}
