//! How one claim handles answers that come late, twice, out of order or not at all.

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
    Arc::new(Claim::of_mutex(
        ClaimId::random().expect("random numbers"),
        "tracked",
        LEASE,
    ))
}

fn terms() -> Terms {
    Terms {
        auto_renew: true,
        max_hold: None,
        stop_margin: Duration::from_millis(500),
        drift: Drift::default(),
    }
}

fn grant(number: u64) -> Grant {
    Grant {
        fence: fence(number),
        lease: Lease::of(LEASE),
    }
}

fn place() -> Place {
    Place {
        ahead: Some(0),
        ask_in: None,
        lease: Lease::of(Claim::LONGEST_WAIT_LEASE),
        holder: None,
    }
}

/// Granted to a request of the clock's zero.
fn holder(terms: Terms) -> Arc<TrackedClaim> {
    TrackedClaim::granted(claim(), terms, at(0), grant(7), at(0))
}

/// Until when the latest confirmation is valid, by the clock rule.
fn valid_until(tracked: &TrackedClaim) -> Moment {
    tracked.lock().deadline.valid_until()
}

/// A stop token, as a guard hands it out.
fn stop_token(tracked: &TrackedClaim, now: Moment) -> CancellationToken {
    let token = tracked.stop_token();
    assert!(tracked.watch(now).is_some(), "over already");
    token
}

/// Put in line by a request of the clock's zero.
fn waiter(terms: Terms) -> Arc<TrackedClaim> {
    TrackedClaim::queued(claim(), terms, at(0), place(), at(0))
}

/// The clock rule, where it is applied: nothing counts from the arrival of an answer.
#[test]
fn everything_counts_from_when_it_was_asked_for() {
    let tracked = TrackedClaim::granted(claim(), terms(), at(0), grant(7), at(4_000));
    assert_eq!(valid_until(&tracked), at(9_898));
    tracked.confirm(at(5_000), Standing::Held(grant(7)), at(9_000));
    assert_eq!(valid_until(&tracked), at(14_898));
    let tracked = TrackedClaim::queued(claim(), terms(), at(0), place(), at(2_000));
    assert_eq!(valid_until(&tracked), at(4_948));
    tracked.confirm(at(1_000), Standing::Waiting(place()), at(3_000));
    assert_eq!(valid_until(&tracked), at(5_948));
    tracked.confirm(at(2_000), Standing::Held(grant(7)), at(5_000));
    assert_eq!(valid_until(&tracked), at(11_898));
}

/// The store may have granted right after the last answer, with the expiry of that answer.
#[test]
fn a_pushed_grant_keeps_the_deadline_of_the_waiter() {
    let tracked = waiter(terms());
    assert!(tracked.pushed(fence(7), at(2_000)));
    assert!(matches!(tracked.stage(), Stage::Held));
    assert_eq!(
        (tracked.fence(), valid_until(&tracked)),
        (fence(7), at(4_948))
    );
    assert_eq!(tracked.status(at(4_947)), Status::AtRisk);
    assert_eq!(tracked.status(at(4_948)), Status::Lost(LossReason::Expired));
}

/// The store took the renewal before it handed the lock over, and the push was faster than the
/// answer.
#[test]
fn an_answer_that_the_grant_has_overtaken_changes_nothing() {
    let tracked = waiter(terms());
    assert!(tracked.pushed(fence(7), at(2_000)));
    tracked.confirm(at(1_000), Standing::Waiting(place()), at(3_000));
    assert!(
        matches!(tracked.stage(), Stage::Held),
        "{:?}",
        tracked.stage()
    );
    assert_eq!(
        (tracked.fence(), valid_until(&tracked)),
        (fence(7), at(4_948)),
        "the waiter's lease is not the holder's"
    );
}

/// The store forgot our grant and gave the claim another one: another claim may have held between
/// the two.
#[test]
fn another_fence_is_a_loss_and_not_a_renewal() {
    let tracked = holder(terms());
    tracked.confirm(at(1_000), Standing::Held(grant(8)), at(1_001));
    let lost = Status::Lost(LossReason::Forgotten);
    assert_eq!(tracked.status(at(1_001)), lost);
    assert_eq!(valid_until(&tracked), at(9_898));
    assert_eq!(
        tracked.to_ref().fence,
        Some(fence(7)),
        "what we give back is our own grant"
    );
}

