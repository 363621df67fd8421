//! An observer that believes the line's answers, keeps its own account, and shares no code with it.

use std::collections::BTreeMap;

use super::history::{Done, Said, Step, grants};
use super::*;

/// The state after a step, as the observer sees it. Times are whole seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    pub claims: BTreeMap<ClaimId, Seen>,
    /// The once-per grants that count: when, how long, by which fence. The last one is the mark.
    pub marks: Vec<(u64, u64, Fence)>,
    pub sealed_until: u64,
    /// Claims that expired; none of them may appear again.
    pub expired: Vec<ClaimId>,
    turns: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub claim: Claim,
    /// Its current mode: a downgrade changes it.
    pub mode: Mode,
    /// When it came, among all claims.
    pub turn: u64,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting {
        expiry: u64,
    },
    Holding {
        fence: Fence,
        expiry: u64,
        closed_until: u64,
    },
    Ghost {
        fence: Fence,
        closed_until: u64,
    },
}

impl Seen {
    pub(super) fn in_the_way_until(&self) -> Option<u64> {
        match self.state {
            State::Waiting { .. } => None,
            State::Holding {
                expiry,
                closed_until,
                ..
            } => Some(expiry.max(closed_until)),
            State::Ghost { closed_until, .. } => Some(closed_until),
        }
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    fn fence(&self) -> Option<Fence> {
        match self.state {
            State::Waiting { .. } => None,
            State::Holding { fence, .. } | State::Ghost { fence, .. } => Some(fence),
        }
    }

    fn wait_lease(&self) -> u64 {
        self.claim.lease.as_secs().min(5)
    }

    fn without_owner(self, second: u64) -> Option<Seen> {
        match self.state {
            State::Holding {
                fence,
                closed_until,
                ..
            }
            | State::Ghost {
                fence,
                closed_until,
            } if closed_until > second => Some(Seen {
                state: State::Ghost {
                    fence,
                    closed_until,
                },
                ..self
            }),
            _ => None,
        }
    }
}

/// Whether all these may hold at once.
pub(super) fn may_hold_together(modes: &[Mode], limit: u32) -> bool {
    let writers = modes
        .iter()
        .filter(|mode| **mode == Mode::Exclusive)
        .count();
    let readers = modes.iter().filter(|mode| **mode == Mode::Shared).count();
    let permits: Vec<u32> = modes
        .iter()
        .filter_map(|mode| {
            if let Mode::Permits(count) = mode {
                Some(*count)
            } else {
                None
            }
        })
        .collect();
    match (writers, readers, permits.len()) {
        (0, 0, _) => permits.iter().sum::<u32>() <= limit,
        (0, _, 0) => true,
        (1, 0, 0) => true,
        _ => false,
    }
}

impl Picture {
    pub(super) fn limit(&self) -> u32 {
        let limits = self
            .claims
            .values()
            .filter_map(|seen| match seen.claim.kind {
                Kind::Semaphore { limit } => Some(limit),
                _ => None,
            });
        limits.min().unwrap_or(0)
    }

    /// The modes that exclude others at this second.
    pub(super) fn modes_in_the_way(&self, second: u64) -> Vec<Mode> {
        let in_the_way = |seen: &&Seen| seen.in_the_way_until().is_some_and(|until| until > second);
        self.claims
            .values()
            .filter(in_the_way)
            .map(|seen| seen.mode)
            .collect()
    }

    pub(super) fn waiters(&self) -> Vec<&Seen> {
        let mut waiters: Vec<_> = self.claims.values().filter(|seen| seen.waits()).collect();
        waiters.sort_by_key(|seen| seen.turn);
        waiters
    }

    /// Whether a claim in this mode could come in at this second, without any event until then.
    pub(super) fn has_room(&self, mode: Mode, limit: u32, second: u64) -> bool {
        let mut modes = self.modes_in_the_way(second);
        modes.push(mode);
        may_hold_together(&modes, limit)
    }

    /// Whether such a claim comes too soon, and by how much.
    pub(super) fn too_soon_by(&self, once_per: Option<Duration>, second: u64) -> Option<u64> {
        let (marked_at, span, _) = *self.marks.last()?;
        let until = marked_at + once_per?.as_secs().min(span);
        (until > second).then(|| until - second)
    }

    fn pass(&mut self, second: u64) {
        let mut left = BTreeMap::new();
        for (id, seen) in std::mem::take(&mut self.claims) {
            let ended = match seen.state {
                State::Waiting { expiry } | State::Holding { expiry, .. } => expiry <= second,
                State::Ghost { .. } => true,
            };
            if ended && !matches!(seen.state, State::Ghost { .. }) {
                self.expired.push(id);
            }
            let stays = if ended {
                seen.without_owner(second)
            } else {
                Some(seen)
            };
            left.extend(stays.map(|seen| (id, seen)));
        }
        self.claims = left;
        self.forget_marks(second);
    }

    fn forget_marks(&mut self, second: u64) {
        if self
            .marks
            .last()
            .is_some_and(|(marked_at, span, _)| marked_at + span <= second)
        {
            self.marks.clear();
        }
    }

