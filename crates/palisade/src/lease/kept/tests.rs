//! What one claim makes of answers that come late, twice, out of order or not at all.

use super::*;
use crate::name::Name;
use crate::store::{ClaimId, Kind, Lease};

const LEASE: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Moment {
    Moment::at(Duration::from_millis(millis))
}

fn fence(number: u64) -> Fence {
    Fence::new(number).expect("a fence")
}

fn claim() -> Arc<Claim> {
    Arc::new(Claim {
        id: ClaimId::random().expect("random numbers"),
        name: Name::new("kept").expect("a good name"),
        kind: Kind::Mutex,
        mode: Mode::Exclusive,
        owner: "test".into(),
        reason: None,
        lease: LEASE,
        queue: true,
        min_hold: None,
        once_per: None,
    })
}

fn terms() -> Terms {
    Terms { auto_renew: true, max_hold: None, stop_margin: Duration::from_millis(500), drift: Drift::default() }
}

fn grant(number: u64) -> Grant {
    Grant { fence: fence(number), lease: Lease::of(LEASE) }
}

fn place() -> Place {
    Place { ahead: Some(0), ask_in: None, lease: Lease::of(Claim::LONGEST_WAIT_LEASE), holder: None }
}

/// Granted to a request of the clock's zero.
fn holder(terms: Terms) -> Arc<Kept> {
    Kept::granted(claim(), terms, at(0), grant(7), at(0))
}

/// Put in line by a request of the clock's zero.
fn waiter(terms: Terms) -> Arc<Kept> {
    Kept::queued(claim(), terms, at(0), place(), at(0))
}

/// The clock rule, where it is applied: nothing counts from when the answer came.
#[test]
fn everything_counts_from_when_it_was_asked_for() {
    let kept = Kept::granted(claim(), terms(), at(0), grant(7), at(4_000));
    assert_eq!(kept.valid_until(), at(9_898));
    kept.confirm(at(5_000), Standing::Held(grant(7)), at(9_000));
    assert_eq!(kept.valid_until(), at(14_898));
    let kept = Kept::queued(claim(), terms(), at(0), place(), at(2_000));
    assert_eq!(kept.valid_until(), at(4_948));
    kept.confirm(at(1_000), Standing::Waiting(place()), at(3_000));
    assert_eq!(kept.valid_until(), at(5_948));
    kept.confirm(at(2_000), Standing::Held(grant(7)), at(5_000));
    assert_eq!(kept.valid_until(), at(11_898));
}

/// The store may have granted right after the last answer, with the expiry of that answer.
#[test]
fn a_pushed_grant_keeps_the_deadline_of_the_waiter() {
    let kept = waiter(terms());
    kept.pushed(fence(7), at(4_000));
    assert!(matches!(kept.stage(), Stage::Held(held) if held == fence(7)));
    assert_eq!(kept.valid_until(), at(4_948));
    assert_eq!(kept.status(at(4_947)), Status::AtRisk);
    assert_eq!(kept.status(at(4_948)), Status::Lost(LossReason::Expired));
}

/// The store took the renewal before it handed the lock over, and the push was faster than the answer.
#[test]
fn an_answer_that_the_grant_has_overtaken_changes_nothing() {
    let kept = waiter(terms());
    kept.pushed(fence(7), at(2_000));
    kept.confirm(at(1_000), Standing::Waiting(place()), at(3_000));
    assert!(matches!(kept.stage(), Stage::Held(held) if held == fence(7)), "{:?}", kept.stage());
    assert_eq!(kept.valid_until(), at(4_948), "the waiter's lease is not the holder's");
}

/// The store forgot our grant and gave the claim another one: somebody may have held between the two.
#[test]
fn another_fence_is_a_loss_and_not_a_renewal() {
    let kept = holder(terms());
    kept.confirm(at(1_000), Standing::Held(grant(8)), at(1_001));
    assert_eq!(kept.status(at(1_001)), Status::Lost(LossReason::Expired));
    assert_eq!(kept.valid_until(), at(9_898));
    assert_eq!(kept.to_ref().fence, Some(fence(7)), "what we give back is our own grant");
}

#[test]
fn no_answer_revives_what_is_over() {
    // Asked in time, answered too late, and nobody has looked at the clock between.
    let kept = holder(terms());
    kept.confirm(at(9_000), Standing::Held(grant(7)), at(9_898));
    assert_eq!(kept.status(at(9_898)), Status::Lost(LossReason::Expired));
    kept.confirm(at(9_900), Standing::Held(grant(7)), at(9_901));
    assert_eq!(kept.status(at(9_901)), Status::Lost(LossReason::Expired));
    // Told by the store, then a yes that was under way.
    let kept = holder(terms());
    kept.ended(Gone::Revoked);
    kept.confirm(at(1_000), Standing::Held(grant(7)), at(1_001));
    kept.pushed(fence(8), at(1_002));
    assert_eq!(kept.status(at(1_002)), Status::Lost(LossReason::Revoked));
    // Given back, then a grant that was under way.
    let kept = waiter(terms());
    assert!(kept.give_back(at(1)).is_some());
    kept.pushed(fence(7), at(2));
    kept.confirm(at(1), Standing::Held(grant(7)), at(3));
    assert!(matches!(kept.stage(), Stage::GivenBack));
    assert!(kept.give_back(at(4)).is_none(), "given back once");
}

