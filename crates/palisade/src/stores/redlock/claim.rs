//! Asks all servers for a name, and returns with the majority.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::node::Node;
use super::{CLAIM, Servers, Shared, limit, release};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{Busy, Claim, Grant, Lease};
use crate::stores::kit::token::Put;
use crate::stores::redis::{
    Token, check_key, millis, owner_and_reason, read_fence, token_and_left, unexpected, unwanted,
};

/// How many rounds an attempt has at most. The second has the highest fence of a majority; further
/// ones are for servers that did not answer before.
const ROUNDS: usize = 4;

/// The votes of one round.
#[derive(Default)]
pub(super) struct Tally {
    /// The servers where the claim is.
    pub(super) ours: Vec<usize>,
    /// The servers where it is not.
    pub(super) not_ours: Vec<usize>,
    /// How many have stored the fence.
    pub(super) stored: usize,
    /// The fence must be above this.
    floor: u64,
    /// The tokens of other holders, on how many servers, and the longest time left there.
    taken: HashMap<Vec<u8>, (usize, Option<Duration>)>,
    failures: Vec<Error>,
    /// How many servers have answered, or can.
    reachable: usize,
}

impl Tally {
    fn count(&mut self, node: &Node, reply: Result<Value>) {
        match reply.and_then(|reply| self.read(node.place, reply)) {
            Ok(Some(time)) => node.learn(time),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "a server does not vote");
                self.failures.push(error);
            }
        }
    }

    /// Counts a vote; replies what the server's clock says, where it says that.
    pub(super) fn read(&mut self, place: usize, reply: Value) -> Result<Option<u64>> {
        match reply {
            Value::BulkString(_) => {
                self.ours.push(place);
                self.stored += 1;
            }
            Value::Array(parts) => match parts.as_slice() {
                [Value::BulkString(floor), Value::BulkString(why)] => {
                    let floor = read_fence(floor).ok_or_else(unexpected)?.get();
                    self.floor = self.floor.max(floor);
                    self.ours.push(place);
                    return Ok((why == b"time").then_some(floor));
                }
                taken => {
                    let (token, left) = token_and_left(taken).ok_or_else(unexpected)?;
                    let (count, longest) = self.taken.entry(token.to_owned()).or_default();
                    (*count, *longest) = (*count + 1, left.max(*longest));
                    self.not_ours.push(place);
                }
            },
            _ => return Err(unexpected()),
        }
        Ok(None)
    }

    /// Whether the claim is on a majority, or cannot be with the servers that are left.
    pub(super) fn is_decided(&self, quorum: usize, left: usize) -> bool {
        self.ours.len() >= quorum || self.ours.len() + left < quorum
    }

    /// What the fence of a further round must be above, where one is of use.
    pub(super) fn again(&self, quorum: usize, rounds: usize) -> Option<u64> {
        (self.ours.len() >= quorum && rounds < ROUNDS).then_some(self.floor)
    }

    /// The answer to a claim that has no majority.
    fn outcome(self, shared: &Shared) -> Result<Put> {
        if self.reachable < shared.members.quorum() {
            return Err(shared.too_few(self.reachable, self.failures));
        }
        let most = self.taken.iter().max_by_key(|(_, (count, _))| *count);
        let holder = most.map(|(token, (_, left))| Token::read(token).holder(*left));
        let ask_in = self.taken.values().filter_map(|(_, left)| *left).max();
        Ok(Put::Taken(Busy {
            holder,
            ask_in,
            ..Busy::default()
        }))
    }
}

pub(super) async fn claim(shared: &Arc<Shared>, claim: &Arc<Claim>) -> Result<Put> {
    check_key(&claim.name, &shared.keys.key(&claim.name))?;
    let mut servers = shared.reached().await?;
    if let Some(busy) = without_young(shared, &mut servers, claim)? {
        return Ok(Put::Taken(busy));
    }
    if !shared.wants(claim.id) {
        return Err(unwanted());
    }
    // A grant whose answer was lost is asked for again with its own fence.
    let first = match shared.claimed.granted_to(claim.id) {
        Some(fence) => fence,
        None => propose(shared, claim)?,
    };
    let mut attempt = Attempt {
        shared,
        claim,
        servers: &servers,
        fence: first,
    };
    let granted = attempt.run().await;
    // Also where it was not granted: the next attempt has higher fences than this one, which may
    // still be on its way.
    let _ = shared.seen.accept(&claim.name, claim.mode, attempt.fence);
    match granted {
        Ok(fence) => {
            shared.claimed.granted(claim.id, fence);
            Ok(Put::Done(Grant {
                fence,
                lease: Lease::of(claim.lease),
            }))
        }
        Err(tally) => {
            let fences = first.get()..=attempt.fence.get();
            release::undo(shared, claim, fences, servers, &tally).await;
            tally.outcome(shared)
        }
    }
}

