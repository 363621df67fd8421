//! The mutex, as a user sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use palisade::lease::BootClock;
use palisade::store::{Answer, Claim, ClaimId, FenceSource, Order, Revoked};
use palisade::{Attempt, Cause, Client, ErrorKind, LossReason, Released, Status};

use crate::faults::Faulty;
use crate::{Subject, Verdict, eventually, needs, patience};

/// Waits until `count` claims wait in line.
pub(super) async fn waiters(client: &Client, name: &str, count: usize) {
    eventually("the waiters stand in line", async || {
        client
            .show(name)
            .await
            .expect("an answer")
            .is_some_and(|line| line.waiters.len() == count)
    })
    .await;
}

/// Waits until nothing is known of a name.
pub(super) async fn free(client: &Client, name: &str) {
    eventually("the name is free", async || {
        client.show(name).await.expect("an answer").is_none()
    })
    .await;
}

/// Promise 1: never two holders at once. The counter's update is not atomic, so that two holders
/// would lose one. Fences rise in the order in which the critical sections ran.
pub async fn excludes(subject: &Subject) -> Verdict {
    const TASKS: u64 = 100;
    const ROUNDS: u64 = 3;
    let name = subject.name("excludes");
    let has_fence = subject.capability().fence != FenceSource::None;
    let (counter, last_fence) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<Client> = (0..4).map(|_| subject.client()).collect();
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let lock = clients[task as usize % clients.len()].mutex(&name);
        let (counter, last_fence) = (Arc::clone(&counter), Arc::clone(&last_fence));
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = lock.acquire().await.expect("acquired");
                let seen = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counter.store(seen + 1, Ordering::SeqCst);
                let before = last_fence.swap(guard.fence().get(), Ordering::SeqCst);
                assert!(
                    !has_fence || before < guard.fence().get(),
                    "fence {} after {before}",
                    guard.fence()
                );
                assert_eq!(guard.release().await.expect("released"), Released::Done);
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(patience() * 3, task)
            .await
            .expect("every task gets its turn")
            .expect("no task panics");
    }
    assert_eq!(
        counter.load(Ordering::SeqCst),
        TASKS * ROUNDS,
        "updates were lost: two held at once"
    );
    Verdict::Kept
}

/// First come, first served.
pub async fn serves_in_order(subject: &Subject) -> Verdict {
    let capability = subject.capability();
    needs!(
        capability.order == Order::Fifo && capability.waiters_known,
        "an order that can be seen"
    );
    let name = subject.name("in-order");
    let client = subject.client();
    let first = client.mutex(&name).acquire().await.expect("acquired");
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..10 {
        let lock = subject.client().mutex(&name);
        let served = Arc::clone(&served);
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.expect("acquired");
            served.lock().expect("no panic").push(number);
            guard.release().await.expect("released")
        }));
        waiters(&client, &name, number + 1).await;
    }
    assert_eq!(first.release().await.expect("released"), Released::Done);
    for task in tasks {
        assert_eq!(task.await.expect("no task panics"), Released::Done);
    }
    assert_eq!(
        *served.lock().expect("no panic"),
        (0..10).collect::<Vec<_>>()
    );
    Verdict::Kept
}

/// So long after the end of a wait the store may still say who holds the name.
const NAMING: Duration = Duration::from_millis(100);

