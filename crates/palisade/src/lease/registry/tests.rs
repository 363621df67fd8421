use std::pin::pin;
use std::task::{Context, Waker};

use super::*;
use crate::Fence;
use crate::lease::tracked::Terms;
use crate::lease::{Drift, ManualClock};
use crate::store::{Claim, Gone, Grant, Lease, Standing};

const LEASE: Duration = Duration::from_secs(30);

fn registry() -> (Arc<Registry>, ManualClock) {
    let clock = ManualClock::new();
    (Registry::new(Arc::new(clock.clone())), clock)
}

fn grant() -> Grant {
    Grant {
        fence: Fence::new(7).expect("a fence"),
        lease: Lease::of(LEASE),
    }
}

fn held(id: u128, now: Moment) -> Arc<TrackedClaim> {
    let claim = Claim::of_mutex(ClaimId::from_bits(id), "x", LEASE);
    let terms = Terms {
        auto_renew: true,
        max_hold: None,
        stop_margin: Duration::from_secs(1),
        drift: Drift::default(),
    };
    TrackedClaim::granted(Arc::new(claim), terms, now, grant(), now)
}

/// A holder that the registry keeps from now on.
fn tracked(registry: &Registry, id: u128) -> Arc<TrackedClaim> {
    let tracked = held(id, registry.clock.now());
    registry.keep(&tracked);
    tracked
}

/// A tracked claim whose renewal has been taken up, so that its next is an attempt away.
fn renewing(registry: &Registry, clock: &ManualClock) -> Arc<TrackedClaim> {
    let tracked = tracked(registry, 1);
    clock.advance(LEASE / 3);
    assert_eq!(registry.take_due().len(), 1);
    assert!(registry.take_due().is_empty(), "taken up once");
    tracked
}

/// Between a request and its answer the store may have become another one: the answer does not count as the renewal that
/// was asked for since.
#[test]
fn an_answer_does_not_postpone_a_renewal_that_was_asked_for() {
    let (registry, clock) = registry();
    let tracked = renewing(&registry, &clock);
    let sent = clock.now();
    registry.renew_now(&tracked);
    tracked.confirm(sent, Standing::Held(grant()), clock.now());
    registry.settle(&tracked);
    assert_eq!(registry.take_due().len(), 1);
    registry.settle(&tracked);
    assert!(registry.take_due().is_empty(), "once");
    clock.advance(LEASE / 3);
    assert_eq!(registry.take_due().len(), 1, "then at its cadence");
}

#[test]
fn a_failure_does_not_postpone_a_renewal_that_was_asked_for() {
    let (registry, clock) = registry();
    let tracked = renewing(&registry, &clock);
    registry.renew_now_if(|_| true);
    registry.retry_within(&tracked, Duration::from_secs(2));
    assert_eq!(registry.take_due().len(), 1);
    registry.retry_within(&tracked, Duration::from_secs(2));
    assert!(registry.take_due().is_empty(), "nobody has asked since");
    clock.advance(Duration::from_secs(2));
    assert_eq!(registry.take_due().len(), 1);
}

#[test]
fn a_claim_is_kept_once_and_forgotten_by_its_keeper_only() {
    let (registry, clock) = registry();
    let (first, second) = (held(1, clock.now()), held(1, clock.now()));
    assert!(registry.keep_new(&first));
    assert!(!registry.keep_new(&second), "the same claim");
    registry.forget(&second);
    assert!(
        registry
            .find(first.claim.id)
            .is_some_and(|tracked| Arc::ptr_eq(&tracked, &first))
    );
    registry.forget(&first);
    assert_eq!(registry.len(), 0);
    assert!(registry.keep_new(&second));
    clock.advance(LEASE / 3);
    assert!(
        registry
            .take_due()
            .iter()
            .all(|tracked| Arc::ptr_eq(tracked, &second)),
        "nothing is left of the first"
    );
}

/// The answer is taken up in one thread, and the store's push comes in another: it may come first.
#[test]
fn a_push_before_the_answer_is_heard_with_the_answer() {
    let (registry, clock) = registry();
    let (early, other) = (held(1, clock.now()), held(2, clock.now()));
    for tracked in [&early, &other] {
        registry.enter(tracked.claim.id);
    }
    registry.hear(Push::Gone {
        claim: early.claim.id,
        why: Gone::Expired,
    });
    registry.keep(&other);
    assert!(
        registry.take_due().is_empty(),
        "the store has said nothing of this one"
    );
    registry.keep(&early);
    assert!(
        registry
            .take_due()
            .iter()
            .any(|tracked| Arc::ptr_eq(tracked, &early)),
        "asked for at once"
    );
}

