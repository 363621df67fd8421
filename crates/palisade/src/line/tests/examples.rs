//! The rules one by one, to be read.

use super::*;
use crate::store::{Busy, Marks};

const PERMITS: Kind = Kind::Semaphore { limit: 3 };

/// A line with its own record of the claims that were told.
#[derive(Default)]
struct Scene {
    line: Line,
    told: Vec<Told>,
}

impl Scene {
    fn claim(&mut self, second: u64, claim: &Claim) -> Answer {
        self.line.claim(at(second), claim, &mut self.told).unwrap()
    }

    fn renew(&mut self, second: u64, claim: u128) -> Standing {
        self.line.renew(at(second), id(claim), None, &mut self.told)
    }

    fn release(&mut self, second: u64, claim: u128, ending: Ending) -> Released {
        self.line
            .release(at(second), id(claim), None, ending, &mut self.told)
    }

    fn told(&mut self) -> Vec<Told> {
        mem::take(&mut self.told)
    }
}

fn mutex(number: u128) -> Claim {
    some_claim(number, Kind::Mutex, Mode::Exclusive, 30)
}

fn reader(number: u128) -> Claim {
    some_claim(number, Kind::RwLock, Mode::Shared, 30)
}

fn writer(number: u128) -> Claim {
    some_claim(number, Kind::RwLock, Mode::Exclusive, 30)
}

fn permits(number: u128, count: u32) -> Claim {
    some_claim(number, PERMITS, Mode::Permits(count), 30)
}

fn granted(claim: u128, number: u64) -> Told {
    Told::Granted {
        claim: id(claim),
        fence: fence(number),
    }
}

fn gone(claim: u128, why: Gone) -> Told {
    Told::Gone {
        claim: id(claim),
        why,
    }
}

fn grant(number: u64) -> Grant {
    Grant {
        fence: fence(number),
        lease: Lease::of(secs(30)),
    }
}

#[test]
fn a_release_hands_the_lock_to_the_next_in_line() {
    let mut scene = Scene::default();
    assert_eq!(scene.claim(0, &mutex(1)), Answer::Granted(grant(1)));
    let Answer::Queued(place) = scene.claim(1, &mutex(2)) else {
        panic!("granted twice")
    };
    assert_eq!((place.ahead, place.ask_in), (Some(0), Some(secs(29))));
    assert_eq!(
        place.holder.map(|holder| holder.owner).as_deref(),
        Some("owner 1")
    );
    let Answer::Queued(place) = scene.claim(1, &mutex(3)) else {
        panic!("granted twice")
    };
    assert_eq!((place.ahead, place.ask_in), (Some(1), Some(secs(29))));

    assert_eq!(scene.release(2, 1, Ending::Release), Released::Done);
    assert_eq!(scene.told(), [granted(2, 2)]);
    assert_eq!(
        scene.line.holders[0].expiry,
        at(6),
        "what it had as a waiter"
    );
    assert_eq!(scene.renew(3, 2), Standing::Held(grant(2)));
    assert_eq!(scene.line.holders[0].expiry, at(33));
}

#[test]
fn a_cancelled_writer_lets_the_readers_behind_it_in() {
    let mut scene = Scene::default();
    scene.claim(0, &reader(1));
    scene.claim(0, &writer(2));
    scene.claim(0, &reader(3));
    scene.claim(0, &reader(4));
    assert_eq!(
        scene.line.holders.len(),
        1,
        "readers do not overtake a writer"
    );
    assert_eq!(scene.release(1, 2, Ending::Release), Released::Done);
    assert_eq!(scene.told(), [granted(3, 2), granted(4, 3)]);
}

#[test]
fn a_downgrade_lets_readers_in_and_keeps_the_fence() {
    let mut scene = Scene::default();
    scene.claim(0, &writer(1));
    scene.claim(0, &reader(2));
    let standing = scene
        .line
        .downgrade(at(1), id(1), fence(1), &mut scene.told);
    assert_eq!(standing, Standing::Held(grant(1)));
    assert_eq!(scene.told(), [granted(2, 2)]);
}

