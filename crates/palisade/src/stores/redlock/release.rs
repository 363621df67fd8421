//! Ends a claim on all servers: returns with the majority, and sees the others through in the
//! background.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::calls::Calls;
use super::claim::Tally;
use super::node::Node;
use super::{RELEASE, Servers, Shared, limit};
use crate::error::Result;
use crate::store::{Claim, ClaimRef, Released};
use crate::stores::backoff::Backoff;
use crate::stores::redis::client::Call;
use crate::stores::redis::unexpected;

/// Between two attempts in the background; each further pause is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Deletes the claim where it has one of these fences.
fn call(shared: &Shared, claim: &Claim, fences: RangeInclusive<u64>) -> Arc<Call> {
    let call = shared.call(&RELEASE, &claim.name).text(&claim.id.reveal());
    Arc::new(call.number(*fences.start()).number(*fences.end()))
}

pub(super) async fn release(shared: &Arc<Shared>, claim: &ClaimRef) -> Result<Released> {
    let servers = shared.reached().await?;
    let sent = shared.claimed.get(claim.claim.id);
    let fences = match (shared.claimed.lowest(claim), claim.fence) {
        (Some(lowest), Some(granted)) => lowest.get()..=granted.get(),
        _ => 0..=u64::MAX,
    };
    let call = call(shared, &claim.claim, fences);
    let quorum = shared.members.quorum();
    // A server that was not sent the claim does not have it.
    let is_there = |place: usize| sent.as_ref().is_none_or(|sent| sent.is_sent_to(place));
    let (mut done, mut lost, mut failures) = (0, 0, Vec::new());
    let mut unreached = Vec::new();
    for (place, server) in servers.iter().enumerate() {
        match server {
            None if is_there(place) => unreached.push(place),
            None => lost += 1,
            Some(_) => {}
        }
    }
    let too_many = shared.members.count - quorum;
    let mut calls = shared.send(&servers, &call);
    calls
        .take(limit(claim.claim.lease), |place, reply, _| {
            match reply {
                Ok(Value::Int(1)) => done += 1,
                Ok(Value::Int(0)) => lost += 1,
                Ok(_) => failures.push(unexpected()),
                Err(error) => {
                    failures.push(error);
                    unreached.push(place);
                }
            }
            done >= quorum || lost > too_many
        })
        .await;
    let released = if done >= quorum {
        Released::Done
    } else if lost > too_many {
        Released::AlreadyLost
    } else {
        // The core asks again, all servers.
        return Err(shared.too_few(done + lost, failures));
    };
    shared.claimed.remove(claim.claim.id);
    see_through(shared, &call, calls, unreached, claim.claim.lease);
    Ok(released)
}

/// Takes an attempt back that got no majority: on all servers that it was sent to, except those that
/// said that they do not have it. Waits for those that said that they have it.
pub(super) async fn undo(
    shared: &Arc<Shared>,
    claim: &Claim,
    fences: RangeInclusive<u64>,
    mut servers: Servers,
    tally: &Tally,
) {
    let Tally { ours, not_ours, .. } = tally;
    not_ours.iter().for_each(|place| servers[*place] = None);
    let call = call(shared, claim, fences);
    let mut calls = shared.send(&servers, &call);
    let mut missing = ours.len();
    let mut unreached = Vec::new();
    calls
        .take(limit(claim.lease), |place, reply, _| {
            missing -= usize::from(ours.contains(&place));
            if reply.is_err() {
                unreached.push(place);
            }
            missing == 0
        })
        .await;
    see_through(shared, &call, calls, unreached, claim.lease);
    shared.claimed.undone(claim.id);
}

/// Releases on the servers that have not answered, or could not be asked, until they have answered
/// or the lease is over there.
fn see_through(
    shared: &Arc<Shared>,
    call: &Arc<Call>,
    calls: Calls<Result<Value>>,
    unreached: Vec<usize>,
    lease: Duration,
) {
    let until = Instant::now() + lease;
    let in_flight = calls.into_rest().into_iter();
    let in_flight = in_flight.map(|(place, reply)| (place, Some(reply)));
    let unreached = unreached.into_iter().map(|place| (place, None));
    for (place, reply) in in_flight.chain(unreached) {
        let (shared, node) = (Arc::clone(shared), Arc::clone(&shared.nodes[place]));
        let call = Arc::clone(call);
        tokio::spawn(async move {
            if let Some(reply) = reply
                && reply.await.is_ok()
            {
                return;
            }
            let Ok(_bounded) = shared.background.try_acquire() else {
                return tracing::debug!(server = %node.address, "not released; its lease ends it");
            };
            repeat(&node, &call, until).await;
        });
    }
}

async fn repeat(node: &Node, call: &Arc<Call>, until: Instant) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while Instant::now() < until {
        backoff.pause().await;
        let answer = match node.reach().await {
            Ok(server) => node.call(server, call).await,
            Err(error) => Err(error),
        };
        match answer {
            Err(error) if error.retry_may_help() => {}
            _ => return,
        }
    }
}