/// What the store says of a claim that its caller has given up is for no claim.
#[test]
fn a_claim_that_was_given_up_is_not_wanted() {
    let (registry, clock) = registry();
    let tracked = held(1, clock.now());
    let id = tracked.claim.id;
    assert!(!registry.wants(id));
    let _pending = registry.enter(id);
    assert!(registry.wants(id));
    registry.leave(id);
    assert!(!registry.wants(id));
    registry.hear(Push::AskAgain { claim: id });
    registry.keep(&tracked);
    assert!(
        registry.wants(id) && registry.take_due().is_empty(),
        "the push came to the attempt before"
    );
}

/// What the store has ended is not tracked.
#[test]
fn what_the_store_has_ended_leaves() {
    let (registry, _) = registry();
    let tracked = tracked(&registry, 1);
    tracked.ended(Gone::Revoked);
    registry.settle(&tracked);
    assert_eq!(registry.len(), 0);
}

/// What the clock has ended leaves as well. Whoever removes it before the warden has come to it tells of it.
#[test]
fn what_the_clock_has_ended_is_told_of_before_it_leaves() {
    for by_warden in [true, false] {
        let (registry, clock) = registry();
        let tracked = tracked(&registry, 1);
        let stop = tracked.stop_token();
        clock.advance(LEASE);
        assert!(!stop.is_cancelled(), "nobody has looked");
        if by_warden {
            registry.close();
            assert!(!registry.look(), "closed and empty");
        } else {
            registry.settle(&tracked);
        }
        assert!(stop.is_cancelled());
        assert_eq!(registry.len(), 0);
    }
}

#[test]
fn a_renewal_that_hangs_is_followed_by_one_more() {
    let (registry, clock) = registry();
    let tracked = renewing(&registry, &clock);
    assert!(tracked.begin_attempt(clock.now()) && tracked.trouble().is_none());
    clock.advance(tracked.attempt(clock.now()));
    assert_eq!(registry.take_due().len(), 1);
    assert!(tracked.begin_attempt(clock.now()) && tracked.trouble().is_some());
    assert!(!tracked.begin_attempt(clock.now()), "two are enough");
    tracked.end_attempt();
    assert!(tracked.begin_attempt(clock.now()));
}

/// Sleepers hear of a clock that is moved by hand, and do not wait for their tick.
#[tokio::test]
async fn a_jump_of_the_clock_wakes_the_keeper() {
    let (registry, clock) = registry();
    let tracked = tracked(&registry, 1);
    // The keeping itself is news to a keeper that has not slept yet.
    assert!(registry.renewal_due().await);
    let mut due = pin!(registry.renewal_due());
    let mut polled = || due.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled().is_pending());
    clock.advance(LEASE / 3);
    assert!(polled().is_ready());
    assert!(Arc::ptr_eq(&registry.take_due()[0], &tracked));
}

/// A waker of the user's that panics costs nobody else his telling, and its own claim nothing but that waker.
#[test]
fn a_waker_that_panics_leaves_nobody_untold() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("in a waker");
        }
    }
    let (registry, clock) = registry();
    let all: Vec<Arc<TrackedClaim>> = (0..4).map(|id| tracked(&registry, id)).collect();
    let stops: Vec<_> = all.iter().map(|tracked| tracked.stop_token()).collect();
    let waker = Waker::from(Arc::new(Panics));
    let mut waiting: Vec<_> = all
        .iter()
        .map(|tracked| Box::pin(tracked.changed()))
        .collect();
    for changed in &mut waiting {
        assert!(
            changed
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    clock.advance(LEASE);
    registry.close();
    assert!(!registry.look(), "closed and empty");
    assert!(
        stops
            .iter()
            .all(tokio_util::sync::CancellationToken::is_cancelled),
        "somebody was not told"
    );
}

/// A grant that the clock has ended is not renewed any more: the keeper releases it, where it hangs on a session that lives on.
#[test]
fn a_grant_that_the_clock_has_ended_is_to_be_released() {
    for by_warden in [true, false] {
        let (registry, clock) = registry();
        let (ended, released) = (tracked(&registry, 1), tracked(&registry, 2));
        drop(released.give_back(clock.now()));
        registry.forget(&released);
        clock.advance(LEASE);
        if by_warden {
            registry.close();
            assert!(!registry.look(), "closed and empty");
        } else {
            registry.settle(&ended);
        }
        let to_release = registry.take_ended();
        assert_eq!(
            to_release
                .iter()
                .map(|claim| claim.claim.id)
                .collect::<Vec<_>>(),
            [ended.claim.id]
        );
        assert!(to_release[0].fence.is_some() && registry.take_ended().is_empty());
    }
}