/// Leaves out the servers that are too young to vote. If that leaves no majority, the claim is
/// refused until they are old enough.
fn without_young(shared: &Shared, servers: &mut Servers, claim: &Claim) -> Result<Option<Busy>> {
    let mut waits = Vec::new();
    for (node, server) in shared.nodes.iter().zip(servers.iter_mut()) {
        if server.is_some()
            && let Some(wait) = node.is_young_for()
        {
            *server = None;
            waits.push(wait);
        }
    }
    let missing = shared
        .members
        .quorum()
        .saturating_sub(servers.iter().flatten().count());
    if missing == 0 {
        return Ok(None);
    }
    waits.sort_unstable();
    let wait = waits.get(missing - 1).copied();
    if claim.queue && wait.is_some() {
        return Ok(Some(Busy {
            ask_in: wait,
            closed: true,
            ..Busy::default()
        }));
    }
    Err(Error::unavailable(format!(
        "{} of {} servers have run for less than the longest lease and do not vote yet{}",
        waits.len(),
        shared.members.count,
        wait.map(|wait| format!("; there is a majority in {wait:.0?}"))
            .unwrap_or_default(),
    ))
    .with_nothing_sent())
}

/// The fence that a claim asks for: above all that this client has seen of the name, and not behind
/// the servers' clocks. It tells this attempt from all others of this client.
fn propose(shared: &Shared, claim: &Claim) -> Result<Fence> {
    let clocks = shared.nodes.iter().map(|node| node.time()).max();
    let seen = shared
        .seen
        .last(&claim.name)
        .map_or(0, |last| last.get() + 1);
    let wanted = clocks.unwrap_or(0).max(seen).max(1);
    let above = |last: u64| Some(wanted.max(last + 1));
    let last = shared
        .proposed
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, above)
        .unwrap_or_default();
    fence(wanted.max(last + 1))
}

fn fence(number: u64) -> Result<Fence> {
    let too_high = || Error::protocol("the last fence of this name is too high to be followed");
    Fence::new(number).ok_or_else(too_high)
}

struct Attempt<'a> {
    shared: &'a Arc<Shared>,
    claim: &'a Arc<Claim>,
    servers: &'a Servers,
    /// The fence of the last round.
    fence: Fence,
}

impl Attempt<'_> {
    /// The fence of the grant, or the votes that were not enough.
    async fn run(&mut self) -> Result<Fence, Tally> {
        let quorum = self.shared.members.quorum();
        for rounds in 1.. {
            let mut tally = self.round().await;
            if tally.stored >= quorum {
                break;
            }
            let Some(floor) = tally.again(quorum, rounds) else {
                return Err(tally);
            };
            self.fence = match fence(floor.max(self.fence.get()) + 1) {
                Ok(higher) => higher,
                Err(error) => {
                    tally.reachable = 0;
                    tally.failures.push(error);
                    return Err(tally);
                }
            };
        }
        Ok(self.fence)
    }

    /// Asks all servers, until the claim is on a majority, or cannot be any more.
    async fn round(&self) -> Tally {
        let (shared, claim, fence) = (self.shared, self.claim, self.fence);
        let quorum = shared.members.quorum();
        shared.claimed.sent(claim, fence, self.servers);
        let call = shared
            .call(&CLAIM, &claim.name)
            .text(&claim.id.reveal())
            .number(millis(claim.lease))
            .number(fence.get())
            .text(&owner_and_reason(claim));
        let mut calls = shared.send(self.servers, &Arc::new(call));
        let mut tally = Tally::default();
        let decided = calls
            .take(limit(claim.lease), |place, reply, left| {
                tally.count(&shared.nodes[place], reply);
                tally.is_decided(quorum, left)
            })
            .await;
        tally.reachable = tally.ours.len() + tally.not_ours.len();
        let unanswered = calls.into_rest();
        if decided {
            tally.reachable += unanswered.len();
        } else {
            let silent = |(place, _): &(usize, _)| {
                let address = &shared.nodes[*place].address;
                Error::unavailable(format!("{address} does not answer"))
            };
            tally.failures.extend(unanswered.iter().map(silent));
        }
        tally
    }
}