/// A wait ends when it was to end, says who holds the name, and leaves no place in line; zero is
/// one attempt.
pub async fn waits_no_longer_than_asked(subject: &Subject) -> Verdict {
    let name = subject.name("time-out");
    let (ours, theirs) = (subject.client().with_owner("the holder"), subject.client());
    let guard = ours.mutex(&name).acquire().await.expect("acquired");
    assert!(
        theirs
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "busy is not an error"
    );
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let lock = theirs.mutex(&name);
        let (begun, mut asked) = (Instant::now(), wait);
        // A store that is slow to answer on a busy machine is asked again, and no other.
        loop {
            let attempt = Instant::now();
            let error = lock.acquire_timeout(asked).await.expect_err("it is held");
            let late = attempt.elapsed().checked_sub(asked).expect("too early");
            match (error.kind(), error.holder()) {
                (ErrorKind::Timeout, Some(holder)) => {
                    if subject.capability().holders_known {
                        assert_eq!(holder.owner, "the holder");
                    }
                    break;
                }
                (ErrorKind::Timeout, None) => {
                    println!("the holder was not named {late:?} after a wait of {asked:?}");
                    assert!(late >= NAMING, "the store had time to say more: {error:?}");
                }
                (ErrorKind::Unavailable, _) => asked = (asked * 2).max(Duration::from_millis(10)),
                _ => panic!("{error:?}"),
            }
            assert!(begun.elapsed() < patience(), "{error:?}");
        }
    }
    theirs.shutdown().await;
    let line = ours
        .show(&name)
        .await
        .expect("an answer")
        .expect("it is held");
    assert!(line.waiters.is_empty(), "a place in line is left: {line:?}");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    free(&ours, &name).await;
    Verdict::Kept
}

