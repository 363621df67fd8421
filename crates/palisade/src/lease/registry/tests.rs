//! The registry by a clock that the tests move.

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;
use crate::Fence;
use crate::lease::tracked::Terms;
use crate::lease::{Drift, ManualClock};
use crate::store::{Claim, Gone, Grant, Lease, Place, Standing};

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

fn place() -> Place {
    Place {
        ahead: None,
        ask_in: None,
        lease: Lease::of(LEASE),
        holder: None,
    }
}

fn waiting(id: u128, now: Moment) -> Arc<TrackedClaim> {
    let holder = held(id, now);
    TrackedClaim::queued(Arc::clone(&holder.claim), holder.terms, now, place(), now)
}

/// A holder that the registry tracks from now on.
fn tracked(registry: &Registry, id: u128) -> Arc<TrackedClaim> {
    let tracked = held(id, registry.clock.now());
    registry.keep(&tracked);
    tracked
}

/// A tracked claim whose renewal has begun, so that its next is one attempt away.
fn renewing(registry: &Registry, clock: &ManualClock) -> Arc<TrackedClaim> {
    let tracked = tracked(registry, 1);
    clock.advance(LEASE / 3);
    assert_eq!(registry.take_due().len(), 1);
    assert!(registry.take_due().is_empty(), "taken up once");
    tracked
}

/// Between a request and its answer the store may have been replaced: the answer does not count as
/// the renewal that was requested since.
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
    assert!(
        registry.take_due().is_empty(),
        "no renewal was requested since"
    );
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
            .lookup(first.claim.id)
            .0
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

/// The answer is handled in one thread and the push in another: the push may come first.
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

/// A push about a claim that its caller has given up reaches no claim.
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

/// A claim that the store has ended is not tracked.
#[test]
fn what_the_store_has_ended_leaves() {
    let (registry, _) = registry();
    let tracked = tracked(&registry, 1);
    tracked.ended(Gone::Revoked);
    registry.settle(&tracked);
    assert_eq!(registry.len(), 0);
}

/// A claim that the clock has ended is removed as well. Removing it before the warden has seen it
/// tells its holder.
#[test]
fn what_the_clock_has_ended_is_told_of_before_it_leaves() {
    for by_warden in [true, false] {
        let (registry, clock) = registry();
        let tracked = tracked(&registry, 1);
        let stop = tracked.stop_token();
        clock.advance(LEASE);
        assert!(!stop.is_cancelled(), "the clock was not read");
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

/// A push may come while the heartbeat is in flight: then two renewals are, and neither is late.
#[test]
fn a_renewal_beside_one_that_is_in_flight_is_no_trouble() {
    let (registry, clock) = registry();
    let tracked = waiting(1, clock.now());
    registry.keep(&tracked);
    assert!(tracked.begin_attempt(clock.now()));
    clock.advance(Duration::from_millis(1));
    assert!(tracked.begin_attempt(clock.now()));
    assert!(tracked.trouble().is_none(), "asked a millisecond ago");
    clock.advance(tracked.attempt(clock.now()));
    assert!(!tracked.begin_attempt(clock.now()) && tracked.trouble().is_some());
}

/// Sleepers notice a clock that is moved by hand, and do not wait for their tick.
#[tokio::test]
async fn a_jump_of_the_clock_wakes_the_keeper() {
    let (registry, clock) = registry();
    let tracked = tracked(&registry, 1);
    // Tracking the claim wakes a keeper that has not slept yet.
    assert!(registry.renewal_due().await);
    let mut due = pin!(registry.renewal_due());
    let mut polled = || due.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled().is_pending());
    clock.advance(LEASE / 3);
    assert!(polled().is_ready());
    assert!(Arc::ptr_eq(&registry.take_due()[0], &tracked));
}

/// A panicking waker of a user costs no other holder its notification, and its own claim only that
/// waker.
#[test]
fn a_waker_that_panics_leaves_no_holder_untold() {
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
        "a holder was not told"
    );
}

/// A grant that the clock has ended is not renewed any more: the keeper releases it, where its
/// session lives on.
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

/// The answer is handled in one thread and the push in another: the push may come first.
#[test]
fn a_push_beside_the_answer_is_not_missed() {
    let (registry, clock) = registry();
    let tracked = waiting(1, clock.now());
    let claim = tracked.claim.id;
    registry.enter(claim);
    let (None, Some(pending)) = registry.lookup(claim) else {
        panic!("it is not pending")
    };
    registry.keep(&tracked);
    assert!(!pending.tell(Told::Changed), "told where it is not heard");
    registry.hear(Push::AskAgain { claim });
    assert_eq!(registry.take_due().len(), 1, "asked for at once");
}

/// The connection is back, and all claims are to be renewed; at the same time a waiter is found to
/// hold, and is kept as a holder.
#[test]
fn keeping_a_claim_does_not_postpone_a_renewal_that_was_asked_for() {
    let (registry, _) = registry();
    let tracked = tracked(&registry, 1);
    registry.renew_now_if(|_| true);
    registry.keep(&tracked);
    assert_eq!(registry.take_due().len(), 1);
    registry.keep(&tracked);
    assert!(registry.take_due().is_empty(), "once");
}

/// The store says that a waiter is worth asking for, while a renewal hangs. The answer that comes
/// then may be older than that.
#[test]
fn a_push_during_trouble_is_asked_about_after_it() {
    let (registry, clock) = registry();
    let tracked = waiting(1, clock.now());
    registry.keep(&tracked);
    let sent = clock.now();
    tracked.troubled(&Error::unavailable("it hangs"), clock.now());
    registry.hear(Push::AskAgain {
        claim: tracked.claim.id,
    });
    assert!(registry.take_due().is_empty(), "it cannot be reached");
    tracked.confirm(sent, Standing::Waiting(place()), clock.now());
    registry.settle(&tracked);
    assert_eq!(registry.take_due().len(), 1, "asked for at once");
}

/// Two guards over one grant would each believe that it is theirs alone.
#[test]
fn a_claim_is_kept_once_by_two_threads() {
    let (registry, clock) = registry();
    for id in 0..2_000 {
        let turn = std::sync::Barrier::new(2);
        let kept = std::thread::scope(|scope| {
            let keeping = [(); 2].map(|()| {
                scope.spawn(|| {
                    let tracked = held(id, clock.now());
                    turn.wait();
                    registry.keep_new(&tracked)
                })
            });
            keeping.map(|keeping| keeping.join().expect("no panic"))
        });
        assert!(kept[0] != kept[1], "kept twice, in round {id}");
    }
}