#[test]
fn no_answer_revives_what_is_over() {
    // Asked in time, answered too late, and the clock was not read in between.
    let tracked = holder(terms());
    tracked.confirm(at(9_000), Standing::Held(grant(7)), at(9_898));
    assert_eq!(tracked.status(at(9_898)), Status::Lost(LossReason::Expired));
    tracked.confirm(at(9_900), Standing::Held(grant(7)), at(9_901));
    assert_eq!(tracked.status(at(9_901)), Status::Lost(LossReason::Expired));
    // The store says that it is gone, then a confirmation arrives that was in flight.
    let tracked = holder(terms());
    tracked.ended(Gone::Revoked);
    tracked.confirm(at(1_000), Standing::Held(grant(7)), at(1_001));
    assert!(
        tracked.pushed(fence(8), at(1_002)),
        "nothing is left to ask for"
    );
    assert_eq!(tracked.status(at(1_002)), Status::Lost(LossReason::Revoked));
    // Released, then a grant arrives that was in flight.
    let tracked = waiter(terms());
    assert!(tracked.give_back(at(1)).is_some());
    assert!(
        tracked.pushed(fence(7), at(2)),
        "nothing is left to ask for"
    );
    tracked.confirm(at(1), Standing::Held(grant(7)), at(3));
    assert!(matches!(tracked.stage(), Stage::GivenBack));
    assert!(tracked.give_back(at(4)).is_none(), "given back once");
}

/// The longest hold counts from the grant, by whichever way it came.
#[test]
fn the_longest_hold_is_set_by_every_kind_of_grant() {
    let terms = Terms {
        max_hold: Some(Duration::from_secs(1)),
        ..terms()
    };
    let at_once = holder(terms);
    let pushed = waiter(terms);
    assert!(pushed.pushed(fence(7), at(0)));
    let found = waiter(terms);
    found.confirm(at(0), Standing::Held(grant(7)), at(0));
    for (how, tracked) in [("at once", at_once), ("pushed", pushed), ("found", found)] {
        assert_eq!(
            tracked.remaining(at(400)),
            Duration::from_millis(600),
            "{how}"
        );
        assert_eq!(
            tracked.status(at(1_000)),
            Status::Lost(LossReason::MaxHold),
            "{how}"
        );
    }
}

/// A store that does not answer puts a guard at risk before its time does; the next answer ends
/// that.
/// A caller's patience counts from the first request that was not answered, not from its failure.
#[test]
fn trouble_began_with_the_request_that_failed() {
    let tracked = waiter(terms());
    assert!(tracked.begin_attempt(at(100)));
    assert_eq!(tracked.unanswered_since(), Some(at(100)));
    tracked.end_attempt();
    tracked.troubled(&Error::unavailable("it hangs"), at(900));
    assert!(tracked.begin_attempt(at(1000)));
    tracked.end_attempt();
    tracked.troubled(&Error::unavailable("it hangs"), at(1800));
    assert_eq!(
        tracked.trouble().map(|trouble| trouble.since),
        Some(at(100))
    );
    tracked.confirm(at(1900), Standing::Waiting(place()), at(1950));
    assert!(tracked.trouble().is_none() && tracked.unanswered_since().is_none());
}

#[test]
fn trouble_is_a_risk_until_the_next_answer() {
    let tracked = holder(terms());
    tracked.troubled(&Error::unavailable("cut off"), at(100));
    assert_eq!(tracked.status(at(100)), Status::AtRisk);
    tracked.confirm(at(200), Standing::Held(grant(7)), at(201));
    assert_eq!(tracked.status(at(201)), Status::Held);
}

/// Without renewal a pushed grant would never get the full lease: it is dated by one renewal, and
/// then never again.
#[test]
fn without_renewal_a_handed_over_grant_is_raised_once() {
    let terms = Terms {
        auto_renew: false,
        ..terms()
    };
    let tracked = waiter(terms);
    assert!(!tracked.pushed(fence(7), at(100)), "it is to be asked for");
    assert!(matches!(tracked.stage(), Stage::Waiting { .. }) && tracked.renew_at().is_some());
    tracked.confirm(at(200), Standing::Held(grant(7)), at(201));
    assert!(matches!(tracked.stage(), Stage::Held));
    assert_eq!(valid_until(&tracked), at(10_098));
    assert_eq!(tracked.renew_at(), None);
    assert_eq!(holder(terms).renew_at(), None);
}

