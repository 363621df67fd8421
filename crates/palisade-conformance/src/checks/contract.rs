//! The store contract itself, without a client.

use std::sync::Arc;
use std::time::Duration;

use palisade::store::{
    Answer, Claim, ClaimId, ClaimRef, Ending, FenceSource, Gone, Grant, Kind, Mode, Push, Query,
    Released, Revoked, Standing, Store,
};
use palisade::{ErrorKind, Fence};

use crate::{Subject, Verdict, eventually, needs};

async fn granted(store: &dyn Store, claim: &Arc<Claim>) -> Grant {
    match store.claim(claim).await.expect("an answer") {
        Answer::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// A claim by another owner, otherwise equal.
fn another(claim: &Claim) -> Arc<Claim> {
    Arc::new(Claim {
        id: ClaimId::from_bits(fastrand::u128(..)),
        ..claim.clone()
    })
}

async fn released(store: &dyn Store, claim: &ClaimRef) -> Released {
    store
        .release(claim, Ending::Release)
        .await
        .expect("an answer")
}

async fn standing(store: &dyn Store, claim: &ClaimRef) -> Standing {
    store
        .renew(std::slice::from_ref(claim))
        .await
        .remove(0)
        .expect("an answer")
}

async fn is_empty(store: &dyn Store, claim: &Claim) -> bool {
    store
        .inspect(&Query::Show(claim.name.clone()))
        .await
        .expect("an answer")
        .lines
        .is_empty()
}

/// Promise 1: a claim that is sent again after a lost reply finds its own grant and not a second
/// one.
pub async fn claim_is_idempotent(subject: &Subject) -> Verdict {
    let store = subject.store();
    let claim = Arc::new(subject.claim("idempotent"));
    let first = granted(&*store, &claim).await;
    assert_eq!(granted(&*store, &claim).await.fence, first.fence);
    let waiting = another(&claim);
    for _ in 0..2 {
        match store.claim(&waiting).await.expect("an answer") {
            Answer::Queued(place) => assert!(
                place.ahead.is_none_or(|ahead| ahead == 0),
                "a second place in line: {place:?}"
            ),
            Answer::Busy(_) => {}
            other => panic!("granted beside the holder: {other:?}"),
        }
    }
    let _ = released(&*store, &waiting.to_ref(None)).await;
    assert_eq!(
        released(&*store, &claim.to_ref(Some(first.fence))).await,
        Released::Done
    );
    assert!(is_empty(&*store, &claim).await);
    Verdict::Kept
}

/// Promise 1: only claim and fence of this grant together can release it.
pub async fn release_needs_claim_and_fence(subject: &Subject) -> Verdict {
    let store = subject.store();
    let claim = Arc::new(subject.claim("conditional"));
    let fence = granted(&*store, &claim).await.fence;
    let stranger = another(&claim);
    let other_fence = Fence::new(fence.get() + 1);
    assert_eq!(
        released(&*store, &stranger.to_ref(Some(fence))).await,
        Released::AlreadyLost,
        "another claim, our fence"
    );
    assert_eq!(
        released(&*store, &stranger.to_ref(None)).await,
        Released::AlreadyLost,
        "another claim"
    );
    assert_eq!(
        released(&*store, &claim.to_ref(other_fence)).await,
        Released::AlreadyLost,
        "our claim, another fence"
    );
    assert!(
        matches!(
            standing(&*store, &claim.to_ref(other_fence)).await,
            Standing::Gone(_)
        ),
        "renewed by another fence"
    );
    assert!(
        matches!(standing(&*store, &claim.to_ref(Some(fence))).await, Standing::Held(grant) if grant.fence == fence)
    );
    assert_eq!(
        released(&*store, &claim.to_ref(Some(fence))).await,
        Released::Done
    );
    assert_eq!(
        released(&*store, &claim.to_ref(Some(fence))).await,
        Released::AlreadyLost,
        "a second time"
    );
    Verdict::Kept
}

/// Promise 2: one renewal answers for many claims, in their order.
pub async fn renewal_says_where_each_stands(subject: &Subject) -> Verdict {
    let store = subject.store();
    needs!(
        subject.capability().order == palisade::store::Order::Fifo,
        "a line"
    );
    let holder = Arc::new(subject.claim("standings"));
    let fence = granted(&*store, &holder).await.fence;
    let [waiter, stranger] = [0, 1].map(|_| another(&holder));
    assert!(matches!(
        store.claim(&waiter).await.expect("an answer"),
        Answer::Queued(_)
    ));
    let asked = [
        stranger.to_ref(None),
        waiter.to_ref(None),
        holder.to_ref(Some(fence)),
        holder.to_ref(None),
    ];
    let standings: Vec<Standing> = store
        .renew(&asked)
        .await
        .into_iter()
        .map(|answer| answer.expect("an answer"))
        .collect();
    assert!(
        matches!(standings[0], Standing::Gone(Gone::Taken | Gone::Unknown)),
        "{standings:?}"
    );
    assert!(
        matches!(standings[1], Standing::Waiting(_)),
        "{standings:?}"
    );
    assert!(
        matches!(standings[2], Standing::Held(grant) if grant.fence == fence),
        "{standings:?}"
    );
    assert!(
        matches!(standings[3], Standing::Held(grant) if grant.fence == fence),
        "by the claim alone: {standings:?}"
    );
    assert_eq!(
        released(&*store, &waiter.to_ref(None)).await,
        Released::Done
    );
    assert_eq!(
        released(&*store, &holder.to_ref(Some(fence))).await,
        Released::Done
    );
    Verdict::Kept
}

/// Promise 1: an answer that carries the fence of an earlier grant does not move a waiter, which
/// keeps its one place.
pub async fn an_old_fence_changes_no_place(subject: &Subject) -> Verdict {
    needs!(
        subject.capability().order == palisade::store::Order::Fifo,
        "a line"
    );
    needs!(
        subject.capability().fence != FenceSource::None,
        "to tell one grant from another"
    );
    let store = subject.store();
    let waiter = Arc::new(subject.claim("old-fence"));
    let holder = another(&waiter);
    let old = granted(&*store, &waiter).await.fence;
    assert_eq!(
        released(&*store, &waiter.to_ref(Some(old))).await,
        Released::Done
    );
    let fence = granted(&*store, &holder).await.fence;
    assert!(matches!(
        store.claim(&waiter).await.expect("an answer"),
        Answer::Queued(_)
    ));
    assert!(
        matches!(
            standing(&*store, &waiter.to_ref(Some(old))).await,
            Standing::Gone(_)
        ),
        "renewed by another fence"
    );
    assert!(
        matches!(
            store.claim(&waiter).await.expect("an answer"),
            Answer::Queued(_)
        ),
        "after the renewal"
    );
    assert_eq!(
        released(&*store, &waiter.to_ref(Some(old))).await,
        Released::AlreadyLost,
        "by another fence"
    );
    assert!(
        matches!(
            store.claim(&waiter).await.expect("an answer"),
            Answer::Queued(_)
        ),
        "after the release"
    );
    assert_eq!(
        released(&*store, &holder.to_ref(Some(fence))).await,
        Released::Done
    );
    let Standing::Held(grant) = standing(&*store, &waiter.to_ref(None)).await else {
        panic!("its place is lost")
    };
    assert_eq!(
        released(&*store, &waiter.to_ref(Some(grant.fence))).await,
        Released::Done
    );
    assert!(
        is_empty(&*store, &waiter).await,
        "it had a second place in line"
    );
    Verdict::Kept
}

/// A single attempt leaves no place in line behind.
pub async fn a_try_leaves_nothing(subject: &Subject) -> Verdict {
    let store = subject.store();
    let holder = Arc::new(subject.claim("try"));
    let fence = granted(&*store, &holder).await.fence;
    let attempt = Claim {
        id: ClaimId::from_bits(fastrand::u128(..)),
        queue: false,
        ..(*holder).clone()
    };
    let Answer::Busy(busy) = store.claim(&Arc::new(attempt)).await.expect("an answer") else {
        panic!("not busy")
    };
    if subject.capability().holders_known {
        assert_eq!(
            busy.holder.map(|holder| holder.owner),
            Some("conformance".to_owned()),
            "who holds it"
        );
    }
    assert_eq!(
        released(&*store, &holder.to_ref(Some(fence))).await,
        Released::Done
    );
    assert!(
        is_empty(&*store, &holder).await,
        "something is left in line"
    );
    Verdict::Kept
}

/// A release grants to the next in line in the same step, and tells it.
pub async fn release_hands_over(subject: &Subject) -> Verdict {
    needs!(
        subject.capability().order == palisade::store::Order::Fifo,
        "a line"
    );
    let (ours, (theirs, mut pushes)) = (subject.store(), subject.store_with_pushes());
    let holder = Arc::new(subject.claim("hand-over"));
    let fence = granted(&*ours, &holder).await.fence;
    let waiter = another(&holder);
    assert!(matches!(
        theirs.claim(&waiter).await.expect("an answer"),
        Answer::Queued(_)
    ));
    assert_eq!(
        released(&*ours, &holder.to_ref(Some(fence))).await,
        Released::Done
    );
    let push = tokio::time::timeout(crate::patience(), pushes.recv())
        .await
        .expect("pushed in time")
        .expect("a push");
    let Standing::Held(grant) = standing(&*theirs, &waiter.to_ref(None)).await else {
        panic!("woken, but not granted")
    };
    assert!(grant.fence > fence || subject.capability().fence == FenceSource::None);
    let granted = Push::Granted {
        claim: waiter.id,
        fence: grant.fence,
    };
    assert!(
        push == Push::AskAgain { claim: waiter.id } || push == granted,
        "{push:?} and not {grant:?}"
    );
    assert_eq!(
        released(&*theirs, &waiter.to_ref(Some(grant.fence))).await,
        Released::Done
    );
    Verdict::Kept
}

/// Cancel is release: a waiter that leaves the line is not granted, and blocks no other claim.
pub async fn a_waiter_can_step_out(subject: &Subject) -> Verdict {
    needs!(
        subject.capability().order == palisade::store::Order::Fifo,
        "a line"
    );
    let store = subject.store();
    let holder = Arc::new(subject.claim("step-out"));
    let fence = granted(&*store, &holder).await.fence;
    let [first, second] = [0, 1].map(|_| another(&holder));
    for waiter in [&first, &second] {
        assert!(matches!(
            store.claim(waiter).await.expect("an answer"),
            Answer::Queued(_)
        ));
    }
    assert_eq!(released(&*store, &first.to_ref(None)).await, Released::Done);
    assert_eq!(
        released(&*store, &first.to_ref(None)).await,
        Released::AlreadyLost,
        "a second time"
    );
    assert_eq!(
        released(&*store, &holder.to_ref(Some(fence))).await,
        Released::Done
    );
    assert!(matches!(
        standing(&*store, &first.to_ref(None)).await,
        Standing::Gone(_)
    ));
    let Standing::Held(grant) = standing(&*store, &second.to_ref(None)).await else {
        panic!("the next was not granted")
    };
    assert_eq!(
        released(&*store, &second.to_ref(Some(grant.fence))).await,
        Released::Done
    );
    Verdict::Kept
}

/// Promise 1: an expired claim is gone. Neither a renewal nor a release of it touches the next
/// holder.
pub async fn an_expired_claim_is_not_revived(subject: &Subject) -> Verdict {
    let store = subject.store();
    let lease = subject
        .capability()
        .min_lease
        .max(Duration::from_millis(200));
    let old = Arc::new(Claim {
        lease,
        ..subject.claim("expired")
    });
    let fence = granted(&*store, &old).await.fence;
    // With a lease that outlasts the check, however slow the machine.
    let next = Arc::new(Claim {
        id: ClaimId::from_bits(fastrand::u128(..)),
        queue: false,
        ..subject.claim("expired")
    });
    eventually("the lease ends", async || {
        matches!(
            store.claim(&next).await.expect("an answer"),
            Answer::Granted(_)
        )
    })
    .await;
    let grant = granted(&*store, &next).await;
    assert!(grant.fence > fence || subject.capability().fence == FenceSource::None);
    assert!(
        matches!(
            standing(&*store, &old.to_ref(Some(fence))).await,
            Standing::Gone(_)
        ),
        "revived"
    );
    assert!(
        matches!(
            standing(&*store, &old.to_ref(None)).await,
            Standing::Gone(_)
        ),
        "revived by the claim alone"
    );
    assert_eq!(
        released(&*store, &old.to_ref(Some(fence))).await,
        Released::AlreadyLost
    );
    assert!(
        matches!(
            standing(&*store, &next.to_ref(Some(grant.fence))).await,
            Standing::Held(_)
        ),
        "the next holder lost it"
    );
    assert_eq!(
        released(&*store, &next.to_ref(Some(grant.fence))).await,
        Released::Done
    );
    Verdict::Kept
}

/// One name serves one kind at a time, and the error names both.
pub async fn another_kind_is_refused(subject: &Subject) -> Verdict {
    needs!(
        subject.is_as_it_is(),
        "anything about kinds that run as a mutex"
    );
    needs!(subject.capability().semaphore, "semaphores");
    let store = subject.store();
    let mutex = Arc::new(subject.claim("kinds"));
    let fence = granted(&*store, &mutex).await.fence;
    let semaphore = |limit| Claim {
        id: ClaimId::from_bits(fastrand::u128(..)),
        kind: Kind::Semaphore { limit },
        mode: Mode::Permits(1),
        queue: false,
        ..(*mutex).clone()
    };
    let error = store
        .claim(&Arc::new(semaphore(3)))
        .await
        .expect_err("a semaphore on a held mutex");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(
        error.to_string().contains("mutex") && error.to_string().contains("semaphore"),
        "it names both: {error}"
    );
    let name = mutex.name.as_str();
    assert!(error.to_string().contains(name), "it names {name}: {error}");
    assert_eq!(
        released(&*store, &mutex.to_ref(Some(fence))).await,
        Released::Done
    );
    let three = Arc::new(semaphore(3));
    let fence = granted(&*store, &three).await.fence;
    let error = store
        .claim(&Arc::new(semaphore(4)))
        .await
        .expect_err("another limit");
    assert!(
        error.to_string().contains('3') && error.to_string().contains('4'),
        "it names both: {error}"
    );
    assert_eq!(
        released(&*store, &three.to_ref(Some(fence))).await,
        Released::Done
    );
    Verdict::Kept
}

/// A revocation ends only the grant whose fence it names.
pub async fn revocation_names_the_fence(subject: &Subject) -> Verdict {
    needs!(subject.capability().revoke, "revocation");
    let store = subject.store();
    let claim = Arc::new(subject.claim("revoked"));
    assert_eq!(
        store
            .revoke(&claim.name, Fence::MAX)
            .await
            .expect("an answer"),
        Revoked::NotHeld
    );
    let fence = granted(&*store, &claim).await.fence;
    assert_eq!(
        store
            .revoke(&claim.name, Fence::MAX)
            .await
            .expect("an answer"),
        Revoked::OtherHolder { fence }
    );
    assert!(
        matches!(
            standing(&*store, &claim.to_ref(Some(fence))).await,
            Standing::Held(_)
        ),
        "the wrong fence ended it"
    );
    assert_eq!(
        store.revoke(&claim.name, fence).await.expect("an answer"),
        Revoked::Done
    );
    assert_eq!(
        standing(&*store, &claim.to_ref(Some(fence))).await,
        Standing::Gone(Gone::Revoked)
    );
    assert_eq!(
        store.revoke(&claim.name, fence).await.expect("an answer"),
        Revoked::NotHeld
    );
    Verdict::Kept
}

/// A claim that was revoked, is made again and is turned away was revoked still: it has had no new
/// life. The other holder may be gone by then. A store with one value for each name has forgotten
/// it.
pub async fn a_claim_turned_away_again_was_revoked(subject: &Subject) -> Verdict {
    let capability = subject.capability();
    needs!(capability.revoke, "revocation");
    needs!(capability.order == palisade::store::Order::Fifo, "a line");
    let store = subject.store();
    let claim = Arc::new(Claim {
        queue: false,
        ..subject.claim("revoked-again")
    });
    let fence = granted(&*store, &claim).await.fence;
    assert_eq!(
        store.revoke(&claim.name, fence).await.expect("an answer"),
        Revoked::Done
    );
    let next = another(&claim);
    let next_fence = granted(&*store, &next).await.fence;
    match store.claim(&claim).await.expect("an answer") {
        Answer::Busy(_) => {}
        other => panic!("held twice: {other:?}"),
    }
    let claim = claim.to_ref(Some(fence));
    assert_eq!(
        standing(&*store, &claim).await,
        Standing::Gone(Gone::Revoked)
    );
    assert_eq!(
        released(&*store, &next.to_ref(Some(next_fence))).await,
        Released::Done
    );
    assert_eq!(
        standing(&*store, &claim).await,
        Standing::Gone(Gone::Revoked)
    );
    Verdict::Kept
}

/// A renewal of a grant that was released does not say that its lease ran out, and one of a grant
/// that the store never gave says that it is unknown.
pub async fn a_gone_grant_says_what_is_known(subject: &Subject) -> Verdict {
    let store = subject.store();
    let claim = Arc::new(subject.claim("gone"));
    let fence = granted(&*store, &claim).await.fence;
    needs!(!fence.is_none(), "fences");
    assert_eq!(
        store
            .release(&claim.to_ref(Some(fence)), Ending::Release)
            .await
            .expect("an answer"),
        Released::Done
    );
    assert_eq!(
        standing(&*store, &claim.to_ref(Some(fence))).await,
        Standing::Gone(Gone::Ended)
    );
    // Far ahead of what this store has given: a store that has lost its data meets such a one.
    let ahead = Fence::new(fence.get() + (1 << 45)).expect("a fence");
    for asked in [
        claim.to_ref(Some(ahead)),
        another(&claim).to_ref(Some(ahead)),
    ] {
        assert_eq!(
            standing(&*store, &asked).await,
            Standing::Gone(Gone::Unknown)
        );
    }
    Verdict::Kept
}

/// A seal whose reply was lost is found again by the claim that set it.
pub async fn seal_is_idempotent(subject: &Subject) -> Verdict {
    needs!(subject.capability().once, "sealing");
    let store = subject.store();
    let claim = Arc::new(subject.claim("sealed"));
    let fence = granted(&*store, &claim).await.fence;
    let seal = Ending::Seal(Duration::from_secs(60));
    for _ in 0..2 {
        assert_eq!(
            store
                .release(&claim.to_ref(Some(fence)), seal)
                .await
                .expect("an answer"),
            Released::Done
        );
    }
    let stranger = another(&claim);
    assert_eq!(
        store.claim(&stranger).await.expect("an answer"),
        Answer::Sealed
    );
    assert_eq!(
        store
            .release(&stranger.to_ref(None), seal)
            .await
            .expect("an answer"),
        Released::AlreadyLost
    );
    Verdict::Kept
}