/// An attempt in vain says who holds the name, as exactly as the store knows.
pub async fn a_refusal_names_the_holder(subject: &Subject) -> Verdict {
    let name = subject.name("refusal");
    let (ours, theirs) = (subject.client().with_owner("the holder"), subject.client());
    let guard = ours
        .mutex(&name)
        .reason("a check")
        .acquire()
        .await
        .expect("acquired");
    let attempt = theirs.mutex(&name).try_acquire_or_holder().await;
    let Attempt::Busy(obstacle) = attempt.expect("an answer") else {
        panic!("held twice")
    };
    assert_eq!(
        (obstacle.name.as_str(), obstacle.cause),
        (&*name, Cause::Held)
    );
    let holder = obstacle
        .holder
        .as_ref()
        .expect("the store knows the holder");
    if subject.capability().holders_known {
        assert_eq!(holder.owner, "the holder");
        assert_eq!(holder.reason.as_deref(), Some("a check"));
        assert_eq!(
            obstacle.to_string(),
            format!("{name} is held by the holder (a check)")
        );
    }
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let attempt = theirs.mutex(&name).try_acquire_or_holder().await;
    let guard = attempt.expect("an answer").acquired().expect("it is free");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// A ping says which server answers.
pub async fn a_ping_names_the_server(subject: &Subject) -> Verdict {
    needs!(subject.store().extensions().ping.is_some(), "a ping");
    let pong = subject.client().ping().await.expect("it answers");
    assert!(!pong.server.product.is_empty(), "{pong:?}");
    let version = pong.server.version.as_deref().unwrap_or_default();
    assert!(
        version.starts_with(|first: char| first.is_ascii_digit()),
        "{pong:?}"
    );
    assert!(pong.latency < patience(), "{pong:?}");
    Verdict::Kept
}

/// Names that look alike, or like a key of the store's own, are different names. A store that
/// cannot take every name says so.
pub async fn names_do_not_meet(subject: &Subject) -> Verdict {
    let client = subject.client();
    let long = "x".repeat(480);
    let nasty = [
        "a",
        "A",
        "a/b",
        "a/",
        "/a",
        "a b",
        " a",
        "a ",
        "a.",
        ".",
        "..",
        "{a}",
        "{",
        "}{",
        "a{b",
        "a:b",
        "a*",
        "a?",
        "[a]",
        "a%2fb",
        "%",
        "a\0b",
        "a\nb",
        "a\\b",
        "'",
        "\"; DROP TABLE x; --",
        "ünïcödé",
        "日本",
        "🔒",
        &long,
    ];
    let mut guards = Vec::new();
    for name in nasty {
        let name = format!("{name}{}", subject.name(""));
        let guard = match client.mutex(&name).try_acquire().await {
            Ok(guard) => guard.unwrap_or_else(|| panic!("{name:?} met another")),
            Err(error) if error.kind() == ErrorKind::Config && !subject.capability().any_name => {
                continue;
            }
            Err(error) => panic!("{name:?} is a good name: {error}"),
        };
        assert!(
            client
                .mutex(&name)
                .try_acquire()
                .await
                .expect("an answer")
                .is_none(),
            "{name:?} does not exclude"
        );
        guards.push(guard);
    }
    for guard in guards {
        let name = guard.name().to_owned();
        assert_eq!(
            guard.release().await.expect("released"),
            Released::Done,
            "{name:?}"
        );
        free(&client, &name).await;
    }
    Verdict::Kept
}

/// After many cycles nothing is left: no name in the store, no claim in the keeper.
pub async fn nothing_is_left_behind(subject: &Subject) -> Verdict {
    let client = subject.client();
    let prefix = subject.name("leaks");
    for round in 0..200 {
        let lock = client.mutex(format!("{prefix}/{round}"));
        let guard = lock.acquire().await.expect("acquired");
        assert!(lock.try_acquire().await.expect("an answer").is_none());
        // A waiter that leaves, a release and a drop.
        assert!(
            lock.acquire_timeout(Duration::from_millis(1))
                .await
                .is_err()
        );
        if round % 2 == 0 {
            assert_eq!(guard.release().await.expect("released"), Released::Done)
        } else {
            drop(guard)
        }
    }
    client.shutdown().await;
    assert_eq!(client.stats().kept, 0, "the keeper still keeps something");
    needs!(subject.capability().list, "listing");
    assert_eq!(
        client.list(&prefix).await.expect("an answer"),
        [],
        "the store still has something"
    );
    Verdict::Kept
}

/// Promise 2: a holder whose grant was ended by an operator is told, once, and why.
pub async fn tells_of_a_revocation(subject: &Subject) -> Verdict {
    needs!(subject.capability().revoke, "revocation");
    let name = subject.name("revoked");
    let (holder, operator) = (subject.client(), subject.client());
    let guard = holder
        .mutex(&name)
        .lease(subject.capability().min_lease.max(Duration::from_secs(3)))
        .acquire()
        .await
        .expect("acquired");
    let stop = guard.on_lost();
    assert!(guard.is_held() && !stop.is_cancelled());
    assert_eq!(
        operator
            .revoke(&name, guard.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    let reason = tokio::time::timeout(patience(), guard.lost())
        .await
        .expect("told");
    assert_eq!(reason, LossReason::Revoked);
    assert!(!guard.is_held());
    assert!(stop.is_cancelled());
    assert_eq!(guard.lost().await, LossReason::Revoked, "lost is for good");
    assert_eq!(
        guard.release().await.expect("an answer"),
        Released::AlreadyLost
    );
    Verdict::Kept
}

/// Promise 2: a release is not a loss.
pub async fn a_release_is_not_a_loss(subject: &Subject) -> Verdict {
    let name = subject.name("released");
    let client = subject.client();
    let guard = client.mutex(&name).acquire().await.expect("acquired");
    let stop = guard.on_lost();
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let next = client.mutex(&name).acquire().await.expect("acquired");
    assert!(!stop.is_cancelled(), "a release fired the loss");
    assert_eq!(next.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// A holder extends its lease itself, and asks the store whether it still has the grant. A grant
/// that the store dropped is detected, and its holder told.
pub async fn a_holder_renews_and_verifies(subject: &Subject) -> Verdict {
    let name = subject.name("verified");
    let (holder, operator) = (subject.client(), subject.client());
    let lease = subject.capability().min_lease.max(Duration::from_secs(2));
    let guard = holder
        .mutex(&name)
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .expect("acquired");
    assert!(guard.verify().await.expect("an answer"));
    // So long that the next renewal is worth a request on stores that share sessions.
    let worn = guard.lease() / 2;
    eventually("half of the lease is over", async || {
        guard.remaining() < worn
    })
    .await;
    assert!(guard.verify().await.expect("an answer"));
    assert!(guard.remaining() < worn, "a look has renewed the lease");
    let left = guard.renew().await.expect("renewed");
    assert!(
        left > worn && guard.remaining() > worn,
        "{left:?} after a renewal"
    );
    needs!(subject.capability().revoke, "revocation");
    assert_eq!(
        operator
            .revoke(&name, guard.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    // A busy cluster may not answer within the short lease; but an answer is right.
    eventually("the store has answered", async || {
        match guard.verify().await {
            Ok(is_held) => {
                assert!(!is_held, "the store has dropped it");
                true
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => false,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
    assert!(!guard.is_held());
    assert!(matches!(
        guard.renew().await.expect_err("gone").kind(),
        ErrorKind::Lost(_)
    ));
    assert_eq!(
        guard.release().await.expect("an answer"),
        Released::AlreadyLost
    );
    free(&operator, &name).await;
    Verdict::Kept
}

/// Dead waiters together cost the next live one at most one wait lease.
pub async fn dead_waiters_cost_one_wait_lease(subject: &Subject) -> Verdict {
    needs!(subject.capability().order == Order::Fifo, "a line");
    let store = subject.store();
    let lease = subject.capability().min_lease.max(Duration::from_secs(1));
    let claim = Claim {
        lease,
        ..subject.claim("dead-waiters")
    };
    let client = subject.client();
    let guard = client
        .mutex(claim.name.as_str())
        .lease(lease)
        .acquire()
        .await
        .expect("acquired");
    for _ in 0..30 {
        // Claimed and never renewed: dead.
        let dead = Claim {
            id: ClaimId::from_bits(fastrand::u128(..)),
            ..claim.clone()
        };
        assert!(matches!(
            store.claim(&Arc::new(dead)).await.expect("an answer"),
            Answer::Queued(_)
        ));
    }
    let live = client.mutex(claim.name.as_str()).lease(lease);
    let waiting = tokio::spawn(async move { live.acquire().await });
    waiters(&client, claim.name.as_str(), 31).await;
    let freed = Instant::now();
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let guard = waiting.await.expect("no panic").expect("acquired");
    // Half a second on top for a machine that is busy with other checks; where a waiter hangs on a
    // session, the server's ticks, too.
    let slack = Duration::from_millis(if subject.capability().short_waits {
        500
    } else {
        10_000
    });
    assert!(
        freed.elapsed() <= lease + slack,
        "after {:?}",
        freed.elapsed()
    );
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// A granted waiter keeps the expiry it had: a dead one holds until then, and not for a full lease.
pub async fn a_dead_waiter_is_given_no_lease(subject: &Subject) -> Verdict {
    needs!(subject.capability().order == Order::Fifo, "a line");
    let store = subject.store();
    // Where a waiter lives as long as the session of its lease, it stays in line for that long. An
    // ensemble adds several ticks: it rounds up to one, and followers report sessions once per
    // tick.
    let (times, slack) = if subject.capability().short_waits {
        (4, 1)
    } else {
        (1, 10)
    };
    let claim = Arc::new(Claim {
        lease: times * Claim::LONGEST_WAIT_LEASE,
        ..subject.claim("no-lease")
    });
    let client = subject.client();
    let guard = client
        .mutex(claim.name.as_str())
        .acquire()
        .await
        .expect("acquired");
    assert!(matches!(
        store.claim(&claim).await.expect("an answer"),
        Answer::Queued(_)
    ));
    let live = client.mutex(claim.name.as_str());
    let waiting = tokio::spawn(async move { live.acquire().await });
    waiters(&client, claim.name.as_str(), 2).await;
    let freed = Instant::now();
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let guard = waiting.await.expect("no panic").expect("acquired");
    // Something on top for a machine that is busy with other checks.
    assert!(
        freed.elapsed() <= claim.wait_lease() + Duration::from_secs(slack),
        "after {:?}",
        freed.elapsed()
    );
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// A push that is lost costs a heartbeat, not the lock.
pub async fn a_lost_push_is_healed(subject: &Subject) -> Verdict {
    let name = subject.name("lost-push");
    let (faulty, faults) = Faulty::over(subject.store());
    let (holder, waiter) = (subject.client(), Client::over(faulty, Arc::new(BootClock)));
    let guard = holder.mutex(&name).acquire().await.expect("acquired");
    faults.drop_pushes(true);
    let lock = waiter.mutex(&name).lease(
        subject
            .capability()
            .min_lease
            .max(Duration::from_millis(600)),
    );
    let waiting = tokio::spawn(async move { lock.acquire().await });
    if subject.capability().waiters_known {
        waiters(&holder, &name, 1).await;
    }
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let guard = tokio::time::timeout(patience(), waiting)
        .await
        .expect("healed")
        .expect("no panic")
        .expect("acquired");
    assert_eq!(guard.status(), Status::Held);
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// A claim whose reply was lost finds its own grant; a release whose reply was lost
/// is not held against us.
pub async fn a_lost_reply_is_found_again(subject: &Subject) -> Verdict {
    let name = subject.name("lost-reply");
    let (faulty, faults) = Faulty::over(subject.store());
    let (client, other) = (Client::over(faulty, Arc::new(BootClock)), subject.client());
    faults.lose_replies(true);
    let lock = client.mutex(&name);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("the claim arrives", async || {
        other.show(&name).await.expect("an answer").is_some()
    })
    .await;
    faults.lose_replies(false);
    let guard = tokio::time::timeout(patience(), waiting)
        .await
        .expect("found")
        .expect("no panic")
        .expect("acquired");
    assert_eq!(
        other
            .show(&name)
            .await
            .expect("an answer")
            .expect("held")
            .holders
            .len(),
        1
    );
    faults.lose_replies(true);
    assert_eq!(guard.release().await.expect("an answer"), Released::Unknown);
    free(&other, &name).await;
    faults.lose_replies(false);
    client.shutdown().await;
    Verdict::Kept
}

/// Promise 3: every grant of a name has a higher fence than the one before, in every mode.
pub async fn fences_rise(subject: &Subject) -> Verdict {
    let capability = subject.capability();
    needs!(capability.fence != FenceSource::None, "fences");
    let name = subject.name("fences");
    let clients = [subject.client(), subject.client()];
    let mut last = 0;
    for round in 0..30 {
        let client = &clients[round % 2];
        // Released, and not dropped: the next may be of another kind, which is refused while this
        // one holds.
        let fence = if capability.rwlock && subject.kinds_take_turns() && round % 3 == 0 {
            let guard = client.rwlock(&name).read().await.expect("acquired");
            let fence = guard.fence().get();
            assert_eq!(guard.release().await.expect("released"), Released::Done);
            fence
        } else {
            let guard = client.mutex(&name).acquire().await.expect("acquired");
            let fence = guard.fence().get();
            assert_eq!(guard.release().await.expect("released"), Released::Done);
            fence
        };
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    Verdict::Kept
}

/// What an operator sees: holders with owner, reason and fence; waiters in order.
pub async fn inspection_shows_the_line(subject: &Subject) -> Verdict {
    let capability = subject.capability();
    let name = subject.name("inspected");
    let client = subject.client();
    assert_eq!(client.show(&name).await.expect("an answer"), None);
    let guard = client
        .with_owner("alice")
        .mutex(&name)
        .reason("nightly run")
        .acquire()
        .await
        .expect("acquired");
    let mut waiting = Vec::new();
    for (number, owner) in ["bob", "carol"].into_iter().enumerate() {
        let lock = client.with_owner(owner).mutex(&name).reason("next");
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        if capability.waiters_known {
            waiters(&client, &name, number + 1).await;
        }
    }
    let line = client
        .show(&name)
        .await
        .expect("an answer")
        .expect("it is held");
    assert_eq!(line.name, name);
    let holder = &line.holders[0];
    assert_eq!(
        (holder.owner.as_str(), holder.reason.as_deref()),
        ("alice", Some("nightly run"))
    );
    assert_eq!(holder.fence, guard.fence());
    assert!(holder.lease_left.is_none_or(|left| left <= guard.lease()));
    assert_eq!(line.waiters_known, capability.waiters_known);
    if capability.waiters_known {
        let owners: Vec<&str> = line
            .waiters
            .iter()
            .map(|waiter| waiter.owner.as_str())
            .collect();
        assert_eq!(owners, ["bob", "carol"]);
    }
    if capability.list {
        let listed = client.list(&name).await.expect("an answer");
        assert_eq!(
            listed
                .iter()
                .map(|line| line.name.as_str())
                .collect::<Vec<_>>(),
            [name.as_str()]
        );
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    free(&client, &name).await;
    Verdict::Kept
}
