//! What one claim makes of answers that come late, twice, out of order or not at all.

use super::*;
use crate::store::{ClaimId, Lease};

const LEASE: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Moment {
    Moment::at(Duration::from_millis(millis))
}

fn fence(number: u64) -> Fence {
    Fence::new(number).expect("a fence")
}

fn claim() -> Arc<Claim> {
    Arc::new(Claim::of_mutex(ClaimId::random().expect("random numbers"), "kept", LEASE))
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

/// Until when the latest confirmation is worth something, by the clock rule.
fn valid_until(kept: &Kept) -> Moment {
    kept.lock().deadline.valid_until()
}

/// A stop token, as a guard hands it out.
fn stop_token(kept: &Kept, now: Moment) -> CancellationToken {
    let token = kept.stop_token();
    assert!(kept.watch(now).is_some(), "over already");
    token
}

/// Put in line by a request of the clock's zero.
fn waiter(terms: Terms) -> Arc<Kept> {
    Kept::queued(claim(), terms, at(0), place(), at(0))
}

/// The clock rule, where it is applied: nothing counts from when the answer came.
#[test]
fn everything_counts_from_when_it_was_asked_for() {
    let kept = Kept::granted(claim(), terms(), at(0), grant(7), at(4_000));
    assert_eq!(valid_until(&kept), at(9_898));
    kept.confirm(at(5_000), Standing::Held(grant(7)), at(9_000));
    assert_eq!(valid_until(&kept), at(14_898));
    let kept = Kept::queued(claim(), terms(), at(0), place(), at(2_000));
    assert_eq!(valid_until(&kept), at(4_948));
    kept.confirm(at(1_000), Standing::Waiting(place()), at(3_000));
    assert_eq!(valid_until(&kept), at(5_948));
    kept.confirm(at(2_000), Standing::Held(grant(7)), at(5_000));
    assert_eq!(valid_until(&kept), at(11_898));
}

/// The store may have granted right after the last answer, with the expiry of that answer.
#[test]
fn a_pushed_grant_keeps_the_deadline_of_the_waiter() {
    let kept = waiter(terms());
    assert!(kept.pushed(fence(7), at(2_000)));
    assert!(matches!(kept.stage(), Stage::Held));
    assert_eq!((kept.fence(), valid_until(&kept)), (fence(7), at(4_948)));
    assert_eq!(kept.status(at(4_947)), Status::AtRisk);
    assert_eq!(kept.status(at(4_948)), Status::Lost(LossReason::Expired));
}

/// The store took the renewal before it handed the lock over, and the push was faster than the answer.
/// The store may take a holder's word for it that it holds: so it is given for no longer than the clock rule says, and only while it
/// holds.
#[test]
fn whoever_gives_back_is_sure_until_its_deadline_and_only_if_it_holds() {
    let sure_until = |kept: Arc<Kept>, now| kept.give_back(now).expect("for the first time").0.sure_until;
    let kept = holder(terms());
    let deadline = valid_until(&kept);
    assert_eq!(sure_until(kept, at(1_000)), Some(deadline));
    assert_eq!(sure_until(holder(terms()), deadline), None, "lost by then");
    assert_eq!(sure_until(waiter(terms()), at(1_000)), None, "it waits");
}

#[test]
fn an_answer_that_the_grant_has_overtaken_changes_nothing() {
    let kept = waiter(terms());
    assert!(kept.pushed(fence(7), at(2_000)));
    kept.confirm(at(1_000), Standing::Waiting(place()), at(3_000));
    assert!(matches!(kept.stage(), Stage::Held), "{:?}", kept.stage());
    assert_eq!((kept.fence(), valid_until(&kept)), (fence(7), at(4_948)), "the waiter's lease is not the holder's");
}

/// The store forgot our grant and gave the claim another one: somebody may have held between the two.
#[test]
fn another_fence_is_a_loss_and_not_a_renewal() {
    let kept = holder(terms());
    kept.confirm(at(1_000), Standing::Held(grant(8)), at(1_001));
    assert_eq!(kept.status(at(1_001)), Status::Lost(LossReason::Expired));
    assert_eq!(valid_until(&kept), at(9_898));
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
    assert!(kept.pushed(fence(8), at(1_002)), "nothing is left to ask for");
    assert_eq!(kept.status(at(1_002)), Status::Lost(LossReason::Revoked));
    // Given back, then a grant that was under way.
    let kept = waiter(terms());
    assert!(kept.give_back(at(1)).is_some());
    assert!(kept.pushed(fence(7), at(2)), "nothing is left to ask for");
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
    assert!(pushed.pushed(fence(7), at(0)));
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

/// Without renewal nothing would raise a pushed grant to the lease that was asked for: it is dated by a renewal, and then never
/// again.
#[test]
fn without_renewal_a_handed_over_grant_is_raised_once() {
    let terms = Terms { auto_renew: false, ..terms() };
    let kept = waiter(terms);
    assert!(!kept.pushed(fence(7), at(100)), "it is to be asked for");
    assert!(matches!(kept.stage(), Stage::Waiting { .. }) && kept.renew_at().is_some());
    kept.confirm(at(200), Standing::Held(grant(7)), at(201));
    assert!(matches!(kept.stage(), Stage::Held));
    assert_eq!(valid_until(&kept), at(10_098));
    assert_eq!(kept.renew_at(), None);
    assert_eq!(holder(terms).renew_at(), None);
}

/// Too little left to begin with, less than two stop margins or than half of a wait lease: it is dated anew first, by whichever
/// way it came.
#[test]
fn a_grant_with_little_left_is_renewed_before_it_begins() {
    let kept = waiter(terms());
    assert!(!kept.pushed(fence(7), at(4_948 - 2_499)));
    assert!(matches!(kept.stage(), Stage::Waiting { .. }));
    assert!(kept.pushed(fence(7), at(4_948 - 2_500)));
    assert!(matches!(kept.stage(), Stage::Held));
    let in_time = Kept::granted(claim(), terms(), at(0), grant(7), at(9_898 - 2_500));
    assert!(matches!(in_time.stage(), Stage::Held));
    let late = Kept::granted(claim(), terms(), at(0), grant(7), at(9_898 - 2_499));
    let Stage::Waiting { ask_at, .. } = late.stage() else { panic!("{:?}", late.stage()) };
    assert_eq!(ask_at, Some(at(9_898 - 2_499 + 1)), "it asks at once");
    late.confirm(at(7_500), Standing::Held(grant(7)), at(7_600));
    assert!(matches!(late.stage(), Stage::Held));
    assert_eq!((late.fence(), valid_until(&late)), (fence(7), at(7_500 + 9_898)));
}

/// What is over is not renewed, whether the store ended it or the clock: that would keep others out for a holder that is told to
/// stop. Nor are more than two renewals on their way.
#[test]
fn what_is_over_is_not_renewed() {
    let kept = holder(terms());
    kept.ended(Gone::Revoked);
    assert!(!kept.begin_attempt(at(1)) && kept.is_over(at(1)));
    let kept = holder(terms());
    let stop = stop_token(&kept, at(0));
    assert!(!kept.begin_attempt(at(9_898)), "the clock has ended it, though nobody has looked");
    assert!(kept.is_over(at(9_898)) && stop.is_cancelled(), "who finds that out tells of it");
    let kept = holder(terms());
    assert!(kept.begin_attempt(at(1)) && kept.begin_attempt(at(2)));
    assert!(!kept.begin_attempt(at(3)), "two are on their way");
    assert_eq!(kept.status(at(3)), Status::AtRisk, "the first should have been answered");
    kept.end_attempt();
    assert!(kept.begin_attempt(at(4)));
}

/// One that is lost before the group is bound takes the group with it, as one that is lost later does.
#[test]
fn one_lost_is_all_lost_before_and_after_the_binding() {
    let (lost, other) = (holder(terms()), holder(terms()));
    lost.ended(Gone::Revoked);
    let group = Group::bind(&[&other, &lost], at(1));
    assert_eq!(other.status(at(1)), Status::Lost(LossReason::MemberLost));
    assert_eq!(lost.status(at(1)), Status::Lost(LossReason::Revoked));
    assert!(group.stop.is_cancelled());
    let (lost, other) = (holder(terms()), holder(terms()));
    let group = Group::bind(&[&other, &lost], at(1));
    assert!(!group.stop.is_cancelled());
    lost.ended(Gone::Taken);
    assert_eq!(other.status(at(1)), Status::Lost(LossReason::MemberLost));
    assert!(group.stop.is_cancelled());
}

/// The stop token fires with the margin or with the loss, and never because its owner gave the lock back.
#[test]
fn the_stop_token_fires_for_a_loss_only() {
    let kept = holder(terms());
    let stop = stop_token(&kept, at(0));
    assert_eq!(kept.watch(at(9_397)), Some(at(9_398)));
    assert!(!stop.is_cancelled());
    assert_eq!(kept.watch(at(9_398)), Some(at(9_898)));
    assert!(stop.is_cancelled());
    let kept = holder(terms());
    let stop = stop_token(&kept, at(0));
    assert!(kept.give_back(at(1)).is_some());
    assert_eq!(kept.watch(at(20_000)), None);
    assert!(!stop.is_cancelled(), "a release is not a loss");
    let kept = holder(terms());
    let stop = stop_token(&kept, at(0));
    kept.ended(Gone::Taken);
    assert!(stop.is_cancelled());
}

type Look = fn(&Kept);

/// Looks at one member of a multi-lock when it is woken, and notes what has been told by then.
struct Looks {
    look: Look,
    kept: Arc<Kept>,
    fellow: Arc<Kept>,
    stops: [CancellationToken; 3],
    saw: Mutex<Vec<([bool; 3], Duration)>>,
}

impl std::task::Wake for Looks {
    fn wake(self: Arc<Self>) {
        (self.look)(&self.kept);
        let stopped = self.stops.each_ref().map(CancellationToken::is_cancelled);
        self.saw.lock().expect("no panic").push((stopped, self.fellow.remaining(at(1))));
    }
}

/// Whoever sees the loss, however early and by whichever way, finds the tokens fired and the fellows lost.
#[test]
fn nobody_sees_a_loss_before_it_is_told() {
    let ways: [(&str, Look); 3] = [
        ("status", |kept| assert_eq!(kept.status(at(1)), Status::Lost(LossReason::Revoked))),
        ("watch", |kept| assert_eq!(kept.watch(at(1)), None)),
        ("give_back", |kept| assert_eq!(kept.give_back(at(1)).expect("once").1, Some(LossReason::Revoked))),
    ];
    for (way, look) in ways {
        let (kept, fellow) = (holder(terms()), holder(terms()));
        let group = Group::bind(&[&kept, &fellow], at(0));
        let stops = [stop_token(&kept, at(0)), stop_token(&fellow, at(0)), group.stop.clone()];
        let looks = Arc::new(Looks { look, kept: Arc::clone(&kept), fellow, stops, saw: Mutex::default() });
        let waker = std::task::Waker::from(Arc::clone(&looks));
        let mut changed = Box::pin(kept.changed());
        assert!(changed.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        kept.ended(Gone::Revoked);
        assert_eq!(*looks.saw.lock().expect("no panic"), [([true; 3], Duration::ZERO)], "{way}");
        assert_eq!(looks.fellow.status(at(1)), Status::Lost(LossReason::MemberLost), "{way}");
    }
}

/// The fellow that is lost with it is seen by its own waiters: they find all of it told as well.
#[test]
fn a_fellow_is_not_seen_lost_before_all_are() {
    let (lost, kept, fellow) = (holder(terms()), holder(terms()), holder(terms()));
    let group = Group::bind(&[&lost, &kept, &fellow], at(0));
    let stops = [stop_token(&kept, at(0)), stop_token(&fellow, at(0)), group.stop.clone()];
    let look = |kept: &Kept| assert_eq!(kept.status(at(1)), Status::Lost(LossReason::MemberLost));
    let looks = Arc::new(Looks { look, kept: Arc::clone(&kept), fellow, stops, saw: Mutex::default() });
    let waker = std::task::Waker::from(Arc::clone(&looks));
    let mut changed = Box::pin(kept.changed());
    assert!(changed.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    lost.ended(Gone::Revoked);
    assert_eq!(*looks.saw.lock().expect("no panic"), [([true; 3], Duration::ZERO)]);
}

/// Two that are lost at the same time: who sees the one finds the other told as well, though that was only about to be.
#[test]
fn a_loss_in_the_midst_of_another_is_told_for_both() {
    let (kept, fellow) = (holder(terms()), holder(terms()));
    let group = Group::bind(&[&kept, &fellow], at(0));
    let stops = [stop_token(&kept, at(0)), stop_token(&fellow, at(0)), group.stop.clone()];
    let look = |kept: &Kept| kept.ended(Gone::Taken);
    let looks = Arc::new(Looks { look, kept, fellow: Arc::clone(&fellow), stops, saw: Mutex::default() });
    let waker = std::task::Waker::from(Arc::clone(&looks));
    let mut changed = Box::pin(fellow.changed());
    assert!(changed.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    fellow.ended(Gone::Revoked);
    assert_eq!(*looks.saw.lock().expect("no panic"), [([true; 3], Duration::ZERO)]);
}