/// The longest hold counts from the grant, by whichever way it came.
#[test]
fn the_longest_hold_is_set_by_every_kind_of_grant() {
    let terms = Terms { max_hold: Some(Duration::from_secs(1)), ..terms() };
    let at_once = holder(terms);
    let pushed = waiter(terms);
    pushed.pushed(fence(7), at(0));
    let found = waiter(terms);
    found.confirm(at(0), Standing::Held(grant(7)), at(0));
    for (how, kept) in [("at once", at_once), ("pushed", pushed), ("found", found)] {
        assert_eq!(kept.remaining(at(400)), Duration::from_millis(600), "{how}");
        assert_eq!(kept.status(at(1_000)), Status::Lost(LossReason::MaxHold), "{how}");
    }
}

/// A store that does not answer puts a guard at risk before its time does; the next answer ends that.
#[test]
fn trouble_is_a_risk_until_the_next_answer() {
    let kept = holder(terms());
    kept.troubled(&Error::unavailable("cut off"), at(100));
    assert_eq!(kept.status(at(100)), Status::AtRisk);
    kept.confirm(at(200), Standing::Held(grant(7)), at(201));
    assert_eq!(kept.status(at(201)), Status::Held);
}

/// Without renewal a handed-over grant is still raised once to the lease that was asked for.
#[test]
fn without_renewal_a_handed_over_grant_is_raised_once() {
    let terms = Terms { auto_renew: false, ..terms() };
    let kept = waiter(terms);
    kept.pushed(fence(7), at(100));
    assert!(kept.must_renew_to_begin(at(100)) && kept.renew_at().is_some());
    kept.confirm(at(200), Standing::Held(grant(7)), at(201));
    assert!(!kept.must_renew_to_begin(at(201)));
    assert_eq!(kept.renew_at(), None);
    assert_eq!(holder(terms).renew_at(), None);
}

/// Too little left to begin with: less than two stop margins, or than half of a wait lease.
#[test]
fn a_grant_with_little_left_is_renewed_before_it_begins() {
    let kept = waiter(terms());
    kept.pushed(fence(7), at(0));
    assert!(!kept.must_renew_to_begin(at(4_948 - 2_500)));
    assert!(kept.must_renew_to_begin(at(4_948 - 2_499)));
}

/// One that is lost before the group is bound takes the group with it, as one that is lost later does.
#[test]
fn one_lost_is_all_lost_before_and_after_the_binding() {
    let (lost, other) = (holder(terms()), holder(terms()));
    lost.ended(Gone::Revoked);
    Kept::bind(&[&other, &lost], at(1));
    assert_eq!(other.status(at(1)), Status::Lost(LossReason::MemberLost));
    assert_eq!(lost.status(at(1)), Status::Lost(LossReason::Revoked));
    let (lost, other) = (holder(terms()), holder(terms()));
    Kept::bind(&[&other, &lost], at(1));
    lost.ended(Gone::Taken);
    assert_eq!(other.status(at(1)), Status::Lost(LossReason::MemberLost));
}

/// The stop token fires with the margin or with the loss, and never because its owner gave the lock back.
#[test]
fn the_stop_token_fires_for_a_loss_only() {
    let kept = holder(terms());
    let stop = kept.stop_token(at(0));
    assert_eq!(kept.watch(at(9_397)), Some(at(9_398)));
    assert!(!stop.is_cancelled());
    assert_eq!(kept.watch(at(9_398)), Some(at(9_898)));
    assert!(stop.is_cancelled());
    let kept = holder(terms());
    let stop = kept.stop_token(at(0));
    assert!(kept.give_back(at(1)).is_some());
    assert_eq!(kept.watch(at(20_000)), None);
    assert!(!stop.is_cancelled(), "a release is not a loss");
    let kept = holder(terms());
    let stop = kept.stop_token(at(0));
    kept.ended(Gone::Taken);
    assert!(stop.is_cancelled());
}

/// Whoever sees the loss, however early, finds the tokens fired and the fellows lost.
#[test]
fn nobody_sees_a_loss_before_it_is_told() {
    struct Looks {
        kept: Arc<Kept>,
        fellow: Arc<Kept>,
        stop: CancellationToken,
        saw: Mutex<Option<(Status, bool, Status)>>,
    }
    impl std::task::Wake for Looks {
        fn wake(self: Arc<Self>) {
            let saw = (self.kept.status(at(1)), self.stop.is_cancelled(), self.fellow.status(at(1)));
            *self.saw.lock().expect("no panic") = Some(saw);
        }
    }
    let (kept, fellow) = (holder(terms()), holder(terms()));
    Kept::bind(&[&kept, &fellow], at(0));
    let stop = kept.stop_token(at(0));
    let looks = Arc::new(Looks { kept: Arc::clone(&kept), fellow, stop, saw: Mutex::default() });
    let waker = std::task::Waker::from(Arc::clone(&looks));
    let mut changed = Box::pin(kept.changed());
    assert!(changed.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    kept.ended(Gone::Revoked);
    let (lost, others) = (Status::Lost(LossReason::Revoked), Status::Lost(LossReason::MemberLost));
    assert_eq!(*looks.saw.lock().expect("no panic"), Some((lost, true, others)));
}
