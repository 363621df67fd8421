use std::pin::pin;
use std::task::{Context, Waker};

use super::*;
use crate::Fence;
use crate::lease::kept::Terms;
use crate::lease::{Drift, ManualClock};
use crate::store::{Claim, Gone, Grant, Lease, Standing};

const LEASE: Duration = Duration::from_secs(30);

fn ledger() -> (Arc<Ledger>, ManualClock) {
    let clock = ManualClock::new();
    (Ledger::new(Arc::new(clock.clone())), clock)
}

fn grant() -> Grant {
    Grant { fence: Fence::new(7).expect("a fence"), lease: Lease::of(LEASE) }
}

fn held(id: u128, now: Moment) -> Arc<Kept> {
    let claim = Claim::of_mutex(ClaimId::from_bits(id), "x", LEASE);
    let terms = Terms { auto_renew: true, max_hold: None, stop_margin: Duration::from_secs(1), drift: Drift::default() };
    Kept::granted(Arc::new(claim), terms, now, grant(), now)
}

/// A holder that the ledger keeps from now on.
fn kept(ledger: &Ledger, id: u128) -> Arc<Kept> {
    let kept = held(id, ledger.clock.now());
    ledger.keep(&kept);
    kept
}

/// A kept claim whose renewal has been taken up, so that its next is an attempt away.
fn renewing(ledger: &Ledger, clock: &ManualClock) -> Arc<Kept> {
    let kept = kept(ledger, 1);
    clock.advance(LEASE / 3);
    assert_eq!(ledger.take_due().len(), 1);
    assert!(ledger.take_due().is_empty(), "taken up once");
    kept
}

/// Between a request and its answer the store may have become another one: the answer does not count as the renewal that
/// was asked for since.
#[test]
fn an_answer_does_not_postpone_a_renewal_that_was_asked_for() {
    let (ledger, clock) = ledger();
    let kept = renewing(&ledger, &clock);
    let sent = clock.now();
    ledger.renew_now(&kept);
    kept.confirm(sent, Standing::Held(grant()), clock.now());
    ledger.settle(&kept);
    assert_eq!(ledger.take_due().len(), 1);
    ledger.settle(&kept);
    assert!(ledger.take_due().is_empty(), "once");
    clock.advance(LEASE / 3);
    assert_eq!(ledger.take_due().len(), 1, "then at its cadence");
}

#[test]
fn a_failure_does_not_postpone_a_renewal_that_was_asked_for() {
    let (ledger, clock) = ledger();
    let kept = renewing(&ledger, &clock);
    ledger.renew_now_if(|_| true);
    ledger.retry_within(&kept, Duration::from_secs(2));
    assert_eq!(ledger.take_due().len(), 1);
    ledger.retry_within(&kept, Duration::from_secs(2));
    assert!(ledger.take_due().is_empty(), "nobody has asked since");
    clock.advance(Duration::from_secs(2));
    assert_eq!(ledger.take_due().len(), 1);
}

#[test]
fn a_claim_is_kept_once_and_forgotten_by_its_keeper_only() {
    let (ledger, clock) = ledger();
    let (first, second) = (held(1, clock.now()), held(1, clock.now()));
    assert!(ledger.keep_new(&first));
    assert!(!ledger.keep_new(&second), "the same claim");
    ledger.forget(&second);
    assert!(ledger.find(first.claim.id).is_some_and(|kept| Arc::ptr_eq(&kept, &first)));
    ledger.forget(&first);
    assert_eq!(ledger.len(), 0);
    assert!(ledger.keep_new(&second));
    clock.advance(LEASE / 3);
    assert!(ledger.take_due().iter().all(|kept| Arc::ptr_eq(kept, &second)), "nothing is left of the first");
}

/// The answer is taken up in one thread, and what the store tells in another: it may come first.
#[test]
fn what_ended_before_it_was_kept_is_asked_for_at_once() {
    let (ledger, clock) = ledger();
    let (early, other) = (held(1, clock.now()), held(2, clock.now()));
    assert!(ledger.find_ended(early.claim.id).is_none());
    ledger.keep(&other);
    assert!(ledger.take_due().is_empty(), "nobody has said anything of this one");
    ledger.keep(&early);
    assert!(ledger.take_due().iter().any(|kept| Arc::ptr_eq(kept, &early)));
    assert!(ledger.find_ended(early.claim.id).is_some_and(|kept| Arc::ptr_eq(&kept, &early)), "it is kept now");
    (10..1000).for_each(|claim| drop(ledger.find_ended(ClaimId::from_bits(claim))));
    assert_eq!(ledger.lock().ended_early.len(), ENDED_EARLY, "those that never come are forgotten");
}

/// What the store has ended is not kept.
#[test]
fn what_the_store_has_ended_leaves() {
    let (ledger, _) = ledger();
    let kept = kept(&ledger, 1);
    kept.ended(Gone::Revoked);
    ledger.settle(&kept);
    assert_eq!(ledger.len(), 0);
}

/// What the clock has ended leaves as well. Whoever removes it before the warden has come to it tells of it.
#[test]
fn what_the_clock_has_ended_is_told_of_before_it_leaves() {
    for by_warden in [true, false] {
        let (ledger, clock) = ledger();
        let kept = kept(&ledger, 1);
        let stop = kept.stop_token();
        clock.advance(LEASE);
        assert!(!stop.is_cancelled(), "nobody has looked");
        if by_warden {
            ledger.close();
            assert!(!ledger.look(), "closed and empty");
        } else {
            ledger.settle(&kept);
        }
        assert!(stop.is_cancelled());
        assert_eq!(ledger.len(), 0);
    }
}

#[test]
fn a_renewal_that_hangs_is_followed_by_one_more() {
    let (ledger, clock) = ledger();
    let kept = renewing(&ledger, &clock);
    assert!(kept.begin_attempt(clock.now()) && kept.trouble().is_none());
    clock.advance(kept.attempt(clock.now()));
    assert_eq!(ledger.take_due().len(), 1);
    assert!(kept.begin_attempt(clock.now()) && kept.trouble().is_some());
    assert!(!kept.begin_attempt(clock.now()), "two are enough");
    kept.end_attempt();
    assert!(kept.begin_attempt(clock.now()));
}

/// Sleepers hear of a clock that is moved by hand, and do not wait for their tick.
#[tokio::test]
async fn a_jump_of_the_clock_wakes_the_keeper() {
    let (ledger, clock) = ledger();
    let kept = kept(&ledger, 1);
    // The keeping itself is news to a keeper that has not slept yet.
    assert!(ledger.renewal_due().await);
    let mut due = pin!(ledger.renewal_due());
    let mut polled = || due.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled().is_pending());
    clock.advance(LEASE / 3);
    assert!(polled().is_ready());
    assert!(Arc::ptr_eq(&ledger.take_due()[0], &kept));
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
    let (ledger, clock) = ledger();
    let all: Vec<Arc<Kept>> = (0..4).map(|id| kept(&ledger, id)).collect();
    let stops: Vec<_> = all.iter().map(|kept| kept.stop_token()).collect();
    let waker = Waker::from(Arc::new(Panics));
    let mut waiting: Vec<_> = all.iter().map(|kept| Box::pin(kept.changed())).collect();
    for changed in &mut waiting {
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    clock.advance(LEASE);
    ledger.close();
    assert!(!ledger.look(), "closed and empty");
    assert!(stops.iter().all(tokio_util::sync::CancellationToken::is_cancelled), "somebody was not told");
}
