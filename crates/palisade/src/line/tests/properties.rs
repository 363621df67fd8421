//! Properties of every history.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::history::{Done, Op, Said, Step, histories, play};
use super::observer::{Picture, Seen, State, may_hold_together};
use super::*;
use crate::store::Busy;

type Verdict = Result<(), TestCaseError>;

/// Shows each step, with the pictures of before (time has passed, nothing else) and after, to the
/// check.
fn at_each_step(
    history: &[(u64, Op)],
    mut check: impl FnMut(&Picture, &Step, &Picture) -> Verdict,
) -> Verdict {
    let mut before = Picture::default();
    for step in play(history) {
        let after = before.after(&step);
        check(&before, &step, &after)?;
        before = after;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn holders_may_hold_together(history in histories()) {
        at_each_step(&history, |_, step, after| {
            let modes = after.modes_in_the_way(step.second);
            prop_assert!(may_hold_together(&modes, after.limit()), "{modes:?} at {step:#?}");
            Ok(())
        })?;
    }

    #[test]
    fn fences_rise(history in histories()) {
        let mut highest = Fence::NONE;
        at_each_step(&history, |before, step, _| {
            for (_, fence) in before.new_grants(step) {
                prop_assert!(fence > highest, "{fence} after {highest} at {step:#?}");
                highest = fence;
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_claim_overtakes(history in histories()) {
        at_each_step(&history, |before, step, after| {
            let turn = |(claim, _): &(ClaimId, Fence)| after.claims.get(claim).map(|seen| seen.turn);
            let turns: Vec<_> = before.new_grants(step).iter().filter_map(turn).collect();
            prop_assert!(turns.is_sorted(), "granted by turns {turns:?} at {step:#?}");
            for waiter in after.waiters() {
                prop_assert!(turns.iter().all(|turn| *turn < waiter.turn), "overtook {waiter:?} at {step:#?}");
            }
            let order: Vec<_> = after.waiters().iter().map(|seen| seen.claim.id).collect();
            let kept: Vec<_> = step.after.waiters.iter().map(|waiter| waiter.claim).collect();
            prop_assert_eq!(order, kept);
            Ok(())
        })?;
    }

    #[test]
    fn no_waiter_is_forgotten(history in histories()) {
        at_each_step(&history, |_, step, after| {
            if let Some(first) = after.waiters().first() {
                prop_assert!(!after.has_room(first.mode, after.limit(), step.second), "{first:?} still waits at {step:#?}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_line_remembers_what_it_said(history in histories()) {
        at_each_step(&history, |_, step, after| {
            let said: Vec<_> = after.claims.iter().map(|(id, seen)| (*id, seen.mode, seen.state)).collect();
            prop_assert_eq!(said, remembered(&step.after), "at {:#?}", step);
            Ok(())
        })?;
    }

    #[test]
    fn a_hand_off_keeps_the_expiry_of_the_waiter(history in histories()) {
        at_each_step(&history, |_, step, _| {
            for told in &step.told {
                if let Told::Granted { claim, .. } = told {
                    let waited = step.before.waiters.iter().find(|waiter| waiter.claim == *claim).map(|waiter| waiter.expiry);
                    let holds = step.after.holders.iter().find(|holder| holder.claim == *claim).map(|holder| holder.expiry);
                    prop_assert!(waited.is_some() && waited == holds, "{waited:?} became {holds:?} at {step:#?}");
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_stranger_changes_nothing(history in histories()) {
        at_each_step(&history, |before, step, _| {
            let (claim, fence) = match &step.done {
                Done::Renew(claim, fence) => (*claim, *fence),
                // An undo may take back what an earlier grant left behind.
                Done::Release(claim, fence, ending) if *ending != Ending::Undo => (*claim, *fence),
                Done::Downgrade(claim, fence) => (*claim, Some(*fence)),
                _ => return Ok(()),
            };
            if !before.owns(claim, fence) {
                let refused = matches!(step.said, Said::Standing(Standing::Gone(_)) | Said::Released(Released::AlreadyLost));
                // The claim that sealed the name may repeat it: the first reply may have been lost.
                let sealed = matches!(step.done, Done::Release(_, _, Ending::Seal(_)))
                    && step.before.seal.is_some_and(|seal| seal.by == claim);
                prop_assert_eq!(refused, !sealed, "at {:#?}", step);
                prop_assert_eq!(&step.before, &step.after);
                prop_assert!(step.told.is_empty());
            }
            Ok(())
        })?;
    }

    #[test]
    fn an_owner_is_heard(history in histories()) {
        at_each_step(&history, |before, step, _| {
            match (&step.done, &step.said) {
                (Done::Renew(claim, fence), Said::Standing(said)) if before.owns(*claim, *fence) => {
                    let waits = before.claims.get(claim).is_some_and(|seen| seen.waits());
                    prop_assert_eq!(waits, matches!(said, Standing::Waiting(_)), "at {:#?}", step);
                    prop_assert_eq!(!waits, matches!(said, Standing::Held(_)), "at {:#?}", step);
                }
                (Done::Release(claim, fence, _), Said::Released(said)) if before.owns(*claim, *fence) => {
                    prop_assert_eq!(*said, Released::Done, "at {:#?}", step);
                }
                (Done::Downgrade(claim, fence), Said::Standing(said)) if before.owns(*claim, Some(*fence)) => {
                    prop_assert!(matches!(said, Standing::Held(_)), "at {step:#?}");
                }
                _ => {}
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_expired_stay_dead(history in histories()) {
        at_each_step(&history, |before, step, after| {
            // Time passes in a step of its own, before the event of the same second.
            let dead = if matches!(step.done, Done::Expire) { after } else { before };
            for claim in &dead.expired {
                let granted = before.new_grants(step).iter().any(|(granted, _)| granted == claim);
                let waits = step.after.waiters.iter().any(|waiter| waiter.claim == *claim);
                let holds = step.after.holders.iter().any(|holder| holder.claim == *claim && !holder.ghost);
                prop_assert!(!granted && !waits && !holds, "{claim:?} came back at {step:#?}");
                prop_assert!(!step.told.iter().any(|told| told.claim() == *claim), "{claim:?} told at {step:#?}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_same_claim_again_finds_itself(history in histories()) {
        at_each_step(&history, |before, step, _| {
            let Done::Claim(claim) = &step.done else { return Ok(()) };
            let Some(seen) = before.claims.get(&claim.id) else { return Ok(()) };
            let mut renewed = step.before.clone();
            let standing = renewed.renew(at(step.second), claim.id, None, &mut Vec::new());
            prop_assert_eq!(&renewed, &step.after, "more than renewed at {:#?}", step);
            match (seen.state, &step.said, standing) {
                (State::Holding { fence, .. }, Said::Answer(Ok(Answer::Granted(grant))), Standing::Held(held)) => {
                    prop_assert_eq!(grant.fence, fence);
                    prop_assert_eq!(*grant, held);
                }
                (State::Waiting { .. }, Said::Answer(Ok(Answer::Queued(place))), Standing::Waiting(held)) => {
                    prop_assert_eq!(place, &held);
                }
                other => prop_assert!(false, "{other:?}"),
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_new_claim_gets_the_answer_it_should(history in histories()) {
        at_each_step(&history, |before, step, _| {
            let (Done::Claim(claim), Said::Answer(said)) = (&step.done, &step.said) else { return Ok(()) };
            if before.claims.contains_key(&claim.id) {
                return Ok(());
            }
            let limit = if let Kind::Semaphore { limit } = claim.kind { limit } else { 0 };
            let alone = before.waiters().is_empty();
            let free = alone && before.has_room(claim.mode, limit, step.second);
            let too_soon = before.too_soon_by(claim.once_per, step.second);
            match said {
                Err(error) => prop_assert_eq!(Some(*error), mistake(before, step.before.kind, claim), "at {:#?}", step),
                _ if mistake(before, step.before.kind, claim).is_some() => prop_assert!(false, "no error at {step:#?}"),
                Ok(Answer::Sealed) => prop_assert!(step.second < before.sealed_until, "at {step:#?}"),
                _ if step.second < before.sealed_until => prop_assert!(false, "not sealed at {step:#?}"),
                Ok(Answer::Busy(busy)) if busy.too_soon => prop_assert_eq!(busy.ask_in, too_soon.map(secs), "at {:#?}", step),
                _ if too_soon.is_some() => prop_assert!(false, "too soon at {step:#?}"),
                Ok(Answer::Granted(grant)) => prop_assert!(free && grant.lease.length == claim.lease, "at {step:#?}"),
                Ok(Answer::Busy(busy)) => {
                    prop_assert!(!free && !claim.queue, "at {step:#?}");
                    prop_assert_eq!(busy.ask_in, admitted_in(before, claim.mode, usize::MAX, step.second), "at {:#?}", step);
                    prop_assert_eq!(&step.before, &step.after, "busy left something behind");
                }
                Ok(Answer::Queued(place)) => {
                    prop_assert!(!free && claim.queue, "at {step:#?}");
                    prop_assert_eq!(place.lease.length, claim.lease.min(secs(5)));
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_waiter_is_told_when_to_ask(history in histories()) {
        at_each_step(&history, |_, step, after| {
            let (Said::Answer(Ok(Answer::Queued(place))) | Said::Standing(Standing::Waiting(place))) = &step.said else {
                return Ok(());
            };
            let (Done::Claim(Claim { id, .. }) | Done::Renew(id, _)) = &step.done else { return Ok(()) };
            let ahead = after.waiters().iter().position(|seen| seen.claim.id == *id);
            prop_assert_eq!(place.ahead.map(|ahead| ahead as usize), ahead);
            let Some(ahead) = ahead else { return Ok(()) };
            let mode = after.waiters()[ahead].mode;
            prop_assert_eq!(place.ask_in, admitted_in(after, mode, ahead, step.second), "at {:#?}", step);
            Ok(())
        })?;
    }

    #[test]
    fn who_is_turned_away_comes_too_soon_or_is_sealed_out(history in histories()) {
        at_each_step(&history, |before, step, after| {
            for told in &step.told {
                let Told::Gone { claim, why } = told else { continue };
                let seen = before.claims.get(claim);
                match why {
                    Gone::TooSoon => {
                        let once_per = seen.and_then(|seen| seen.claim.once_per);
                        prop_assert!(after.too_soon_by(once_per, step.second).is_some(), "at {step:#?}");
                    }
                    Gone::Sealed => {
                        let sealed = matches!(step.done, Done::Release(_, _, Ending::Seal(_)));
                        prop_assert!(sealed && step.after.waiters.is_empty(), "at {step:#?}");
                    }
                    Gone::Revoked => prop_assert!(matches!(step.done, Done::Revoke(_)), "at {step:#?}"),
                    other => prop_assert!(false, "{other:?} at {step:#?}"),
                }
                prop_assert!(step.after.tombstones.iter().any(|stone| stone.claim == *claim && stone.why == *why));
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_holder_that_seals_leaves_no_waiter(history in histories()) {
        at_each_step(&history, |before, step, after| {
            let Done::Release(claim, _, Ending::Seal(_)) = &step.done else { return Ok(()) };
            let held = before.claims.get(claim).is_some_and(|seen| matches!(seen.state, State::Holding { .. }));
            if held && step.said == Said::Released(Released::Done) {
                let sealed_out = |seen: &&Seen| Told::Gone { claim: seen.claim.id, why: Gone::Sealed };
                prop_assert_eq!(&step.told, &before.waiters().iter().map(sealed_out).collect::<Vec<_>>(), "at {:#?}", step);
                prop_assert!(step.after.waiters.is_empty(), "at {step:#?}");
            } else {
                prop_assert_eq!(after.sealed_until, before.sealed_until);
                prop_assert_eq!(step.after.seal, step.before.seal, "at {:#?}", step);
            }
            Ok(())
        })?;
    }

    #[test]
    fn once_per_decides_when_it_is_the_waiters_turn(first in 1..9_u64, second in 1..9_u64, held_for in 0..9_u64) {
        let (mut line, told) = (Line::default(), &mut Vec::new());
        let sparing = |number, span| Claim { once_per: Some(secs(span)), ..some_claim(number, Kind::Mutex, Mode::Exclusive, 30) };
        let claims = [
            some_claim(1, Kind::Mutex, Mode::Exclusive, 30),
            sparing(2, first),
            sparing(3, second),
            some_claim(4, Kind::Mutex, Mode::Exclusive, 30),
        ];
        for claim in &claims {
            line.claim(at(0), claim, told).unwrap();
        }
        prop_assert_eq!(line.release(at(0), id(1), None, Ending::Release, told), Released::Done);
        prop_assert_eq!(mem::take(told), [Told::Granted { claim: id(2), fence: fence(2) }]);
        for beat in 1..=held_for {
            for number in 2..=4 {
                prop_assert!(!matches!(line.renew(at(beat), id(number), None, told), Standing::Gone(_)));
            }
        }
        prop_assert_eq!(line.release(at(held_for), id(2), None, Ending::Release, told), Released::Done);
        let expected = if held_for < first.min(second) {
            vec![Told::Gone { claim: id(3), why: Gone::TooSoon }, Told::Granted { claim: id(4), fence: fence(3) }]
        } else {
            vec![Told::Granted { claim: id(3), fence: fence(3) }]
        };
        prop_assert_eq!(mem::take(told), expected);
    }

    #[test]
    fn an_undo_is_as_if_it_had_never_been_granted(earlier in proptest::option::of(3..20_u64), span in 1..3_u64, min_hold in 1..9_u64) {
        let (mut line, told) = (Line::default(), &mut Vec::new());
        let sparing = |number, span| Claim { once_per: Some(secs(span)), ..some_claim(number, Kind::Mutex, Mode::Exclusive, 30) };
        if let Some(earlier) = earlier {
            line.claim(at(0), &sparing(1, earlier), told).unwrap();
            prop_assert_eq!(line.release(at(0), id(1), None, Ending::Release, told), Released::Done);
        }
        line.expire(at(2), told);
        let before = line.clone();
        let undone = Claim { min_hold: Some(secs(min_hold)), ..sparing(2, span) };
        prop_assert!(matches!(line.claim(at(2), &undone, told), Ok(Answer::Granted(_))));
        prop_assert_eq!(line.release(at(2), id(2), None, Ending::Undo, told), Released::Done);
        prop_assert_eq!(&line, &Line { last_fence: line.last_fence, ..before });
    }

    #[test]
    fn once_per_is_kept_at_every_grant(history in histories()) {
        at_each_step(&history, |before, step, after| {
            for (claim, _) in before.new_grants(step) {
                let Some(seen) = after.claims.get(&claim) else { continue };
                // The mark that its own grant has set does not count.
                let mut earlier = after.clone();
                earlier.marks.retain(|(_, _, fence)| before.marks.iter().any(|(_, _, known)| fence == known));
                prop_assert!(earlier.too_soon_by(seen.claim.once_per, step.second).is_none(), "at {step:#?}");
            }
            let mark = step.after.mark.map(|mark| (mark.at, mark.span, mark.fence));
            let expected = after.marks.last().map(|(second, span, fence)| (at(*second), secs(*span), *fence));
            prop_assert_eq!(mark, expected, "at {:#?}", step);
            Ok(())
        })?;
    }

    #[test]
    fn one_kind_at_a_time(history in histories()) {
        at_each_step(&history, |_, step, after| {
            let kinds: Vec<_> = after.claims.values().map(|seen| seen.claim.kind).collect();
            prop_assert!(kinds.iter().all(|one| kinds.iter().all(|other| one.shares_line_with(*other))), "at {step:#?}");
            prop_assert_eq!(step.after.kind.is_none(), kinds.is_empty(), "at {:#?}", step);
            if kinds.contains(&Kind::RwLock) {
                prop_assert_eq!(step.after.kind, Some(Kind::RwLock));
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_event_lets_the_expired_go_first(history in histories()) {
        at_each_step(&history, |_, step, _| {
            if let Some((line, said)) = &step.unexpired {
                prop_assert_eq!(line, &step.after);
                prop_assert_eq!(said, &step.said);
            }
            Ok(())
        })?;
    }

    #[test]
    fn who_made_the_event_is_not_also_told(history in histories()) {
        at_each_step(&history, |_, step, _| {
            let (Done::Claim(Claim { id, .. }) | Done::Renew(id, _) | Done::Release(id, ..) | Done::Downgrade(id, _)) = &step.done
            else {
                return Ok(());
            };
            let (mut line, mut told) = (step.before.clone(), Vec::new());
            // Late enough for a hand-off by time to be part of the same event.
            step.done.on(&mut line, step.second + 3, &mut told);
            prop_assert!(told.iter().all(|told| told.claim() != *id), "{told:?} at {step:#?}");
            Ok(())
        })?;
    }

    #[test]
    fn time_changes_a_line_when_it_says_and_not_before(history in histories()) {
        at_each_step(&history, |_, step, _| {
            let mut line = step.after.clone();
            line.expire(at(step.second), &mut Vec::new());
            let idle = Line { last_fence: line.last_fence, ..Line::default() };
            prop_assert_eq!(step.after.is_idle(at(step.second)), line == idle, "at {:#?}", step);
            let Some(change) = line.next_change(at(step.second)) else {
                prop_assert_eq!(line, idle);
                return Ok(());
            };
            prop_assert!(change > at(step.second), "at {step:#?}");
            let (mut just_before, mut then) = (line.clone(), line.clone());
            just_before.expire(StoreTime::at(change.since_zero() - Duration::from_nanos(1)), &mut Vec::new());
            then.expire(change, &mut Vec::new());
            prop_assert_eq!(&just_before, &line);
            prop_assert_ne!(&then, &line);
            prop_assert_eq!(line.next_change(change + secs(9)), Some(change + secs(9)), "overdue is now");
            Ok(())
        })?;
    }

    #[test]
    fn dead_waiters_together_cost_one_wait_lease(
        dead in proptest::collection::vec((0..5_000_u64, 0..5_000_u64, 1..9_u64), 1..8),
        live_came in 5_000..8_000_u64,
        released_after in 0..5_000_u64,
        swept in any::<bool>(),
    ) {
        let waited = dead_waiters_cost(&dead, live_came, live_came + released_after, swept);
        // Also for a store that expires claims only when it is asked: a claim behind dead ones is
        // told when they will be gone.
        prop_assert!(waited <= WAIT_LEASE, "{waited:?}");
    }

    #[test]
    fn min_hold_closes_through_release_and_expiry(
        (kind, held, wanted) in modes_that_exclude(),
        lease in 1..9_u64,
        min_hold in 1..12_u64,
        leaves_at in 0..12_u64,
    ) {
        let mut line = Line::default();
        let told = &mut Vec::new();
        let first = Claim { min_hold: Some(secs(min_hold)), ..some_claim(1, kind, held, lease) };
        prop_assert!(matches!(line.claim(at(0), &first, told), Ok(Answer::Granted(_))));
        let released = line.release(at(leaves_at), id(1), None, Ending::Release, told);
        prop_assert_eq!(released == Released::Done, leaves_at < lease);
        prop_assert!(matches!(line.renew(at(leaves_at), id(1), None, told), Standing::Gone(Gone::Unknown)));

        let next = Claim { queue: false, ..some_claim(2, kind, wanted, 5) };
        for second in leaves_at..min_hold {
            let busy = Busy { holder: None, ask_in: Some(secs(min_hold - second)), closed: true, ..Busy::default() };
            prop_assert_eq!(line.claim(at(second), &next, told), Ok(Answer::Busy(busy)));
        }
        let granted = line.claim(at(min_hold.max(leaves_at)), &next, told);
        prop_assert!(matches!(granted, Ok(Answer::Granted(_))), "{granted:?}");
    }
}

/// The line's holders and waiters in the terms of the picture.
fn remembered(line: &Line) -> Vec<(ClaimId, Mode, State)> {
    let second = |time: StoreTime| time.since_zero().as_secs();
    let holders = line.holders.iter().map(|holder| {
        let (fence, closed_until) = (holder.fence, second(holder.keep_until));
        let state = match holder.ghost {
            true => State::Ghost {
                fence,
                closed_until,
            },
            false => State::Holding {
                fence,
                expiry: second(holder.expiry),
                closed_until,
            },
        };
        (holder.claim, holder.mode, state)
    });
    let waiters = line.waiters.iter().map(|waiter| {
        (
            waiter.claim,
            waiter.mode,
            State::Waiting {
                expiry: second(waiter.expiry),
            },
        )
    });
    let mut all: Vec<_> = holders.chain(waiters).collect();
    all.sort_by_key(|(claim, ..)| *claim);
    all
}

/// The mistake in a new claim, if any.
fn mistake(before: &Picture, named: Option<Kind>, claim: &Claim) -> Option<ClaimError> {
    let (kind, mode) = (claim.kind, claim.mode);
    if let (Kind::Semaphore { limit }, Mode::Permits(count)) = (kind, mode)
        && (count == 0 || count > limit)
    {
        return Some(ClaimError::ModeMisfit { kind, mode });
    }
    let kinds: Vec<_> = before.claims.values().map(|seen| seen.claim.kind).collect();
    // The name serves as a rwlock even after the rwlock claims among its mutex claims are gone, so
    // the line says which.
    let in_use = named.filter(|named| kinds.iter().all(|kind| kind.shares_line_with(*named)))?;
    (!kinds.is_empty() && !in_use.shares_line_with(kind)).then_some(ClaimError::KindConflict {
        in_use,
        asked: kind,
    })
}

/// The first second from now at which there is room among the holders and no claim is ahead, found
/// by trying each.
fn admitted_in(picture: &Picture, mode: Mode, ahead: usize, second: u64) -> Option<Duration> {
    let waits = |seen: &&Seen, at| matches!(seen.state, State::Waiting { expiry } if expiry > at);
    let clear = |at| {
        picture.has_room(mode, picture.limit(), at)
            && !picture
                .waiters()
                .iter()
                .take(ahead)
                .any(|seen| waits(seen, at))
    };
    (0..100).find(|later| clear(second + later)).map(secs)
}

const WAIT_LEASE: Duration = Claim::LONGEST_WAIT_LEASE;
const HEARTBEAT: Duration = Duration::from_millis(1_666);

/// How long after the release a live waiter behind dead ones is granted. Of each dead one: the
/// millisecond of its claim, how long after that it renewed for the last time, its lease. `swept`
/// says whether the store expires claims by itself.
fn dead_waiters_cost(
    dead: &[(u64, u64, u64)],
    live_came: u64,
    released_at: u64,
    swept: bool,
) -> Duration {
    let millis = |count| StoreTime::at(Duration::from_millis(count));
    let waiter = |number, lease| some_claim(number, Kind::Mutex, Mode::Exclusive, lease);
    let (holder, live) = (waiter(1_000, 3_600), waiter(2_000, 30));
    let (mut line, mut told) = (Line::default(), Vec::new());
    line.claim(millis(0), &holder, &mut told).unwrap();

    // A repeated claim is a renewal, so the history up to the release consists of claims.
    let mut story = vec![];
    for (number, &(came, renewed_after, lease)) in (1_u128..).zip(dead) {
        story.push((millis(came), waiter(number, lease)));
        // A renewal that comes too late would be a new claim.
        let renewed_after = renewed_after.min(lease.min(5) * 1_000 - 1);
        story.push((
            millis((came + renewed_after).min(released_at)),
            waiter(number, lease),
        ));
    }
    let released = millis(released_at);
    let mut beat = millis(live_came);
    while beat <= released {
        story.push((beat, live.clone()));
        beat = beat + HEARTBEAT;
    }
    story.sort_by_key(|(time, _)| *time);
    for (time, claim) in &story {
        line.claim(*time, claim, &mut told).unwrap();
    }
    assert_eq!(
        line.release(released, holder.id, None, Ending::Release, &mut told),
        Released::Done
    );

    let mut next = beat;
    // Far more turns than it can take: a broken line must not hang the test.
    for _ in 0..1_000 {
        let pushed = |told: &Told| matches!(told, Told::Granted { claim, .. } if *claim == live.id);
        let sweep = line
            .next_change(released)
            .filter(|change| swept && *change < next);
        if told.iter().any(pushed) {
            return line
                .holders
                .first()
                .map_or(Duration::MAX, |holder| holder.granted_at.since(released));
        } else if let Some(sweep) = sweep {
            line.expire(sweep, &mut told);
            continue;
        }
        let now = next;
        next = match line.renew(now, live.id, None, &mut told) {
            Standing::Held(_) => return now.since(released),
            Standing::Waiting(place) => now + place.ask_in.unwrap_or(Duration::MAX).min(HEARTBEAT),
            Standing::Gone(why) => panic!("the live waiter is gone: {why:?}"),
        };
    }
    Duration::MAX
}

fn modes_that_exclude() -> impl Strategy<Value = (Kind, Mode, Mode)> {
    let permits = Kind::Semaphore { limit: 3 };
    prop_oneof![
        Just((Kind::Mutex, Mode::Exclusive, Mode::Exclusive)),
        Just((Kind::RwLock, Mode::Exclusive, Mode::Shared)),
        Just((Kind::RwLock, Mode::Shared, Mode::Exclusive)),
        Just((permits, Mode::Permits(2), Mode::Permits(2))),
        Just((permits, Mode::Permits(1), Mode::Permits(3))),
    ]
}