/// Too little left to begin with, less than two stop margins or than half of a wait lease: it is
/// dated anew first, by whichever way it came.
#[test]
fn a_grant_with_little_left_is_renewed_before_it_begins() {
    let tracked = waiter(terms());
    assert!(!tracked.pushed(fence(7), at(4_948 - 2_499)));
    assert!(matches!(tracked.stage(), Stage::Waiting { .. }));
    assert!(tracked.pushed(fence(7), at(4_948 - 2_500)));
    assert!(matches!(tracked.stage(), Stage::Held));
    let in_time = TrackedClaim::granted(claim(), terms(), at(0), grant(7), at(9_898 - 2_500));
    assert!(matches!(in_time.stage(), Stage::Held));
    let late = TrackedClaim::granted(claim(), terms(), at(0), grant(7), at(9_898 - 2_499));
    let Stage::Waiting { ask_at, .. } = late.stage() else {
        panic!("{:?}", late.stage())
    };
    assert_eq!(ask_at, Some(at(9_898 - 2_499 + 1)), "it asks at once");
    late.confirm(at(7_500), Standing::Held(grant(7)), at(7_600));
    assert!(matches!(late.stage(), Stage::Held));
    assert_eq!(
        (late.fence(), valid_until(&late)),
        (fence(7), at(7_500 + 9_898))
    );
}

/// A renewal finds the grant, and its answer takes long: the minimum is the same as for a grant
/// that comes at once. One renewal more is made, and not a second one.
#[test]
fn a_grant_found_by_a_slow_renewal_is_renewed_once_more() {
    // A lease of 5 s from the request on.
    let short = || Grant {
        fence: fence(7),
        lease: Lease::of(Claim::LONGEST_WAIT_LEASE),
    };
    let in_time = waiter(terms());
    in_time.confirm(at(0), Standing::Held(short()), at(4_948 - 2_500));
    assert!(matches!(in_time.stage(), Stage::Held));
    let tracked = waiter(terms());
    tracked.confirm(at(0), Standing::Held(short()), at(4_948 - 266));
    let Stage::Waiting { ask_at, .. } = tracked.stage() else {
        panic!("handed out with 266 ms: {:?}", tracked.stage())
    };
    assert_eq!(ask_at, Some(at(4_948 - 266)), "it asks at once");
    let again = waiter(terms());
    for late in [300, 200] {
        again.confirm(at(0), Standing::Held(short()), at(4_948 - late));
    }
    assert!(matches!(again.stage(), Stage::Held), "once is enough");
    tracked.confirm(at(4_700), Standing::Held(grant(7)), at(4_750));
    assert!(matches!(tracked.stage(), Stage::Held));
    assert_eq!(valid_until(&tracked), at(4_700 + 9_898));
}

/// An expired claim is not renewed, whether the store ended it or the clock: that would keep others
/// out for a holder that is told to stop. At most two renewals are in flight.
#[test]
fn what_is_over_is_not_renewed() {
    let tracked = holder(terms());
    tracked.ended(Gone::Revoked);
    assert!(!tracked.begin_attempt(at(1)) && tracked.is_over(at(1)));
    let tracked = holder(terms());
    let stop = stop_token(&tracked, at(0));
    assert!(
        !tracked.begin_attempt(at(9_898)),
        "the clock has ended it, though the clock was not read"
    );
    assert!(
        tracked.is_over(at(9_898)) && stop.is_cancelled(),
        "who finds that out tells of it"
    );
    let tracked = holder(terms());
    assert!(tracked.begin_attempt(at(1)) && tracked.begin_attempt(at(2)));
    assert!(!tracked.begin_attempt(at(3)), "two are on their way");
    assert_eq!(tracked.status(at(3)), Status::Held, "neither is late");
    assert!(!tracked.begin_attempt(at(4_000)), "two are on their way");
    assert_eq!(
        tracked.status(at(4_000)),
        Status::AtRisk,
        "both should have been answered"
    );
    tracked.end_attempt();
    assert!(tracked.begin_attempt(at(4_001)));
}

/// A member that is lost before the group is bound takes the group with it, as one that is lost
/// later does.
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

/// The stop token fires with the margin or with the loss, and never because its owner released the
/// lock.
#[test]
fn the_stop_token_fires_for_a_loss_only() {
    let tracked = holder(terms());
    let stop = stop_token(&tracked, at(0));
    assert_eq!(tracked.watch(at(9_397)), Some(at(9_398)));
    assert!(!stop.is_cancelled());
    assert_eq!(tracked.watch(at(9_398)), Some(at(9_898)));
    assert!(stop.is_cancelled());
    let tracked = holder(terms());
    let stop = stop_token(&tracked, at(0));
    assert!(tracked.give_back(at(1)).is_some());
    assert_eq!(tracked.watch(at(20_000)), None);
    assert!(!stop.is_cancelled(), "a release is not a loss");
    let tracked = holder(terms());
    let stop = stop_token(&tracked, at(0));
    tracked.ended(Gone::Taken);
    assert!(stop.is_cancelled());
}