#[test]
fn a_proclamation_changes_what_is_shown_and_nothing_else() {
    let mut scene = Scene::default();
    scene.claim(0, &mutex(1));
    scene.claim(0, &mutex(2));
    let before = scene.line.clone();
    let standing = scene
        .line
        .proclaim(at(0), id(1), fence(1), "elsewhere", &mut scene.told);
    assert_eq!((standing, scene.told()), (Standing::Held(grant(1)), vec![]));
    assert_eq!(&*scene.line.holders[0].owner, "elsewhere");
    scene.line.holders[0].owner = before.holders[0].owner.clone();
    assert_eq!(scene.line, before);
    // Neither by another fence, nor by a waiter, nor by a claim that is gone.
    for (claim, by) in [(1, 2), (2, 1), (2, 2), (3, 1)] {
        let standing = scene
            .line
            .proclaim(at(0), id(claim), fence(by), "stale", &mut scene.told);
        assert!(matches!(standing, Standing::Gone(_)), "{standing:?}");
    }
    assert_eq!(scene.line, before);
}

#[test]
fn a_big_permit_claim_blocks_the_small_ones_behind_it() {
    let mut scene = Scene::default();
    scene.claim(0, &permits(1, 1));
    let Answer::Queued(place) = scene.claim(0, &permits(2, 3)) else {
        panic!("too many permits")
    };
    assert_eq!(place.ask_in, Some(secs(30)));
    assert!(matches!(scene.claim(0, &permits(3, 1)), Answer::Queued(_)));
    let impatient = Claim {
        queue: false,
        ..permits(4, 1)
    };
    let Answer::Busy(busy) = scene.claim(0, &impatient) else {
        panic!("overtook")
    };
    assert_eq!(
        (busy.ask_in, busy.too_soon),
        (Some(secs(5)), false),
        "when the waiters before it would be gone"
    );
    assert_eq!(busy.holder.map(|holder| holder.fence), Some(fence(1)));
    assert_eq!(scene.release(1, 1, Ending::Release), Released::Done);
    assert_eq!(scene.told(), [granted(2, 2)]);
}

#[test]
fn a_waiter_that_no_longer_wants_to_queue_keeps_its_place() {
    let mut scene = Scene::default();
    scene.claim(0, &mutex(1));
    scene.claim(0, &mutex(2));
    assert!(matches!(
        scene.claim(
            1,
            &Claim {
                queue: false,
                ..mutex(2)
            }
        ),
        Answer::Queued(_)
    ));
}

#[test]
fn the_expired_hear_why_they_are_gone() {
    let mut scene = Scene::default();
    scene.claim(0, &mutex(1));
    assert_eq!(
        scene
            .line
            .renew(at(30), id(1), Some(fence(1)), &mut scene.told),
        Standing::Gone(Gone::Ended),
        "the lease ends at its last moment, taken or not"
    );
    scene.claim(31, &mutex(2));
    assert_eq!(scene.renew(31, 1), Standing::Gone(Gone::Taken));
    assert_eq!(scene.release(31, 1, Ending::Release), Released::AlreadyLost);
    assert_eq!(
        scene.line.revoke(at(32), fence(1), &mut scene.told),
        Revoked::OtherHolder { fence: fence(2) }
    );
    assert_eq!(
        scene.line.revoke(at(32), fence(2), &mut scene.told),
        Revoked::Done
    );
    assert_eq!(scene.told(), [gone(2, Gone::Revoked)]);
    assert_eq!(
        scene.line.revoke(at(32), fence(2), &mut scene.told),
        Revoked::NotHeld
    );
    assert!(!scene.line.is_idle(at(32)), "it has yet to say why");
    assert_eq!(scene.renew(33, 2), Standing::Gone(Gone::Revoked));
    assert_eq!(
        scene.renew(61, 2),
        Standing::Gone(Gone::Unknown),
        "a tombstone lasts as long as the lease would have"
    );
    assert!(scene.line.is_idle(at(61)));
}

/// The last fence tells a grant that has ended from one that the line never gave.
#[test]
fn a_grant_that_is_gone_says_what_the_line_knows() {
    let mut scene = Scene::default();
    let renew = |scene: &mut Scene, second, claim, number| {
        scene
            .line
            .renew(at(second), id(claim), Some(fence(number)), &mut scene.told)
    };
    scene.claim(0, &mutex(1));
    let _ = scene.release(1, 1, Ending::Release);
    assert_eq!(renew(&mut scene, 2, 1, 1), Standing::Gone(Gone::Ended));
    assert_eq!(
        renew(&mut scene, 2, 1, 2),
        Standing::Gone(Gone::Unknown),
        "another line's grant, or one that was forgotten with all its data"
    );
    scene.claim(3, &mutex(2));
    assert_eq!(
        renew(&mut scene, 33, 2, 2),
        Standing::Gone(Gone::Ended),
        "released or expired: a line keeps no record of either"
    );
    scene.claim(34, &mutex(3));
    assert_eq!(renew(&mut scene, 35, 2, 2), Standing::Gone(Gone::Taken));
}