    fn end(&mut self, id: ClaimId, ending: Ending, second: u64) {
        let Some(seen) = self.claims.remove(&id) else {
            return;
        };
        if ending == Ending::Undo {
            self.marks
                .retain(|(_, _, fence)| Some(*fence) != seen.fence());
            self.forget_marks(second);
            return;
        }
        if let (Ending::Seal(keep), State::Holding { .. }) = (ending, seen.state) {
            self.sealed_until = self.sealed_until.max(second + keep.as_secs());
        }
        let stays = seen.without_owner(second);
        self.claims.extend(stays.map(|seen| (id, seen)));
    }

    /// An event of the claim renews it, or shows it for the first time.
    fn spoke(&mut self, id: ClaimId, new: Option<&Claim>, held: Option<Fence>, second: u64) {
        if let (Some(claim), false) = (new, self.claims.contains_key(&id)) {
            self.turns += 1;
            let (turn, state) = (self.turns, State::Waiting { expiry: 0 });
            self.claims.insert(
                id,
                Seen {
                    claim: claim.clone(),
                    mode: claim.mode,
                    turn,
                    state,
                },
            );
        }
        if let Some(fence) = held {
            self.granted(id, fence, second);
        }
        let Some(seen) = self.claims.get_mut(&id) else {
            return;
        };
        let (lease, wait_lease) = (seen.claim.lease.as_secs(), seen.wait_lease());
        match &mut seen.state {
            State::Waiting { expiry } => *expiry = second + wait_lease,
            State::Holding { expiry, .. } => *expiry = second + lease,
            State::Ghost { .. } => {}
        }
    }

    fn granted(&mut self, id: ClaimId, fence: Fence, second: u64) {
        let Some(seen) = self.claims.get_mut(&id) else {
            return;
        };
        if let State::Waiting { expiry } = seen.state {
            let closed_until = seen
                .claim
                .min_hold
                .map_or(0, |span| second + span.as_secs());
            seen.state = State::Holding {
                fence,
                expiry,
                closed_until,
            };
            if let Some(span) = seen.claim.once_per.filter(|span| *span > secs(0)) {
                self.marks.push((second, span.as_secs(), fence));
            }
        }
    }

    /// The state after the step.
    pub(super) fn after(&self, step: &Step) -> Picture {
        let mut next = self.clone();
        let second = step.second;
        next.pass(second);
        match (&step.done, &step.said) {
            (Done::Claim(claim), Said::Answer(Ok(Answer::Granted(grant)))) => {
                next.spoke(claim.id, Some(claim), Some(grant.fence), second);
            }
            (Done::Claim(claim), Said::Answer(Ok(Answer::Queued(_)))) => {
                next.spoke(claim.id, Some(claim), None, second)
            }
            (Done::Renew(id, _), Said::Standing(Standing::Held(grant))) => {
                next.spoke(*id, None, Some(grant.fence), second)
            }
            (Done::Renew(id, _), Said::Standing(Standing::Waiting(_))) => {
                next.spoke(*id, None, None, second)
            }
            (Done::Downgrade(id, _), Said::Standing(Standing::Held(grant))) => {
                next.spoke(*id, None, Some(grant.fence), second);
                if let Some(seen) = next.claims.get_mut(id)
                    && seen.mode == Mode::Exclusive
                {
                    seen.mode = Mode::Shared;
                }
            }
            (Done::Release(id, _, ending), Said::Released(Released::Done)) => {
                next.end(*id, *ending, second)
            }
            // An undo takes back the closed period of a claim that was already lost.
            (Done::Release(id, fence, Ending::Undo), Said::Released(Released::AlreadyLost)) => {
                let ghost = next
                    .claims
                    .get(id)
                    .filter(|seen| matches!(seen.state, State::Ghost { .. }));
                if ghost.is_some_and(|seen| fence.is_none() || *fence == seen.fence()) {
                    next.end(*id, Ending::Undo, second);
                }
            }
            (Done::Revoke(fence), Said::Revoked(Revoked::Done)) => {
                next.claims.retain(|_, seen| seen.fence() != Some(*fence))
            }
            _ => {}
        }
        for told in &step.told {
            match told {
                Told::Granted { claim, fence } => next.granted(*claim, *fence, second),
                Told::Gone { claim, .. } => {
                    next.claims.remove(claim);
                }
            }
        }
        next
    }

    /// The grants of the step that this picture, from before it, does not know yet; oldest fence
    /// first.
    pub(super) fn new_grants(&self, step: &Step) -> Vec<(ClaimId, Fence)> {
        let known = |id: &ClaimId| {
            self.claims
                .get(id)
                .is_some_and(|seen| matches!(seen.state, State::Holding { .. }))
        };
        let mut new: Vec<_> = grants(step)
            .into_iter()
            .filter(|(id, _)| !known(id))
            .collect();
        new.sort_by_key(|(_, fence)| *fence);
        new
    }

    /// Whether this claim, with this fence or none, is holding or waiting: whether it may speak for
    /// itself.
    pub(super) fn owns(&self, id: ClaimId, fence: Option<Fence>) -> bool {
        self.claims.get(&id).is_some_and(|seen| match seen.state {
            State::Waiting { .. } => fence.is_none(),
            State::Holding { fence: its, .. } => fence.is_none_or(|fence| fence == its),
            State::Ghost { .. } => false,
        })
    }
}
