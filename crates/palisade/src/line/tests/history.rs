//! Random histories: the events on a line, second by second, and its answers.

use proptest::prelude::*;

use super::*;

/// An event, before it is known which claims are alive.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Claim(usize, Ask),
    Renew(usize, By),
    Release(usize, By, Ending),
    Downgrade(usize, By),
    Revoke(usize, By),
}

/// The parts of a claim that vary.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub kind: Kind,
    pub mode: Mode,
    pub lease: u64,
    pub queue: bool,
    pub min_hold: Option<u64>,
    pub once_per: Option<u64>,
}

/// Which fence comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Nothing,
    Its,
    Wrong,
}

/// The event as it was applied.
#[derive(Clone, Debug)]
pub(super) enum Done {
    Expire,
    Claim(Claim),
    Renew(ClaimId, Option<Fence>),
    Release(ClaimId, Option<Fence>, Ending),
    Downgrade(ClaimId, Fence),
    Revoke(Fence),
}

/// The line's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    Answer(Result<Answer, ClaimError>),
    Standing(Standing),
    Released(Released),
    Revoked(Revoked),
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub second: u64,
    pub done: Done,
    pub said: Said,
    pub told: Vec<Told>,
    pub before: Line,
    pub after: Line,
    /// The line without the `expire` that comes before each event here, and what it said.
    pub unexpired: Option<(Line, Said)>,
}

impl Done {
    pub(super) fn on(&self, line: &mut Line, second: u64, told: &mut Vec<Told>) -> Said {
        let now = at(second);
        match self {
            Done::Expire => {
                line.expire(now, told);
                Said::Nothing
            }
            Done::Claim(claim) => Said::Answer(line.claim(now, claim, told)),
            Done::Renew(claim, fence) => Said::Standing(line.renew(now, *claim, *fence, told)),
            Done::Release(claim, fence, ending) => {
                Said::Released(line.release(now, *claim, *fence, *ending, told))
            }
            Done::Downgrade(claim, fence) => {
                Said::Standing(line.downgrade(now, *claim, *fence, told))
            }
            Done::Revoke(fence) => Said::Revoked(line.revoke(now, *fence, told)),
        }
    }
}

/// Plays a history. Every event comes after an `expire` of its own, so that each step has one
/// cause.
pub(super) fn play(history: &[(u64, Op)]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut line = Line::default();
    let mut slots: Vec<Option<Claim>> = vec![None; SLOTS];
    let mut made = 0;
    let mut second = 0;
    for (pause, op) in history {
        second += pause;
        let before = line.clone();
        let mut told = Vec::new();
        line.expire(at(second), &mut told);
        let expired = Step {
            second,
            done: Done::Expire,
            said: Said::Nothing,
            told,
            before: before.clone(),
            after: line.clone(),
            unexpired: None,
        };
        steps.push(expired);

        let Some(done) = resolve(op, &steps, &line, &mut slots, &mut made) else {
            continue;
        };
        let mut unexpired = before;
        let said_unexpired = done.on(&mut unexpired, second, &mut Vec::new());
        let (before, mut told) = (line.clone(), Vec::new());
        let said = done.on(&mut line, second, &mut told);
        let unexpired = Some((unexpired, said_unexpired));
        steps.push(Step {
            second,
            done,
            said,
            told,
            before,
            after: line.clone(),
            unexpired,
        });
    }
    steps
}

const SLOTS: usize = 6;

fn resolve(
    op: &Op,
    steps: &[Step],
    line: &Line,
    slots: &mut [Option<Claim>],
    made: &mut u128,
) -> Option<Done> {
    let fence_by = |claim: ClaimId, by: By| match by {
        By::Nothing => None,
        By::Its => last_fence_of(steps, claim),
        By::Wrong => {
            Some(last_fence_of(steps, claim).map_or(fence(7_000), |its| fence(its.get() + 1)))
        }
    };
    match op {
        Op::Claim(slot, ask) => {
            let slot = &mut slots[*slot];
            let alive = slot.as_ref().is_some_and(|claim| {
                line.holders
                    .iter()
                    .any(|holder| holder.claim == claim.id && !holder.ghost)
                    || line.waiters.iter().any(|waiter| waiter.claim == claim.id)
            });
            if !alive {
                *made += 1;
                *slot = Some(ask.claim(*made));
            }
            slot.clone().map(Done::Claim)
        }
        Op::Renew(slot, by) => slots[*slot]
            .as_ref()
            .map(|claim| Done::Renew(claim.id, fence_by(claim.id, *by))),
        Op::Release(slot, by, ending) => slots[*slot]
            .as_ref()
            .map(|claim| Done::Release(claim.id, fence_by(claim.id, *by), *ending)),
        Op::Downgrade(slot, by) => {
            let claim = slots[*slot].as_ref()?.id;
            Some(Done::Downgrade(claim, fence_by(claim, *by)?))
        }
        Op::Revoke(slot, by) => Some(Done::Revoke(fence_by(slots[*slot].as_ref()?.id, *by)?)),
    }
}