#[test]
fn marks_are_shown_until_they_end_or_are_cleared() {
    let name = crate::name::Name::new("tick").unwrap();
    let marks = |scene: &Scene, second| scene.line.view(at(second), &name).marks;
    let mut scene = Scene::default();
    let claim = Claim {
        min_hold: Some(secs(20)),
        once_per: Some(secs(60)),
        ..mutex(1)
    };
    scene.claim(0, &claim);
    let _ = scene.release(5, 1, Ending::Seal(secs(100)));
    assert_eq!(
        marks(&scene, 6),
        Marks {
            closed_for: Some(secs(14)),
            ran_ago: Some(secs(6)),
            due_in: Some(secs(54)),
            done_for: Some(secs(99)),
        }
    );
    assert_eq!(
        marks(&scene, 60),
        Marks {
            done_for: Some(secs(45)),
            ..Marks::default()
        }
    );
    assert!(marks(&scene, 105).is_empty());

    assert!(scene.line.clear_marks(at(7), &mut scene.told));
    assert!(marks(&scene, 7).is_empty() && scene.line.is_idle(at(7)));
    assert!(
        !scene.line.clear_marks(at(7), &mut scene.told),
        "nothing is left"
    );
    assert!(matches!(scene.claim(8, &claim), Answer::Granted(_)));
}

/// A waiter for the end of a closed period comes in, a holder stays, and an undo does not bring an
/// earlier mark back.
#[test]
fn clearing_marks_opens_the_line_and_ends_no_grant() {
    let closing = Claim {
        min_hold: Some(secs(20)),
        ..mutex(1)
    };
    let mut scene = Scene::default();
    scene.claim(0, &closing);
    scene.claim(0, &mutex(2));
    let _ = scene.release(1, 1, Ending::Release);
    let Answer::Busy(busy) = scene.claim(
        1,
        &Claim {
            queue: false,
            ..mutex(3)
        },
    ) else {
        panic!("it is closed")
    };
    assert!(busy.closed && busy.holder.is_none(), "{busy:?}");
    assert!(scene.line.clear_marks(at(2), &mut scene.told));
    assert_eq!(scene.told(), [granted(2, 2)]);

    let marking = |number, span| Claim {
        once_per: Some(secs(span)),
        ..permits(number, 1)
    };
    let mut scene = Scene::default();
    scene.claim(0, &marking(1, 60));
    scene.claim(61, &marking(2, 60));
    assert!(scene.line.clear_marks(at(62), &mut scene.told));
    assert!(matches!(scene.renew(63, 2), Standing::Held(_)));
    let _ = scene.release(63, 2, Ending::Undo);
    assert_eq!(scene.line.mark, None);
}

#[test]
fn a_claim_made_again_after_its_end_is_a_new_claim() {
    let mut scene = Scene::default();
    scene.claim(0, &mutex(1));
    scene.line.revoke(at(1), fence(1), &mut scene.told);
    assert_eq!(scene.claim(2, &mutex(1)), Answer::Granted(grant(2)));
    assert_eq!(scene.release(3, 1, Ending::Release), Released::Done);
    assert_eq!(
        scene.renew(3, 1),
        Standing::Gone(Gone::Unknown),
        "the old tombstone is not its own"
    );
}

#[test]
fn a_ghost_can_be_revoked_and_undone() {
    let claim = Claim {
        min_hold: Some(secs(20)),
        ..mutex(1)
    };
    let mut scene = Scene::default();
    scene.claim(0, &claim);
    assert_eq!(scene.release(1, 1, Ending::Release), Released::Done);
    let Answer::Queued(place) = scene.claim(2, &mutex(2)) else {
        panic!("not closed")
    };
    assert_eq!((place.ask_in, place.holder), (Some(secs(18)), None));
    let view = scene.line.view(at(2), &claim.name);
    assert_eq!(
        view.holders
            .iter()
            .map(|holder| holder.lease_left)
            .collect::<Vec<_>>(),
        [Some(Duration::ZERO)]
    );
    assert_eq!(
        scene.line.revoke(at(3), fence(9), &mut scene.told),
        Revoked::OtherHolder { fence: fence(1) }
    );
    assert_eq!(
        scene.line.revoke(at(3), fence(1), &mut scene.told),
        Revoked::Done
    );
    assert_eq!(
        scene.told(),
        [granted(2, 2)],
        "no claim is left to tell of the revocation"
    );

    let mut scene = Scene::default();
    scene.claim(0, &claim);
    assert_eq!(scene.release(1, 1, Ending::Undo), Released::Done);
    assert!(scene.line.is_idle(at(1)));
    scene.claim(
        0,
        &Claim {
            lease: secs(1),
            ..claim
        },
    );
    scene.claim(5, &mutex(2));
    assert_eq!(scene.release(6, 1, Ending::Undo), Released::AlreadyLost);
    assert_eq!(
        scene.told(),
        [granted(2, 3)],
        "the closed period is taken back even so"
    );
}