type Look = fn(&TrackedClaim);

/// Reads one member of a multi-lock when it is woken, and records what has been told by then.
struct Looks {
    look: Look,
    tracked: Arc<TrackedClaim>,
    fellow: Arc<TrackedClaim>,
    stops: [CancellationToken; 3],
    saw: Mutex<Vec<([bool; 3], Duration)>>,
}

impl std::task::Wake for Looks {
    fn wake(self: Arc<Self>) {
        (self.look)(&self.tracked);
        let stopped = self.stops.each_ref().map(CancellationToken::is_cancelled);
        self.saw
            .lock()
            .expect("no panic")
            .push((stopped, self.fellow.remaining(at(1))));
    }
}

/// A reader of the loss, however early and by whichever call, finds the tokens fired and the other
/// members lost.
#[test]
fn no_reader_sees_a_loss_before_it_is_told() {
    let ways: [(&str, Look); 3] = [
        ("status", |tracked| {
            assert_eq!(tracked.status(at(1)), Status::Lost(LossReason::Revoked))
        }),
        ("watch", |tracked| assert_eq!(tracked.watch(at(1)), None)),
        ("give_back", |tracked| {
            assert_eq!(
                tracked.give_back(at(1)).expect("once").1,
                Some(LossReason::Revoked)
            )
        }),
    ];
    for (way, look) in ways {
        let (tracked, fellow) = (holder(terms()), holder(terms()));
        let group = Group::bind(&[&tracked, &fellow], at(0));
        let stops = [
            stop_token(&tracked, at(0)),
            stop_token(&fellow, at(0)),
            group.stop.clone(),
        ];
        let looks = Arc::new(Looks {
            look,
            tracked: Arc::clone(&tracked),
            fellow,
            stops,
            saw: Mutex::default(),
        });
        let waker = std::task::Waker::from(Arc::clone(&looks));
        let mut changed = Box::pin(tracked.changed());
        assert!(
            changed
                .as_mut()
                .poll(&mut std::task::Context::from_waker(&waker))
                .is_pending()
        );
        tracked.ended(Gone::Revoked);
        assert_eq!(
            *looks.saw.lock().expect("no panic"),
            [([true; 3], Duration::ZERO)],
            "{way}"
        );
        assert_eq!(
            looks.fellow.status(at(1)),
            Status::Lost(LossReason::MemberLost),
            "{way}"
        );
    }
}

/// The member that is lost with it wakes its own waiters: they find all of it told as well.
#[test]
fn a_fellow_is_not_seen_lost_before_all_are() {
    let (lost, tracked, fellow) = (holder(terms()), holder(terms()), holder(terms()));
    let group = Group::bind(&[&lost, &tracked, &fellow], at(0));
    let stops = [
        stop_token(&tracked, at(0)),
        stop_token(&fellow, at(0)),
        group.stop.clone(),
    ];
    let look = |tracked: &TrackedClaim| {
        assert_eq!(tracked.status(at(1)), Status::Lost(LossReason::MemberLost))
    };
    let looks = Arc::new(Looks {
        look,
        tracked: Arc::clone(&tracked),
        fellow,
        stops,
        saw: Mutex::default(),
    });
    let waker = std::task::Waker::from(Arc::clone(&looks));
    let mut changed = Box::pin(tracked.changed());
    assert!(
        changed
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&waker))
            .is_pending()
    );
    lost.ended(Gone::Revoked);
    assert_eq!(
        *looks.saw.lock().expect("no panic"),
        [([true; 3], Duration::ZERO)]
    );
}

/// Two members are lost at the same time: a reader of the one finds the other told as well, though
/// that was only about to be.
#[test]
fn a_loss_in_the_midst_of_another_is_told_for_both() {
    let (tracked, fellow) = (holder(terms()), holder(terms()));
    let group = Group::bind(&[&tracked, &fellow], at(0));
    let stops = [
        stop_token(&tracked, at(0)),
        stop_token(&fellow, at(0)),
        group.stop.clone(),
    ];
    let look = |tracked: &TrackedClaim| tracked.ended(Gone::Taken);
    let looks = Arc::new(Looks {
        look,
        tracked,
        fellow: Arc::clone(&fellow),
        stops,
        saw: Mutex::default(),
    });
    let waker = std::task::Waker::from(Arc::clone(&looks));
    let mut changed = Box::pin(fellow.changed());
    assert!(
        changed
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&waker))
            .is_pending()
    );
    fellow.ended(Gone::Revoked);
    assert_eq!(
        *looks.saw.lock().expect("no panic"),
        [([true; 3], Duration::ZERO)]
    );
}