/// The fence that the claim was last seen to be granted, by answer or by being told.
fn last_fence_of(steps: &[Step], claim: ClaimId) -> Option<Fence> {
    steps
        .iter()
        .flat_map(grants)
        .filter(|(granted, _)| *granted == claim)
        .map(|(_, fence)| fence)
        .next_back()
}

/// Every grant that the step mentions, new or known.
pub(super) fn grants(step: &Step) -> Vec<(ClaimId, Fence)> {
    let answered = match (&step.done, &step.said) {
        (Done::Claim(claim), Said::Answer(Ok(Answer::Granted(grant)))) => {
            Some((claim.id, grant.fence))
        }
        (
            Done::Renew(claim, _) | Done::Downgrade(claim, _),
            Said::Standing(Standing::Held(grant)),
        ) => Some((*claim, grant.fence)),
        _ => None,
    };
    let told = step.told.iter().filter_map(|told| match told {
        Told::Granted { claim, fence } => Some((*claim, *fence)),
        Told::Gone { .. } => None,
    });
    answered.into_iter().chain(told).collect()
}

impl Ask {
    fn claim(&self, number: u128) -> Claim {
        Claim {
            queue: self.queue,
            min_hold: self.min_hold.map(secs),
            once_per: self.once_per.map(secs),
            ..some_claim(number, self.kind, self.mode, self.lease)
        }
    }
}

/// Histories of one line: mostly of one kind, so that claims meet.
pub(super) fn histories() -> impl Strategy<Value = Vec<(u64, Op)>> {
    let readers_and_writers = prop_oneof![
        5 => Just((Kind::RwLock, Mode::Shared)),
        2 => Just((Kind::RwLock, Mode::Exclusive)),
        2 => Just((Kind::Mutex, Mode::Exclusive)),
        1 => Just((Kind::Semaphore { limit: 3 }, Mode::Permits(1))),
    ];
    let permits =
        (0..=4_u32).prop_map(|count| (Kind::Semaphore { limit: 3 }, Mode::Permits(count)));
    let permits = prop_oneof![
        12 => permits,
        1 => Just((Kind::Mutex, Mode::Exclusive)),
        1 => Just((Kind::Semaphore { limit: 4 }, Mode::Permits(1))),
    ];
    prop_oneof![
        history_of(readers_and_writers.boxed()),
        history_of(permits.boxed())
    ]
}

fn history_of(asks: BoxedStrategy<(Kind, Mode)>) -> impl Strategy<Value = Vec<(u64, Op)>> {
    let pause = prop_oneof![5 => Just(0), 3 => Just(1), 1 => 2..5_u64];
    proptest::collection::vec((pause, ops(asks)), 1..50)
}

fn ops(asks: BoxedStrategy<(Kind, Mode)>) -> impl Strategy<Value = Op> {
    let slot = 0..SLOTS;
    let by = prop_oneof![3 => Just(By::Nothing), 5 => Just(By::Its), 1 => Just(By::Wrong)];
    let ending = prop_oneof![
        10 => Just(Ending::Release),
        3 => Just(Ending::Undo),
        2 => (0..4_u64).prop_map(|keep| Ending::Seal(secs(keep))),
    ];
    let ask = (
        asks,
        1..9_u64,
        prop::bool::weighted(0.85),
        rarely(1..8),
        rarely(0..8),
    );
    let ask = ask.prop_map(|((kind, mode), lease, queue, min_hold, once_per)| Ask {
        kind,
        mode,
        lease,
        queue,
        min_hold,
        once_per,
    });
    prop_oneof![
        8 => (slot.clone(), ask).prop_map(|(slot, ask)| Op::Claim(slot, ask)),
        6 => (slot.clone(), by.clone()).prop_map(|(slot, by)| Op::Renew(slot, by)),
        4 => (slot.clone(), by.clone(), ending).prop_map(|(slot, by, ending)| Op::Release(slot, by, ending)),
        1 => (slot.clone(), by.clone()).prop_map(|(slot, by)| Op::Downgrade(slot, by)),
        1 => (slot, by).prop_map(|(slot, by)| Op::Revoke(slot, by)),
    ]
}

fn rarely(spans: std::ops::Range<u64>) -> impl Strategy<Value = Option<u64>> {
    prop_oneof![4 => Just(None), 1 => spans.prop_map(Some)]
}