#[test]
fn once_per_is_checked_at_claim_and_at_hand_off() {
    let daily = |number| Claim {
        once_per: Some(secs(60)),
        ..mutex(number)
    };
    let mut scene = Scene::default();
    scene.claim(0, &mutex(1));
    scene.claim(1, &daily(2));
    scene.claim(1, &daily(3));
    scene.claim(1, &mutex(4));
    assert_eq!(scene.release(2, 1, Ending::Release), Released::Done);
    assert_eq!(
        scene.told(),
        [granted(2, 2)],
        "the one behind may still find that enough time has passed"
    );
    assert_eq!(scene.release(3, 2, Ending::Release), Released::Done);
    assert_eq!(scene.told(), [gone(3, Gone::TooSoon), granted(4, 3)]);
    assert_eq!(scene.renew(4, 3), Standing::Gone(Gone::TooSoon));
    let Answer::Busy(busy) = scene.claim(4, &daily(5)) else {
        panic!("too soon")
    };
    assert_eq!((busy.too_soon, busy.ask_in), (true, Some(secs(58))));
    assert_eq!(scene.release(4, 4, Ending::Release), Released::Done);
    assert!(!scene.line.is_idle(at(61)));
    assert!(matches!(scene.claim(62, &daily(6)), Answer::Granted(_)));
}

#[test]
fn an_undo_puts_back_the_mark_of_the_grant_before() {
    let daily = |number| Claim {
        once_per: Some(secs(60)),
        ..mutex(number)
    };
    let hourly = |number| Claim {
        once_per: Some(secs(5)),
        ..mutex(number)
    };
    let mut scene = Scene::default();
    scene.claim(0, &daily(1));
    let _ = scene.release(0, 1, Ending::Release);
    assert!(matches!(scene.claim(10, &hourly(2)), Answer::Granted(_)));
    let _ = scene.release(11, 2, Ending::Undo);
    let Answer::Busy(busy) = scene.claim(11, &daily(3)) else {
        panic!("too soon")
    };
    assert_eq!(
        busy,
        Busy {
            holder: None,
            ask_in: Some(secs(49)),
            too_soon: true,
            ..Busy::default()
        }
    );
}

#[test]
fn an_undone_mark_does_not_come_back_by_a_later_undo() {
    let marking = |number, span| Claim {
        once_per: Some(secs(span)),
        ..permits(number, 1)
    };
    let mut scene = Scene::default();
    scene.claim(0, &marking(1, 60));
    assert!(matches!(scene.claim(5, &marking(2, 5)), Answer::Granted(_)));
    let _ = scene.release(6, 1, Ending::Undo);
    let _ = scene.release(7, 2, Ending::Undo);
    assert!(scene.line.is_idle(at(7)));
}

#[test]
fn a_seal_turns_everyone_away_for_its_time() {
    let mut scene = Scene::default();
    scene.claim(0, &mutex(1));
    scene.claim(0, &mutex(2));
    scene.claim(0, &mutex(3));
    assert_eq!(
        scene.release(1, 3, Ending::Seal(secs(9))),
        Released::Done,
        "a waiter is only cancelled"
    );
    assert_eq!(scene.told(), []);
    assert_eq!(scene.release(1, 1, Ending::Seal(secs(9))), Released::Done);
    assert_eq!(scene.told(), [gone(2, Gone::Sealed)]);
    assert_eq!(scene.renew(2, 2), Standing::Gone(Gone::Sealed));
    assert_eq!(scene.claim(9, &mutex(4)), Answer::Sealed);
    assert!(scene.line.is_idle(at(10)));
    assert!(matches!(scene.claim(10, &mutex(4)), Answer::Granted(_)));
}

#[test]
fn of_two_seals_the_longer_one_counts() {
    let mut scene = Scene::default();
    scene.claim(0, &permits(1, 1));
    scene.claim(0, &permits(2, 1));
    let _ = scene.release(1, 1, Ending::Seal(secs(20)));
    let _ = scene.release(2, 2, Ending::Seal(secs(1)));
    assert_eq!(scene.claim(20, &permits(3, 1)), Answer::Sealed);
}

#[test]
fn a_name_serves_one_kind_at_a_time() {
    let mut scene = Scene::default();
    scene.claim(0, &mutex(1));
    let error = scene
        .line
        .claim(at(1), &permits(2, 1), &mut scene.told)
        .unwrap_err();
    assert_eq!(
        error,
        ClaimError::KindConflict {
            in_use: Kind::Mutex,
            asked: PERMITS
        }
    );
    let error = error.of(&crate::name::Name::new("x").unwrap());
    assert_eq!(error.kind(), crate::ErrorKind::Config);
    assert!(
        error.to_string().contains("a mutex") && error.to_string().contains("semaphore of 3"),
        "{error}"
    );

    scene.claim(1, &reader(3));
    assert_eq!(
        scene.line.kind,
        Some(Kind::RwLock),
        "a mutex is the write side of a rwlock"
    );
    let other_limit = Claim {
        kind: Kind::Semaphore { limit: 4 },
        ..permits(2, 1)
    };
    assert!(
        matches!(scene.claim(40, &permits(1, 1)), Answer::Granted(_)),
        "free again for any kind"
    );
    assert!(
        scene
            .line
            .claim(at(40), &other_limit, &mut scene.told)
            .is_err()
    );
}

#[test]
fn what_never_fits_is_refused_and_leaves_nothing() {
    let misfits = [
        permits(1, 0),
        permits(1, 4),
        Claim {
            kind: PERMITS,
            ..mutex(1)
        },
        Claim {
            kind: Kind::Mutex,
            ..reader(1)
        },
    ];
    for misfit in misfits {
        let mut line = Line::default();
        let error = line.claim(at(0), &misfit, &mut Vec::new()).unwrap_err();
        assert_eq!(
            error,
            ClaimError::ModeMisfit {
                kind: misfit.kind,
                mode: misfit.mode
            }
        );
        assert_eq!(line, Line::default());
    }
}

#[test]
fn a_raised_fence_is_never_gone_back_on() {
    let mut scene = Scene::default();
    scene.line.raise_fence(fence(100));
    scene.line.raise_fence(fence(50));
    assert_eq!(scene.claim(0, &mutex(1)), Answer::Granted(grant(101)));
    scene.claim(0, &mutex(2));

    scene.line.raise_fence(Fence::MAX);
    let error = scene
        .line
        .claim(at(1), &mutex(3), &mut scene.told)
        .unwrap_err();
    assert_eq!(error, ClaimError::FencesSpent);
    let _ = scene.release(1, 1, Ending::Release);
    assert_eq!(
        scene.told(),
        [],
        "no grant is better than two with one fence"
    );
}

#[test]
fn leases_without_end_do_not_overflow() {
    let endless = |number| Claim {
        lease: Duration::MAX,
        min_hold: Some(Duration::MAX),
        once_per: Some(Duration::MAX),
        ..permits(number, 3)
    };
    let mut scene = Scene::default();
    scene.claim(1, &endless(1));
    let Answer::Queued(place) = scene.claim(2, &permits(2, 1)) else {
        panic!("not held")
    };
    assert_eq!(place.ask_in, None, "no time frees it");
    assert!(matches!(scene.renew(3, 1), Standing::Held(_)));
    scene.line.expire(at(10), &mut scene.told);
    assert_eq!(scene.line.next_change(at(10)), None);
    assert_eq!(
        scene.release(11, 1, Ending::Seal(Duration::MAX)),
        Released::Done
    );
    assert!(!scene.line.is_idle(at(u64::MAX)));
}

#[test]
fn a_view_shows_what_stands_and_grants_nothing() {
    let mut scene = Scene::default();
    scene.claim(
        0,
        &Claim {
            reason: Some(Arc::from("nightly run")),
            ..mutex(1)
        },
    );
    scene.claim(28, &mutex(2));
    let view = scene.line.view(at(29), &mutex(1).name);
    assert_eq!(
        (view.name.as_str(), view.kind, view.waiters_known),
        ("orders/42", Kind::Mutex, true)
    );
    assert_eq!(view.holders[0].reason.as_deref(), Some("nightly run"));
    assert_eq!(
        (view.holders[0].held, view.holders[0].lease_left),
        (Some(secs(29)), Some(secs(1)))
    );
    assert_eq!(
        (view.waiters[0].owner.as_str(), view.waiters[0].waited),
        ("owner 2", Some(secs(1)))
    );
    let view = scene.line.view(at(30), &mutex(1).name);
    assert_eq!(
        (view.holders.len(), view.waiters.len()),
        (0, 1),
        "the next event hands it on"
    );
    assert!(!scene.line.is_idle(at(30)));
}
